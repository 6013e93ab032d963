//! The lanes: fair, exact after every restart, and never stuck.
//!
//! `model` says naively what each entry gives, `oracles` what a fair lane shows, `leader` is the shell around a machine and
//! its desk; `chaos`, `fairness`, `pairs`, `shares` and `same_order` play by chance, `sequences` says how to replay a seed that
//! fails, `counted` how many hand-outs were watched; `cost` compares times; the rest are stories.

mod chaos;
mod cost;
mod counted;
mod fairness;
mod lag;
mod leader;
mod leaderships;
mod limits;
mod model;
mod oracles;
mod pairs;
mod regressions;
mod relevel;
mod same_order;
#[path = "../model/sequences.rs"]
mod sequences;
mod shared_rows;
mod shares;
mod stories;
mod tenants;
mod wait_bounds;
