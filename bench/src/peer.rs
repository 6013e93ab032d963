//! The peer: Opsqueue with its own server, client and defaults, driven by a program of its own.

use anyhow::Context;
use std::path::Path;
use tokio::process::Command;

/// Chunks a second of Opsqueue in a mode of its driver, with so many consumers and this backlog; none if its driver is not built.
pub(crate) async fn opsqueue(
    driver: &Path,
    mode: &str,
    consumers: usize,
    backlog: u64,
    seconds: u64,
) -> anyhow::Result<Option<f64>> {
    if !driver.exists() {
        eprintln!("{} is not built; the comparison is left out (make bench builds it)", driver.display());
        return Ok(None);
    }
    let output = Command::new(driver)
        .args(["--consumers", &consumers.to_string(), "--backlog", &backlog.to_string()])
        .args(["--seconds", &seconds.to_string(), "--mode", mode])
        .output()
        .await?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = String::from_utf8(output.stdout)?;
    let figures: serde_json::Value = serde_json::from_str(line.trim())?;
    let rate = figures["chunks_per_second"].as_f64().context("the driver prints chunks_per_second")?;
    Ok(Some(rate))
}
