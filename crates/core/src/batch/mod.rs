//! batch: submissions of up to billions of chunks, and which chunk a consumer gets next.
//!
//! Reading order: `submissions` (what a submission is), `chunks` (what is known of its chunks), `state` (the rows in
//! memory and how they reach the tables), then the verbs: `submit`, `settle` (complete and fail), `change`, `end` (cancel
//! and retry-failed), `listing` (list, find, show, results), `select` (which ones a bulk verb is for); then the leader's
//! memory: `strategy`, `deck` (the ready chunks of one submission), `values`, `views` (every strategy in use, kept in order),
//! `ready`, `reserver`.

pub mod change;
pub mod chunks;
mod deck;
pub(crate) mod end;
pub mod listing;
pub mod ready;
pub mod reserver;
pub mod roster;
pub mod select;
pub mod settle;
pub mod state;
pub mod strategy;
pub mod submissions;
pub(crate) mod submit;
pub mod tokens;
pub mod values;
pub mod views;
pub mod weights;
