//! When a server cannot start or go on: a clear sentence, a non-zero exit, and data that is intact.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::{Value, json};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use windlass_tests::binary::{Served, free_port, refused_start, windlass};

async fn submit(url: &str, body: &Value) -> Result<String, String> {
    let sent = reqwest::Client::new().post(format!("{url}/v1/submissions")).json(body).send().await;
    let answer = sent.map_err(|error| error.to_string())?;
    let status = answer.status();
    let text = answer.text().await.map_err(|error| error.to_string())?;
    let json: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    if status.is_success() { Ok(json["id"].as_str().unwrap().to_owned()) } else { Err(text) }
}

async fn assert_there(url: &str, ids: &[String]) {
    for id in ids {
        let answer = reqwest::get(format!("{url}/v1/submissions/{id}")).await.unwrap();
        assert_eq!(answer.status(), 200, "submission {id} is there");
    }
}

/// A server was here and took in a few submissions; then it was killed.
async fn used_folder() -> (TempDir, Vec<String>) {
    let data = TempDir::new().unwrap();
    let server = Served::start(data.path(), free_port()).await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(submit(&server.url, &json!({"chunks": 5})).await.unwrap());
    }
    server.kill();
    (data, ids)
}

fn assert_refused(data: &Path, port: u16, sentence: &str) {
    let (status, said) = refused_start(data, port);
    assert!(!status.success(), "it exits with an error, not {status}");
    assert!(said.contains(sentence), "it should say {sentence:?}, and says {said:?}");
}

#[tokio::test]
async fn a_port_in_use_and_a_folder_in_use_are_told_apart() {
    let (data, ids) = used_folder().await;
    let other = TempDir::new().unwrap();
    let port = free_port();
    let server = Served::start(data.path(), port).await;
    assert_refused(other.path(), port, "another process has this port");
    assert_refused(data.path(), free_port(), "in use by another server");
    assert_there(&server.url, &ids).await;
    assert!(server.stop().success());
}

#[tokio::test]
async fn a_folder_of_an_unknown_format_is_not_touched() {
    let (data, ids) = used_folder().await;
    let format = data.path().join("format");
    let known = std::fs::read(&format).unwrap();
    std::fs::write(&format, "windlass data, format 999\n").unwrap();
    assert_refused(data.path(), free_port(), "start the build that wrote it");
    std::fs::write(&format, known).unwrap();
    let server = Served::start(data.path(), free_port()).await;
    assert_there(&server.url, &ids).await;
}

#[test]
fn a_file_where_the_folder_should_be_is_refused() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert_refused(&file, free_port(), "is not a folder");
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}

#[test]
fn settings_that_cannot_be_are_refused_before_anything_is_touched() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let output = Command::new(windlass())
        .args(["serve", "--listen", "0.0.0.0:0", "--data"])
        .arg(&data)
        .env_remove("WINDLASS_TOKEN")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("set `token`"), "{said}");
    assert!(!data.exists());
}

/// The newest segment of the log, and where its last record ends.
fn newest_segment(data: &Path) -> (PathBuf, u64) {
    let log = data.join("log");
    let names = std::fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path());
    let newest = names.filter(|path| path.extension().is_some_and(|it| it == "log")).max().unwrap();
    let bytes = std::fs::read(&newest).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
    (newest, end)
}

#[tokio::test]
async fn garbage_after_the_last_record_is_cut_off_and_nothing_acknowledged_goes_with_it() {
    let (data, ids) = used_folder().await;
    let (segment, end) = newest_segment(data.path());
    let file = std::fs::File::options().write(true).open(segment).unwrap();
    file.write_all_at(&[0xa5; 777], end + 3).unwrap();
    let server = Served::start(data.path(), free_port()).await;
    assert_there(&server.url, &ids).await;
    let more = submit(&server.url, &json!({"chunks": 1})).await.unwrap();
    server.kill();
    let server = Served::start(data.path(), free_port()).await;
    assert_there(&server.url, &[more]).await;
    assert_there(&server.url, &ids).await;
}

#[tokio::test]
async fn damage_within_the_log_is_refused_and_never_read_as_data() {
    let (data, _) = used_folder().await;
    let (segment, end) = newest_segment(data.path());
    let file = std::fs::File::options().read(true).write(true).open(&segment).unwrap();
    let (place, mut byte) = (end / 2, [0]);
    file.read_exact_at(&mut byte, place).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], place).unwrap();
    let name = segment.file_name().unwrap().to_str().unwrap();
    assert_refused(data.path(), free_port(), name);
    file.write_all_at(&byte, place).unwrap();
    Served::start(data.path(), free_port()).await.kill();
}

/// A small disk in memory, mounted for one test.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// None where this process may not mount; the test then says so and ends.
    fn mount(options: &str) -> Option<SmallDisk> {
        let folder = TempDir::new().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(folder.path()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(SmallDisk { folder });
        }
        eprintln!("SKIPPED: this test mounts a small disk, and that needs root");
        None
    }

    fn remount(&self, options: &str) {
        let status = Command::new("mount")
            .args(["-o", &format!("remount,{options}")])
            .arg(self.folder.path())
            .status();
        assert!(status.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A disk that is still in use is given up with the machine.
        _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

#[tokio::test]
async fn a_read_only_folder_is_refused() {
    let Some(disk) = SmallDisk::mount("size=300m") else { return };
    let data = disk.folder.path().join("data");
    let server = Served::start(&data, free_port()).await;
    let id = submit(&server.url, &json!({"chunks": 1})).await.unwrap();
    assert!(server.stop().success());
    disk.remount("ro");
    assert_refused(&data, free_port(), "read-only");
    disk.remount("rw");
    let server = Served::start(&data, free_port()).await;
    assert_there(&server.url, &[id]).await;
    assert!(server.stop().success());
}

#[tokio::test]
async fn a_full_disk_stops_the_server_and_what_was_acknowledged_is_there_when_space_is() {
    let Some(disk) = SmallDisk::mount("size=300m") else { return };
    let data = disk.folder.path().join("data");
    let server = Served::start(&data, free_port()).await;
    let url = server.url.clone();
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(submit(&url, &json!({"chunks": 2})).await.unwrap());
    }
    let ballast = disk.folder.path().join("ballast");
    let filled =
        Command::new("dd").args(["if=/dev/zero", "bs=64k"]).arg(format!("of={}", ballast.display())).output();
    assert!(!filled.unwrap().status.success(), "dd stops when the disk is full");
    let payload = json!({"payload": "x".repeat(60_000)});
    let refused = loop {
        match submit(&url, &payload).await {
            Ok(id) => ids.push(id),
            Err(error) => break error,
        }
        assert!(ids.len() < 20_000, "a full disk is noticed");
    };
    println!("after {} submissions: {refused}", ids.len());
    assert!(!server.wait().success(), "the server does not go on without a disk");
    std::fs::remove_file(ballast).unwrap();
    let server = Served::start(&data, free_port()).await;
    assert_there(&server.url, &ids).await;
    assert!(server.stop().success());
}
