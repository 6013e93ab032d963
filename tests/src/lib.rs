//! What whole-system tests share: a server in this process behind real sockets, and the real binary in a process of its
//! own.

pub mod binary;
pub mod here;
