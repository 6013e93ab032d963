//! lanes: single tasks, shared fairly between keys by weight; a backlog bounded by disk, not by memory.
//!
//! Reading order: `levels` (a task's place), `tasks` (what is said of a task), `places` (the rows of its level, with its payload),
//! `groups` (many tasks in one row), `records` (what is said of a task, wherever it is kept), `state` (lanes, their ranks and keys in
//! memory, and how they reach the tables), `key_order` (each key's own tasks in order, where that is needed); then the verbs: `open`
//! (create and change lanes), `weigh` (weights of keys), `limiting`, `relevel`, `writer` (add), `settle` (complete and fail), `redrive`
//! (dead tasks once more), `delayed` (tasks that are not due yet), `acks` (how far everything is done), `listing` and `waits` (what people see); then
//! the leader's memory: `reader` (the next tasks of one rank), `queue` (who goes next), `desk` (all lanes).

pub mod acks;
pub(crate) mod audit;
pub mod delayed;
pub mod desk;
mod groups;
pub mod key_order;
pub mod levels;
pub mod limiting;
pub mod listing;
pub mod meters;
pub mod open;
pub mod places;
pub mod queue;
pub mod ranks;
pub mod reader;
mod records;
pub mod redrive;
pub mod relevel;
pub mod settle;
pub mod shares;
pub mod state;
pub mod tasks;
pub mod usage;
pub mod waits;
pub mod weigh;
pub mod writer;
