//! Strategies against a naive evaluator of them, by chance; chance and fairness by numbers; and stories of each block.
//!
//! `naive` says what a strategy may give, `queue` is the leader's queue beside the plain truth, `lanes` those of it, `invented` makes up
//! strategies and submissions, `sequences` runs the seeds and says how to replay one that fails. Then the tests: `agreeing`
//! and `building` against the evaluator, `chance`, `fairness`, `stories`.

mod agreeing;
mod building;
mod chance;
mod fairness;
mod invented;
mod lanes;
mod naive;
mod queue;
#[path = "../model/sequences.rs"]
mod sequences;
mod stories;
