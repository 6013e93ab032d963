//! Configuration: everything a server can be told, with its defaults.

use crate::limits::{OBJECT_BYTES_MAX_DEFAULT, OBJECT_BYTES_MAX_MAX};
use crate::roles::committer::Check;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Everything a server can be told. In a file, every field may be left out; an unknown one is refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the doors are.
    pub listen: SocketAddr,
    /// The folder that holds the log, the tables and, unless told otherwise, the objects.
    pub data: PathBuf,
    /// The object store: a folder or a URL such as `s3://bucket/prefix`; `objects` in the data folder if not given.
    pub objects: Option<String>,
    /// The largest object that may be put, in bytes.
    pub object_bytes_max: u64,
    /// What callers must show as `Authorization: Bearer …`; needed on any address but loopback.
    pub token: Option<String>,
    /// A consumer shows that it lives this often.
    pub heartbeat_ms: u64,
    /// A session outlives its connection this long.
    pub grace_ms: u64,
    /// A request's head must arrive within this time.
    pub header_timeout_ms: u64,
    /// A connection is closed when it is idle for so long; longer than clients keep theirs, which is 90 s in most.
    pub keep_alive_ms: u64,
    /// A request's body must arrive within this time; of an object, each next piece.
    pub body_timeout_ms: u64,
    /// At a stop, consumers have this long to report what they work on.
    pub drain_ms: u64,
    /// Connections at the same time.
    pub connections_max: usize,
    /// The log is cut after a checkpoint every so many entries, or every 256 MiB (or as many as the last checkpoint
    /// wrote), whichever comes first. A checkpoint writes the whole state once.
    pub checkpoint_every_entries: u64,
    /// Checks that commits may ask before they become visible, by name: `{ command = ["program", "argument"] }` or
    /// `{ url = "https://…" }`.
    pub checks: BTreeMap<String, Check>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7420)),
            data: PathBuf::from("windlass-data"),
            objects: None,
            object_bytes_max: OBJECT_BYTES_MAX_DEFAULT,
            token: None,
            heartbeat_ms: 10_000,
            grace_ms: 30_000,
            header_timeout_ms: 15_000,
            keep_alive_ms: 120_000,
            body_timeout_ms: 30_000,
            drain_ms: 5_000,
            connections_max: 30_000,
            checkpoint_every_entries: 1_000_000,
            checks: BTreeMap::new(),
        }
    }
}

/// The times of consumers' sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionTimes {
    /// A consumer shows that it lives this often.
    pub heartbeat_ms: u64,
    /// A session outlives its connection this long.
    pub grace_ms: u64,
}

impl Config {
    /// The configuration in a TOML text; every setting that it does not name has its default.
    pub fn from_toml(text: &str) -> Result<Config, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// The first setting that cannot be, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        let is_open = !self.listen.ip().is_loopback();
        let checks = [
            (
                is_open && self.token.is_none(),
                format!(
                    "{} can be reached from other machines, so callers must show a token; set `token` (or \
                     WINDLASS_TOKEN), or listen on 127.0.0.1",
                    self.listen
                ),
            ),
            (
                self.token.as_ref().is_some_and(|token| token.len() < 16),
                "`token` has fewer than 16 characters; use a long random text".into(),
            ),
            (
                !(1..=OBJECT_BYTES_MAX_MAX).contains(&self.object_bytes_max),
                format!("`object_bytes_max` is 1 to {OBJECT_BYTES_MAX_MAX}, which is 64 GiB"),
            ),
            (self.heartbeat_ms < 100, "`heartbeat_ms` is at least 100".into()),
            (
                [self.header_timeout_ms, self.keep_alive_ms, self.body_timeout_ms].contains(&0),
                "timeouts are at least 1 ms".into(),
            ),
            (
                self.keep_alive_ms < self.header_timeout_ms,
                "`keep_alive_ms` is at least `header_timeout_ms`: a head must have its time".into(),
            ),
            (self.connections_max == 0, "`connections_max` is at least 1".into()),
            (self.checkpoint_every_entries == 0, "`checkpoint_every_entries` is at least 1".into()),
        ];
        checks.into_iter().find_map(|(broken, sentence)| broken.then_some(sentence))
    }

    /// The times of consumers' sessions.
    pub const fn session_times(&self) -> SessionTimes {
        SessionTimes { heartbeat_ms: self.heartbeat_ms, grace_ms: self.grace_ms }
    }

    /// How long a request's body may take, or the next piece of an object.
    pub const fn body_timeout(&self) -> Duration {
        Duration::from_millis(self.body_timeout_ms)
    }
}
