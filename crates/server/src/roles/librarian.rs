//! The Librarian: brings what is said of running submissions beside their metadata to hand, in the background, when a leadership
//! begins, when submissions come in, and when there is room again. Without it everything works, only that whoever hands out such a
//! submission looks it up on disk.

use crate::service::Service;
use std::time::Duration;
use tokio::task::{JoinError, spawn_blocking};

/// Submissions at a time: about a millisecond of work.
const SOME: usize = 256;
/// Submissions that come in meanwhile are brought together.
const PAUSE: Duration = Duration::from_millis(100);
/// How long to wait after a read that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Brings what there is, again and again.
pub(crate) async fn run(service: Service) {
    loop {
        service.abouts().news().await;
        loop {
            match run_once(&service).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "what is said of submissions could not be read; it is tried again");
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Brings some; false if there is no more, or no room. Fails if the tables cannot be read.
async fn run_once(service: &Service) -> Result<bool, JoinError> {
    let service = service.clone();
    spawn_blocking(move || service.abouts().bring_some(service.order(), SOME)).await
}
