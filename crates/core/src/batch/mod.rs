//! batch: submissions of up to billions of chunks, and which chunk a consumer gets next.
//!
//! Reading order: `submissions` (what a submission is), `chunks` (what is known of its chunks), `state` (the rows in
//! memory and how they reach the tables), then the verbs: `submit`, `settle` (complete and fail), `end` (cancel and
//! retry-failed), `listing` (list, find, show, results); then the leader's memory: `strategy`, `ready`, `reserver`.

pub mod chunks;
pub(crate) mod end;
pub mod listing;
pub mod ready;
pub mod reserver;
pub mod settle;
pub mod state;
pub mod strategy;
pub mod submissions;
pub(crate) mod submit;
pub mod tokens;
