//! What whole-system tests share: a server in this process behind real sockets, and the real binary in a process of its
//! own.

pub mod binary;
pub mod branches;
pub mod here;
pub mod histories;
pub mod hurt;
pub mod lanes;

/// A number from the environment, or this one.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}
