//! The real binary on a machine whose disk fails to read now and then, and whose clock is set.

use crate::binary::serve_command;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What hurts, and by how much; it can be changed while the server runs.
#[derive(Debug)]
pub struct Hurt {
    library: PathBuf,
    folder: PathBuf,
}

impl Hurt {
    /// Builds what hurts into a folder. Nothing hurts at first.
    ///
    /// # Panics
    /// If there is no C compiler.
    pub fn new(folder: &Path) -> Hurt {
        let library = folder.join("hurt.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("hurt/hurt.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .args([&library, &source])
            .status();
        assert!(built.is_ok_and(|status| status.success()), "a C compiler builds {}", source.display());
        Hurt { library, folder: folder.to_owned() }
    }

    /// The command that serves this data on this port, hurt.
    pub fn serve_command(&self, data: &Path, port: u16) -> Command {
        let mut command = serve_command(data, port);
        command.env("LD_PRELOAD", &self.library);
        // What a connection held that broke comes back soon.
        command.env("WINDLASS_HEARTBEAT_MS", "1000").env("WINDLASS_GRACE_MS", "2000");
        command.env("HURT_READS", self.folder.join("reads")).env("HURT_CLOCK", self.folder.join("clock"));
        command
    }

    /// Every so many reads of the tables fail from here on; none if it is 0.
    pub fn fail_reads(&self, every: u64) {
        std::fs::write(self.folder.join("reads"), every.to_string()).expect("the folder is ours");
    }

    /// How many have failed.
    pub fn failed_reads(&self) -> u64 {
        std::fs::metadata(self.folder.join("reads.failed")).map_or(0, |file| file.len())
    }

    /// The wall clock is off by so many seconds from here on.
    pub fn set_clock(&self, seconds: i64) {
        std::fs::write(self.folder.join("clock"), seconds.to_string()).expect("the folder is ours");
    }
}
