//! branches: outputs are staged, then committed; readers see all of a commit or none of it.
//!
//! Reading order: `entries` (what a path leads to, and which paths there are), `state` (the branches in memory, and the rows of
//! areas, commits and requests), then the verbs: `open` (create, delete, reset), `staging` (addresses, put, remove), `commits`
//! (announce, perform, abort), `verify` (what must hold before a commit is visible), `outputs` (those of submissions), `sweep`
//! (rows of dropped areas), `listing` (what people see).

pub(crate) mod audit;
pub mod commits;
pub mod entries;
pub mod listing;
pub mod open;
pub mod outputs;
pub mod staging;
pub mod state;
pub(crate) mod sweep;
pub mod verify;
