//! branches: outputs are staged, then committed; readers see all of a commit or none of it.
//!
//! Reading order: `entries` (what a path leads to, and which paths there are).

pub mod entries;
