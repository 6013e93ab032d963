//! The real binary in a process of its own: started, killed and looked at as an operator would.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The binary that this build of the workspace made.
pub fn windlass() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.ancestors().nth(2).expect("tests lie in target/<profile>/deps");
    let binary = folder.join("windlass");
    assert!(binary.exists(), "{} is missing; run `cargo build` first, or `make test`", binary.display());
    binary
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}

/// A server process.
pub struct Served {
    child: Child,
    /// Where it listens.
    pub url: String,
}

impl Served {
    /// Starts `windlass serve` on this data and waits until it is ready.
    pub async fn start(data: &Path, port: u16) -> Served {
        Served::try_start(serve_command(data, port), port)
            .await
            .expect("the server does not end before it is ready")
    }

    /// The same with a command of one's own; none if the server ends before it is ready.
    pub async fn try_start(mut command: Command, port: u16) -> Option<Served> {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
        let mut served = Served { child, url: format!("http://127.0.0.1:{port}") };
        let began = Instant::now();
        while !is_ready(&served.url).await {
            if served.has_ended() {
                return None;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "the server is ready within a minute");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Some(served)
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_some()
    }

    /// The process, for signals.
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// The memory that it holds now, in bytes.
    pub fn memory(&self) -> u64 {
        self.memory_of("VmRSS:")
    }

    /// The most memory that it has held so far, in bytes.
    pub fn memory_peak(&self) -> u64 {
        self.memory_of("VmHWM:")
    }

    fn memory_of(&self, what: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("Linux tells it");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
        kib * 1_024
    }

    /// Kills the server without a word: SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("the server can be killed");
        self.child.wait().expect("a killed child ends");
    }

    /// Waits until the server ends by itself.
    pub fn wait(mut self) -> ExitStatus {
        self.child.wait().expect("a child can be waited for")
    }

    /// Stops the server as an operator would: SIGTERM.
    pub fn stop(self) -> ExitStatus {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::TERM).expect("the server lives");
        self.wait()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // A test that ends early must not leave a server behind; after `kill` or `stop` there is none.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// The command that serves this data on this port.
pub fn serve_command(data: &Path, port: u16) -> Command {
    let mut command = Command::new(windlass());
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--data"]).arg(data);
    command.env_remove("WINDLASS_TOKEN").env("WINDLASS_LOG", "warn").stdin(Stdio::null());
    command
}

/// Runs a server that is expected to refuse to start; gives its exit status and what it said.
pub fn refused_start(data: &Path, port: u16) -> (ExitStatus, String) {
    let output = serve_command(data, port).output().expect("the binary starts");
    let said = [output.stdout, output.stderr].concat();
    (output.status, String::from_utf8(said).expect("the binary speaks UTF-8"))
}

async fn is_ready(url: &str) -> bool {
    reqwest::get(format!("{url}/ready")).await.is_ok_and(|answer| answer.status().is_success())
}
