//! Files to branches and back.

use super::args::{Get, Put};
use crate::args::Global;
use crate::bars;
use crate::exit::{Exit, print_json};
use crate::table::counted;
use futures_util::{StreamExt, TryStreamExt, stream};
use indicatif::HumanBytes;
use std::io;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use windlass_client::branches::{AtQuery, StagedResponse};
use windlass_client::{Client, PutEntry};

/// Files that are put at the same time: each waits for its bytes to be synced.
const PUTS_AT_ONCE: usize = 8;

/// Larger files are sent as a stream, which is not repeated when the connection breaks.
const WHOLE_BYTES_MAX: u64 = 8 * 1_024 * 1_024;

pub(super) async fn put(global: &Global, client: &Client, put: Put) -> Result<(), Exit> {
    let how = PutEntry {
        content_type: put.content_type,
        metadata: put.metadata.into_iter().collect(),
        if_match: put.if_match,
        if_absent: put.if_absent,
    };
    let is_stdin = put.file.as_os_str() == "-";
    if !is_stdin && put.file.is_dir() {
        return put_folder(client, &put.branch, &put.file, put.path.as_deref().unwrap_or(""), &how).await;
    }
    let named = put.file.file_name().map(|name| name.to_string_lossy().into_owned()).filter(|_| !is_stdin);
    let path = put
        .path
        .or(named)
        .ok_or_else(|| Exit::Usage("say under which path to put what stdin gives".into()))?;
    let staged = if is_stdin {
        let mut bytes = Vec::new();
        let read = tokio::io::stdin().read_to_end(&mut bytes).await;
        read.map_err(|error| Exit::Refused(format!("cannot read stdin: {error}")))?;
        client.put_entry(&put.branch, &path, bytes.into(), &how).await?
    } else {
        put_file(client, &put.branch, &path, &put.file, &how).await?
    };
    if global.json {
        return print_json(&staged);
    }
    let size = HumanBytes(staged.size.unwrap_or(0));
    eprintln!("{path} ({size}) is staged; `windlass branches commit {}` makes it visible", put.branch);
    Ok(())
}

async fn put_file(
    client: &Client,
    branch: &str,
    path: &str,
    file: &Path,
    how: &PutEntry,
) -> Result<StagedResponse, Exit> {
    let cannot_read = |error: io::Error| Exit::Refused(format!("cannot read {}: {error}", file.display()));
    let opened = tokio::fs::File::open(file).await.map_err(cannot_read)?;
    let size = opened.metadata().await.map_err(cannot_read)?.len();
    if size <= WHOLE_BYTES_MAX {
        let bytes = tokio::fs::read(file).await.map_err(cannot_read)?;
        return Ok(client.put_entry(branch, path, bytes.into(), how).await?);
    }
    let pieces = stream::try_unfold(opened, |mut opened| async move {
        let mut piece = bytes::BytesMut::with_capacity(256 * 1_024);
        let read = opened.read_buf(&mut piece).await?;
        Ok::<_, io::Error>((read > 0).then(|| (piece.freeze(), opened)))
    });
    Ok(client.put_entry_stream(branch, path, size, pieces, how).await?)
}

async fn put_folder(
    client: &Client,
    branch: &str,
    folder: &Path,
    prefix: &str,
    how: &PutEntry,
) -> Result<(), Exit> {
    let files = files_below(folder)?;
    // A folder is put as one, whether or not its path ends with a slash.
    let prefix =
        if prefix.is_empty() || prefix.ends_with('/') { prefix.to_owned() } else { format!("{prefix}/") };
    let bar = bars::upload();
    let (mut count, mut bytes) = (0, 0);
    let puts = stream::iter(files).map(|(file, name)| {
        let path = format!("{prefix}{name}");
        async move { put_file(client, branch, &path, &file, how).await }
    });
    let mut puts = puts.buffer_unordered(PUTS_AT_ONCE);
    while let Some(staged) = puts.try_next().await? {
        count += 1;
        bytes += staged.size.unwrap_or(0);
        bar.set_message(format!("staged {}, {}", counted(count, "file"), HumanBytes(bytes)));
    }
    bar.finish_and_clear();
    let (files, them) = (counted(count, "file"), if count == 1 { "is staged" } else { "are staged" });
    let size = HumanBytes(bytes);
    eprintln!("{files} ({size}) {them}; `windlass branches commit {branch}` makes that visible");
    Ok(())
}

/// Every file below a folder, with its path there, slashes between.
pub(crate) fn files_below(folder: &Path) -> Result<Vec<(PathBuf, String)>, Exit> {
    let (mut files, mut folders) = (Vec::new(), vec![(folder.to_owned(), String::new())]);
    while let Some((folder, prefix)) = folders.pop() {
        let cannot_read =
            |error: io::Error| Exit::Refused(format!("cannot read {}: {error}", folder.display()));
        for entry in std::fs::read_dir(&folder).map_err(cannot_read)? {
            let entry = entry.map_err(cannot_read)?;
            let name = entry.file_name().into_string().map_err(|name| {
                Exit::Refused(format!("the name {} is no UTF-8 text, which a path must be", name.display()))
            })?;
            let path = format!("{prefix}{name}");
            if entry.path().is_dir() {
                folders.push((entry.path(), format!("{path}/")));
            } else {
                files.push((entry.path(), path));
            }
        }
    }
    files.sort();
    Ok(files)
}

pub(super) async fn get(client: &Client, get: Get) -> Result<(), Exit> {
    let at = AtQuery { at: get.at.text(), consistency: None };
    let mut body = client.get_entry_stream(&get.branch, &get.path, &at).await?;
    let mut out: Box<dyn tokio::io::AsyncWrite + Unpin> = match &get.output {
        None => Box::new(tokio::io::stdout()),
        Some(file) => {
            let created = tokio::fs::File::create_new(file).await;
            Box::new(
                created
                    .map_err(|error| Exit::Refused(format!("cannot create {}: {error}", file.display())))?,
            )
        }
    };
    let written = async {
        while let Some(piece) = body.stream.next().await {
            out.write_all(&piece?).await.map_err(cannot_write)?;
        }
        out.flush().await.map_err(cannot_write)
    };
    written.await
}

fn cannot_write(error: io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Exit::ReaderGone,
        _ => Exit::Refused(format!("cannot write: {error}")),
    }
}
