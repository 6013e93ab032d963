//! How a command can end, and its exit code.

use crate::table::visible;
use std::io::Write;
use std::process::ExitCode;
use windlass_client::ClientError;

/// The codes, as `--help` shows them.
pub(crate) const CODES: &str = "\
Exit codes:
  0  it went well
  1  the work failed, or the server refused the request
  2  the command line is wrong
  3  the server cannot be reached
  4  the server has a fault";

/// Why a command did not end well.
#[derive(Debug)]
pub(crate) enum Exit {
    /// The work failed, or the server refused.
    Refused(String),
    /// The command line or the configuration is wrong.
    Usage(String),
    /// The server cannot be reached.
    Unreachable(String),
    /// The server has a fault.
    Fault(String),
    /// Nobody reads stdout any more, which is how `head` ends a pipe.
    ReaderGone,
}

impl Exit {
    /// Says why on stderr, and gives the code.
    pub(crate) fn report(self) -> ExitCode {
        let (code, sentence) = match self {
            Exit::Refused(sentence) => (1, sentence),
            Exit::Usage(sentence) => (2, sentence),
            Exit::Unreachable(sentence) => (3, sentence),
            Exit::Fault(sentence) => (4, sentence),
            Exit::ReaderGone => return ExitCode::SUCCESS,
        };
        // Lines of a command's stderr are lines here, too.
        let lines: Vec<String> = sentence.lines().map(visible).collect();
        eprintln!("error: {}", lines.join("\n"));
        ExitCode::from(code)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Refused(sentence)
            | Exit::Usage(sentence)
            | Exit::Unreachable(sentence)
            | Exit::Fault(sentence) => f.write_str(sentence),
            Exit::ReaderGone => f.write_str("nobody reads stdout any more"),
        }
    }
}

impl From<ClientError> for Exit {
    fn from(error: ClientError) -> Exit {
        let sentence = error.to_string();
        match error {
            ClientError::Unreachable { .. } => Exit::Unreachable(format!(
                "{sentence}; start one with `windlass serve`, or name another one with --server"
            )),
            ClientError::Problem(problem) if problem.status >= 500 => Exit::Fault(sentence),
            ClientError::Protocol { .. } => Exit::Fault(sentence),
            ClientError::Setting(_) => Exit::Usage(sentence),
            ClientError::Problem(_)
            | ClientError::ChunkFailed { .. }
            | ClientError::Cancelled { .. }
            | ClientError::Operations(_) => Exit::Refused(sentence),
        }
    }
}

/// Writes to stdout.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Exit> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| cannot_write("stdout", &error))
}

/// Writes a line to stdout.
pub(crate) fn print_line(line: &str) -> Result<(), Exit> {
    print(format!("{line}\n").as_bytes())
}

/// Writes a value to stdout as JSON for people and programs.
pub(crate) fn print_json<T: serde::Serialize>(value: &T) -> Result<(), Exit> {
    let text = serde_json::to_string_pretty(value).expect("the values of the interface have a JSON form");
    print_line(&text)
}

/// The same on one line, where there are several documents: scripts read them line by line.
pub(crate) fn print_json_line<T: serde::Serialize>(value: &T) -> Result<(), Exit> {
    print_line(&serde_json::to_string(value).expect("the values of the interface have a JSON form"))
}

/// Why something could not be written.
pub(crate) fn cannot_write(what: &str, error: &std::io::Error) -> Exit {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        Exit::ReaderGone
    } else {
        Exit::Refused(format!("cannot write to {what}: {error}"))
    }
}
