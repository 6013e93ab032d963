//! The Librarian: brings what is said of running submissions to hand, in the background, when a leadership begins and when
//! submissions come in. Without it everything works, only that whoever hands out a submission looks it up on disk.

use crate::service::Service;
use std::time::Duration;

/// Submissions at a time: about a millisecond of work, after which others on the thread have their turn.
const SOME: usize = 256;
/// Submissions that come in meanwhile are brought together.
const PAUSE: Duration = Duration::from_millis(100);

/// Brings what there is, again and again.
pub(crate) async fn run(service: Service) {
    loop {
        service.abouts().news().await;
        while run_once(&service) {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Brings some; false if there is no more.
fn run_once(service: &Service) -> bool {
    service.abouts().bring_some(service.order(), SOME)
}
