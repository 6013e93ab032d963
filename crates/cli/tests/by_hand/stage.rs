//! The stage: a real server and real commands, as a user runs them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Whatever is waited for comes long before, or never.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a command gave.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Given {
    /// Its stdout, if it went well.
    pub(crate) fn well(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }
}

/// A server, and the folder of a test.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) address: String,
    server: Option<Child>,
}

impl Stage {
    /// A server on a free port, with its data in a new folder.
    pub(crate) fn new(flags: &[&str]) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let mut stage = Stage { folder, address: "127.0.0.1:0".into(), server: None };
        stage.start(flags);
        stage
    }

    /// Starts the server, with the port and data of the one before, if there was one.
    pub(crate) fn start(&mut self, flags: &[&str]) {
        let log = self.folder.path().join("server.log");
        let mut server = windlass(&[])
            .args(["serve", "--listen", &self.address, "--data"])
            .arg(self.folder.path().join("data"))
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(&log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.server = Some(server);
        let address =
            line.trim().strip_prefix("listening on http://").and_then(|rest| rest.split(',').next());
        let why = || std::fs::read_to_string(&log).unwrap_or_default();
        self.address = address.unwrap_or_else(|| panic!("the server did not start: {}", why())).to_owned();
    }

    /// Kills the server, as a crash would.
    pub(crate) fn crash(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// Asks the server to stop, and waits until it has.
    pub(crate) fn stop(&mut self) -> i32 {
        let mut server = self.server.take().unwrap();
        terminate(&server);
        server.wait().unwrap().code().unwrap()
    }

    /// A command for this server, not yet run.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = windlass(args);
        command.env("WINDLASS_SERVER", format!("http://{}", self.address)).current_dir(self.folder.path());
        command
    }

    /// Runs a command for this server.
    pub(crate) fn run(&self, args: &[&str]) -> Given {
        given(self.command(args))
    }

    /// Runs a command of plain words at a terminal where somebody types this line. All it says comes as its stdout.
    pub(crate) fn at_terminal(&self, args: &[&str], line: &'static str) -> Given {
        let words = [&[env!("CARGO_BIN_EXE_windlass")], args].concat().join(" ");
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &words, "/dev/null"]);
        command.env("WINDLASS_SERVER", format!("http://{}", self.address)).current_dir(self.folder.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = within_patience(move || {
            child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
            child.wait_with_output().unwrap()
        });
        let said = String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n");
        Given { code: output.status.code().unwrap_or(-1), stdout: said, stderr: String::new() }
    }

    /// Hands in lines, and gives the submission's id.
    pub(crate) fn submit(&self, lines: &str, flags: &[&str]) -> String {
        let path = self.folder.path().join("lines");
        std::fs::write(&path, lines).unwrap();
        let args = [&["submit", "--chunks-from", "lines"], flags].concat();
        self.run(&args).well().trim().to_owned()
    }

    /// Runs a command with `--json`, and reads what it says.
    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        let text = self.run(&[args, &["--json"]].concat()).well();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// A pipe by name, for a command to wait at.
    pub(crate) fn pipe(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// The binary, without the caller's settings.
pub(crate) fn windlass(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WINDLASS_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub(crate) fn given(mut command: Command) -> Given {
    let output = within_patience(move || command.output().unwrap());
    Given {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Sends the signal that asks a process to stop.
pub(crate) fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

/// Waits until somebody has written to a pipe, and gives what.
pub(crate) fn read_pipe(path: &Path) -> String {
    let path = path.to_owned();
    within_patience(move || std::fs::read_to_string(path).unwrap())
}

/// Waits until somebody reads from a pipe, and writes to it.
pub(crate) fn write_pipe(path: &Path, text: &'static str) {
    let path = path.to_owned();
    within_patience(move || File::create(path).unwrap().write_all(text.as_bytes()).unwrap());
}

/// Waits for a line of stderr that contains this text; the rest stays to be read.
pub(crate) fn wait_for_line(stderr: &mut BufReader<ChildStderr>, text: &str) {
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "the command ended without saying {text:?}");
    }
}

/// The rest of stderr.
pub(crate) fn rest_of(mut stderr: BufReader<ChildStderr>) -> String {
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    text
}

fn within_patience<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(act()));
    result.recv_timeout(PATIENCE).expect("it happens in time")
}
