//! Roles: the leader's background work, each an agent that owns its state.

pub mod announcer;
pub mod dispatcher;
