//! Order: one totally ordered log feeds one deterministic machine.
//!
//! Reading order: [`Order`] is the handle. A proposal goes to the `batcher`, which stamps a group (`stamp`) and writes it
//! to `raft`; once the group is durable, `apply` feeds it to the machine, answers whoever waits (`waiting`, `postbox`) and tells the
//! leader's roles (`role`). Reads go through `read`. What goes wrong is in `fault`.
//!
//! Invariants
//! - The order is the same on all members; delivery is at least once; a restart plays the log's tail back.
//! - Nothing is acknowledged before its log entry is fsynced.
//! - Time and chance enter in `stamp` and nowhere else.

mod apply;
mod batcher;
mod fault;
mod limits;
mod options;
mod order;
mod postbox;
mod raft;
mod read;
mod role;
mod stamp;
#[cfg(test)]
mod stories;
mod waiting;

pub use fault::OrderFault;
pub use limits::COMMANDS_TOGETHER_MAX;
pub use options::OrderOptions;
pub use order::{Order, OrderCounters};
pub use postbox::open_postbox;
pub use raft::log_store::group_of;
pub use role::{RoleEvent, RoleSink};
