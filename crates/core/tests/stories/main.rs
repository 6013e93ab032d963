//! Stories of the machine and of the leader's reserver, each told once from beginning to end.

mod leader;
mod machine;
mod reserver;
