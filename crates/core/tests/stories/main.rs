//! Stories of the machine and of the leader's reserver, each told once from beginning to end.

mod changing;
mod leader;
mod machine;
mod reserver;
