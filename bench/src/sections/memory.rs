//! Memory of pending submissions, and ten million of them.

use super::data_folder;
use crate::process::Server;
use crate::report::{Bar, Figure};
use crate::{Options, filler, load};
use std::time::Instant;
use windlass_client::{ConsumeSocket, MetaValue, SubmitRequest};

const SUBMISSIONS: u64 = 1_000_000;
const TEN_MILLION: u64 = 10_000_000;

/// One chunk and two fields: 1,000 companies of 10 users.
fn request(number: u64) -> SubmitRequest {
    let user = windlass_core::seeded::Seeded::new(number).below(10_000);
    let field = |name: &str, value: String| (name.to_owned(), MetaValue::Text(value));
    SubmitRequest {
        chunks: Some(1),
        metadata: [field("company", format!("c{}", user / 10)), field("user", format!("u{user}"))].into(),
        ..SubmitRequest::default()
    }
}

fn mib(bytes: f64) -> f64 {
    bytes / 1_048_576.0
}

/// Resident memory for each of 10^6 pending submissions.
pub(crate) async fn memory(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    let empty = server.resident_bytes()?;
    let url = server.client.server();
    filler::submit_each(url, 0..SUBMISSIONS / 2, request).await?;
    let half = server.resident_bytes()?;
    filler::submit_each(url, SUBMISSIONS / 2..SUBMISSIONS, request).await?;
    server.settle().await?;
    let full = server.resident_bytes()?;
    server.stop()?;
    let (server, restart) = Server::start(&options.windlass, data.path()).await?;
    server.settle().await?;
    let restarted = server.resident_bytes()?;
    let with_view = with_view(&server).await?;
    server.stop()?;
    let each = |bytes: f64| bytes / SUBMISSIONS as f64;
    Ok(vec![
        Figure {
            what: "memory for each of 10^6 pending submissions with two fields".into(),
            value: each(full - empty),
            unit: "bytes",
            bar: Bar::AtMost(300.0),
            behind: format!(
                "{:.0} MiB, less the {:.0} MiB of the empty server; the caches and memtables of the tables, which do not \
                 grow with the queue, are in it: the second half took {:.0} bytes each",
                mib(full),
                mib(empty),
                2.0 * each(full - half)
            ),
        }
        .told(),
        Figure {
            what: "the same after a restart".into(),
            value: each(restarted - empty),
            unit: "bytes",
            bar: Bar::AtMost(300.0),
            behind: format!("{:.0} MiB; ready in {:.1} s", mib(restarted), restart.as_secs_f64()),
        }
        .told(),
        Figure {
            what: "and with the view of Random in use, besides".into(),
            value: each(with_view - restarted),
            unit: "bytes",
            bar: Bar::None,
            behind: format!("{:.0} MiB", mib(with_view)),
        }
        .told(),
    ])
}

/// Resident memory once a consumer has asked for a random chunk.
async fn with_view(server: &Server) -> anyhow::Result<f64> {
    let mut socket = ConsumeSocket::connect(&server.client, "random", None).await?.0;
    let work = load::reserve_one(&mut socket, 1, &load::as_json("Random")?).await?;
    load::complete(&mut socket, 2, work).await?;
    server.resident_bytes()
}

/// 10^7 pending submissions: memory, and the time of a restart.
pub(crate) async fn ten_million(options: &Options) -> anyhow::Result<Vec<Figure>> {
    const STEP: u64 = TEN_MILLION / 10;
    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    let empty = server.resident_bytes()?;
    let began = Instant::now();
    for from in (0..TEN_MILLION).step_by(STEP as usize) {
        filler::submit_each(server.client.server(), from..from + STEP, request).await?;
        eprintln!(
            "  {} submissions after {:.0} s, {:.0} MiB",
            from + STEP,
            began.elapsed().as_secs_f64(),
            server.resident_mib()?
        );
    }
    let took = began.elapsed().as_secs_f64();
    server.settle().await?;
    let full = server.resident_bytes()?;
    server.stop()?;
    let (server, restart) = Server::start(&options.windlass, data.path()).await?;
    server.settle().await?;
    let restarted = server.resident_bytes()?;
    let status = server.client.status().await?;
    anyhow::ensure!(status.chunks_ready == TEN_MILLION, "every chunk is ready: {status:?}");
    let began = Instant::now();
    let with_view = with_view(&server).await?;
    let first = began.elapsed();
    server.stop()?;
    Ok(vec![
        Figure {
            what: "10^7 pending submissions: restart to ready".into(),
            value: restart.as_secs_f64(),
            unit: "s",
            bar: Bar::AtMost(60.0),
            behind: format!(
                "the first reserve, which builds the view of Random, in {:.1} s",
                first.as_secs_f64()
            ),
        }
        .told(),
        Figure {
            what: "10^7 pending submissions: memory for each".into(),
            value: (full - empty) / TEN_MILLION as f64,
            unit: "bytes",
            bar: Bar::AtMost(300.0),
            behind: format!(
                "{:.0} MiB before the restart, {:.0} MiB after it, {:.0} MiB with the view of Random",
                mib(full),
                mib(restarted),
                mib(with_view)
            ),
        }
        .told(),
        Figure {
            what: "10^7 submits, 256 at a time".into(),
            value: TEN_MILLION as f64 / took,
            unit: "submits/s",
            bar: Bar::None,
            behind: format!("{took:.0} s"),
        }
        .told(),
    ])
}
