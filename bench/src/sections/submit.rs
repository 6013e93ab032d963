//! Submitting and completing by oneself.

use super::{data_folder, median};
use crate::Options;
use crate::load;
use crate::process::Server;
use crate::report::{Bar, Figure};
use std::io::Write;
use std::path::Path;
use std::time::Instant;
use windlass_client::ConsumeSocket;

/// Submitting many chunks against submitting one, alternately.
pub(crate) async fn many_chunks(options: &Options) -> anyhow::Result<Vec<Figure>> {
    const ROUNDS: usize = 300;
    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    let (mut few_ms, mut many_ms) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (chunks, times) in [(1, &mut few_ms), (1_000_000, &mut many_ms)] {
            let began = Instant::now();
            load::submit(&server.client, chunks).await?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    let mut written = Vec::new();
    for chunks in [1, 1_000_000] {
        let before = server.usage().await?;
        for _ in 0..ROUNDS {
            load::submit(&server.client, chunks).await?;
        }
        written.push((server.usage().await? - before).written_bytes);
    }
    server.stop()?;
    let (few, many) = (median(few_ms), median(many_ms));
    Ok(vec![
        Figure {
            what: "submit 1,000,000 chunks : submit 1 chunk, time".into(),
            value: many / few,
            unit: "×",
            bar: Bar::AtMost(2.0),
            behind: format!("{many:.3} ms : {few:.3} ms (medians of {ROUNDS})"),
        },
        Figure {
            what: "submit 1,000,000 chunks : submit 1 chunk, bytes written".into(),
            value: written[1] / written[0],
            unit: "×",
            bar: Bar::AtMost(2.0),
            behind: format!(
                "{:.0} : {:.0} bytes a submit",
                written[1] / ROUNDS as f64,
                written[0] / ROUNDS as f64
            ),
        },
    ])
}

/// A lone complete against a bare fsync of the same disk, alternately.
pub(crate) async fn lone(options: &Options) -> anyhow::Result<Vec<Figure>> {
    const ROUNDS: usize = 500;
    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    load::submit(&server.client, 1_000_000).await?;
    let mut socket = ConsumeSocket::connect(&server.client, "lone", None).await?.0;
    let mut file = bare_file(data.path())?;
    let (mut syncs, mut completes) = (Vec::new(), Vec::new());
    for request in 0..ROUNDS as u64 {
        let began = Instant::now();
        file.write_all(&[1; 128])?;
        file.sync_data()?;
        syncs.push(began.elapsed().as_secs_f64() * 1e6);
        let work = load::reserve_one(&mut socket, request, "\"OldestFirst\"").await?;
        let began = Instant::now();
        load::complete(&mut socket, request, work).await?;
        completes.push(began.elapsed().as_secs_f64() * 1e6);
    }
    server.stop()?;
    let (sync, complete) = (median(syncs), median(completes));
    Ok(vec![Figure {
        what: "a lone complete : a bare fsync".into(),
        value: complete / sync,
        unit: "×",
        bar: Bar::AtMost(3.0),
        behind: format!("{complete:.0} µs : {sync:.0} µs (medians of {ROUNDS})"),
    }])
}

/// A file whose blocks are written already, so that its fsync is as cheap as one can be.
fn bare_file(folder: &Path) -> anyhow::Result<std::fs::File> {
    use std::io::Seek;
    let mut file = std::fs::File::create(folder.join("bare"))?;
    file.write_all(&vec![0; 1 << 20])?;
    file.sync_all()?;
    file.rewind()?;
    Ok(file)
}
