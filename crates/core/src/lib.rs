//! The core of Windlass: a pure, deterministic machine.
//!
//! No IO, clock, randomness, threads or async. Everything that changes comes in as an [`entry::Entry`] from one totally
//! ordered log; [`machine::Machine::apply`] decides, and the shell around it does.
//!
//! Reading order: [`ids`] and [`time`] (names), [`entry`] (what comes in and goes out), [`machine`] (the list of
//! commands), [`tables`] (the rows that are the truth), then the rooms: [`batch`], [`lanes`],
//! [`branches`].
//!
//! Invariants of the whole
//! - Same entries, same state, byte for byte, on every node.
//! - Rows are the truth; everything else in memory is derived from them.
//! - A refusal changes nothing.
//! - Every maximum is in [`limits`], with its reason.
//!
//! [`audit`] checks the rooms' invariants, after each apply in tests.

mod ascending;
pub mod audit;
pub mod batch;
pub mod branches;
mod dedup;
pub mod effect;
pub mod entry;
pub mod ids;
pub mod lanes;
pub mod limits;
pub mod machine;
pub mod outcome;
mod rows;
pub mod seeded;
pub mod tables;
pub mod time;
