//! Checks: a command or an HTTP call that is asked before a commit becomes visible. The server's settings name them, so that
//! who submits work cannot have the server run or call what they like.

use crate::limits::{CHECK_OUTPUT_BYTES, CHECK_TIMEOUT};
use crate::service::Service;
use crate::service::commits::commit_info_of;
use serde::{Deserialize, Serialize};
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use windlass_core::branches::commits::Commit;
use windlass_core::branches::entries::Digest;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Check {
    /// A program and its arguments. It gets the commit as JSON on its standard input, and agrees with the exit code 0.
    Command(Vec<String>),
    /// An address. It gets the commit as a JSON body by POST, and agrees with a status of 200 to 299.
    Url(String),
}

/// Asks a check about a commit; if it does not agree, why.
pub(super) async fn ask(service: &Service, name: &str, id: Digest, commit: &Commit) -> Option<String> {
    let Some(check) = service.config().checks.get(name) else {
        return Some(format!("the server's settings name no check `{name}`"));
    };
    let info = commit_info_of(id, commit.clone());
    let body = serde_json::to_vec(&info).expect("a commit is made of plain values");
    let asked = async {
        match check {
            Check::Command(command) => run(command, body).await,
            Check::Url(url) => call(url, body, id).await,
        }
    };
    match tokio::time::timeout(CHECK_TIMEOUT, asked).await {
        Ok(Ok(())) => None,
        Ok(Err(why)) => Some(format!("the check `{name}` does not agree: {why}")),
        Err(_) => Some(format!("the check `{name}` did not answer within {} s", CHECK_TIMEOUT.as_secs())),
    }
}

async fn run(command: &[String], body: Vec<u8>) -> Result<(), String> {
    let (program, arguments) = command.split_first().ok_or("no program is named")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{program:?} could not be started: {error}"))?;
    let mut stdin = child.stdin.take().expect("its standard input is a pipe");
    // A program may agree without reading.
    tokio::spawn(async move { drop(stdin.write_all(&body).await) });
    let output = child.wait_with_output().await.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stderr, output.stdout].concat();
    Err(format!("{} ({})", text_of(&said), output.status))
}

async fn call(url: &str, body: Vec<u8>, id: Digest) -> Result<(), String> {
    let request = reqwest::Client::new().post(url).header("content-type", "application/json");
    // The same commit asked twice, by two leaders, can be told by its id.
    let response = request.header("idempotency-key", id.to_string()).body(body).send().await;
    let response = response.map_err(|error| format!("{url} could not be asked: {error}"))?;
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    let said = response.bytes().await.unwrap_or_default();
    Err(format!("{} ({status})", text_of(&said)))
}

/// The beginning of what was said, as text.
fn text_of(said: &[u8]) -> String {
    let said = &said[..said.len().min(CHECK_OUTPUT_BYTES)];
    String::from_utf8_lossy(said).trim().to_owned()
}
