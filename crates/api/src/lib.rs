//! The wire: what goes through Windlass's doors, shared by server and clients.
//!
//! [`json`] is the HTTP interface, [`changes`] the part of it that changes submissions, [`lanes`] the part of single tasks,
//! [`explain`] and [`overview`] the parts for people who look at the queue, [`frames`] the WebSocket of consumers, [`problem`] the errors of both, [`objects`] the names of chunks' bytes in the object store, [`blob`] how
//! bytes look in JSON.

pub mod blob;
mod bounded;
pub mod branches;
pub mod changes;
pub mod explain;
pub mod frames;
pub mod json;
pub mod lanes;
mod numbers;
pub mod objects;
pub mod overview;
pub mod problem;
mod tasks;
pub mod weights;
