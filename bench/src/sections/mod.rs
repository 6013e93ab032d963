//! The sections: what is measured, in what order.

mod backlog;
mod branches;
mod consumers;
mod lanes;
mod live;
mod load;
mod memory;
mod producers;
mod reserve;
mod served;
mod submit;

use crate::report::Figure;
use crate::{Options, Set};
use tempfile::TempDir;

const CONSUMERS: usize = 16;
const PIPELINE_DEPTH: u32 = 512;

/// The sections of each set, in order.
const fn sections_of(set: Set) -> &'static [&'static str] {
    match set {
        Set::Usual => &[
            "submit",
            "lone",
            "load",
            "backlog",
            "in-process",
            "served",
            "live",
            "consumers",
            "producers",
            "memory",
            "lanes",
            "branches",
        ],
        Set::Strategies => &["in-process", "served"],
        Set::TenMillion => &["ten-million"],
        Set::Lanes => &["lanes"],
        Set::Branches => &["branches"],
    }
}

/// Runs the sections of the set whose names the options select.
pub(crate) async fn run(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for name in sections_of(options.set).iter().filter(|name| name.contains(&options.only)) {
        eprintln!("section {name}");
        figures.extend(run_one(name, options).await?);
    }
    Ok(figures)
}

async fn run_one(name: &str, options: &Options) -> anyhow::Result<Vec<Figure>> {
    match name {
        "submit" => submit::many_chunks(options).await,
        "lone" => submit::lone(options).await,
        "load" => load::load(options).await,
        "backlog" => backlog::backlog(options).await,
        "in-process" => reserve::in_process(options),
        "served" => served::served(options).await,
        "live" => live::live(options).await,
        "consumers" => consumers::consumers(options).await,
        "producers" => producers::producers(options).await,
        "memory" => memory::memory(options).await,
        "lanes" => lanes::lanes(options).await,
        "branches" => branches::branches(options).await,
        "ten-million" => memory::ten_million(options).await,
        other => anyhow::bail!("there is no section {other}"),
    }
}

fn data_folder() -> anyhow::Result<TempDir> {
    // Beside the project, on the disk that users would use, and not in a /tmp that may be memory.
    Ok(tempfile::Builder::new().prefix("bench-data").tempdir_in("target")?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
