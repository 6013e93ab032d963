//! Memory of pending submissions.

use super::data_folder;
use crate::Options;
use crate::load;
use crate::process::Server;
use crate::report::{Bar, Figure};
use std::time::Instant;
use windlass_client::{MetaValue, SubmitRequest};

/// One chunk, and two fields: 1,000 companies, 10,000 users.
fn small(number: u64) -> SubmitRequest {
    let user = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let user = user % 10_000;
    let field = |name: &str, value: String| (name.to_owned(), MetaValue::Text(value));
    SubmitRequest {
        chunks: Some(1),
        metadata: [field("company", format!("c{}", user / 10)), field("user", format!("u{user}"))].into(),
        ..SubmitRequest::default()
    }
}

/// Resident memory by the number of pending submissions.
pub(crate) async fn memory(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    let empty = server.resident_bytes()?;
    eprintln!("  empty {:.1} MiB", empty / 1048576.0);
    let began = Instant::now();
    for nth in 0..10 {
        load::submit_each(&server.client, nth * 100_000..(nth + 1) * 100_000, small).await?;
        eprintln!(
            "  {} {:.1} MiB {:.1}s {}",
            nth + 1,
            server.resident_mib()?,
            began.elapsed().as_secs_f64(),
            server.details()?
        );
    }
    let full = server.resident_bytes()?;
    server.stop()?;
    for _ in 0..2 {
        let (server, took) = Server::start(&options.windlass, data.path()).await?;
        eprintln!("  restarted in {took:?}: {:.1} MiB {}", server.resident_mib()?, server.details()?);
        let mut socket = windlass_client::ConsumeSocket::connect(&server.client, "x", None).await?.0;
        let work = load::reserve_one(&mut socket, 1, "\"Random\"").await?;
        eprintln!("  with Random view: {:.1} MiB {}", server.resident_mib()?, server.details()?);
        load::complete(&mut socket, 2, work).await?;
        server.stop()?;
    }
    Ok(vec![Figure {
        what: "memory per pending submission".into(),
        value: (full - empty) / 1e6,
        unit: "bytes",
        bar: Bar::AtMost(300.0),
        behind: String::new(),
    }])
}
