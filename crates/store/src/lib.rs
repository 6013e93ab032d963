//! Store: bytes that survive.
//!
//! Reading order: [`folder`] is where everything lies, [`log`] is what is fsynced, [`tables`] are the rows that the
//! machine keeps, [`snapshot`] is all rows in one file, [`objects`] is where chunks' bytes are, [`ranges`] is
//! what branches have committed, [`fault`] is what can go wrong, [`turns`] is how busy threads
//! give way, [`steps`] is where tests have the process end.
//!
//! Invariants
//! - What was acknowledged as durable is there after a crash, or opening refuses with a sentence that says where.
//! - Nothing of an unknown format is read as data.

pub mod fault;
pub mod folder;
pub mod log;
pub mod objects;
pub mod ranges;
pub mod snapshot;
pub mod steps;
pub mod tables;
pub mod turns;
