//! The order on raft: one member or several, in this process.
//!
//! Reading order: [`mod@format`] for the stored bytes, [`log_store`] for the log, [`state_machine`] for what it feeds,
//! [`checkpoint`] for what lets the log be cut, [`claimant`] for how a leader of raft becomes a leader of the machine.
//!
//! Invariants
//! - Raft counts entries from 0, and everything else from 1: [`index_of`] is the only place that knows.

pub(crate) mod checkpoint;
pub(crate) mod claimant;
pub(crate) mod format;
pub(crate) mod log_store;
pub(crate) mod network;
pub(crate) mod state_machine;

use bytes::Bytes;
use openraft::raft::responder::Responder;
use openraft::{BasicNode, OptionalSend, RaftTypeConfig};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The types that raft is run with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Types;

impl RaftTypeConfig for Types {
    type D = Group;
    type R = ();
    type NodeId = u64;
    type Node = BasicNode;
    type Term = u64;
    type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Group, u64, BasicNode>;
    type Entry = openraft::Entry<Self::LeaderId, Self::Payload>;
    type AsyncRuntime = openraft::impls::TokioRuntime;
    type Responder<T>
        = Then<T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// The raft node of this process.
pub(crate) type Node = openraft::Raft<Types, state_machine::Feeder>;
pub(crate) type LogId = openraft::type_config::alias::LogIdOf<Types>;
pub(crate) type LeaderId = openraft::type_config::alias::LeaderIdOf<Types>;
pub(crate) type Vote = openraft::type_config::alias::VoteOf<Types>;
pub(crate) type Entry = openraft::type_config::alias::EntryOf<Types>;
pub(crate) type Membership = openraft::Membership<u64, BasicNode>;
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<Types>;

/// The index that everyone but raft knows an entry by.
pub(crate) const fn index_of(raft_index: u64) -> u64 {
    raft_index + 1
}

/// An encoded group of commands, which raft does not look into.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Group(pub(crate) Bytes);

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group of {} bytes", self.0.len())
    }
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Group {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Group, D::Error> {
        struct GroupVisitor;

        impl<'de> Visitor<'de> for GroupVisitor {
            type Value = Group;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the bytes of a group")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Group, E> {
                Ok(Group(Bytes::copy_from_slice(bytes)))
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Group, E> {
                Ok(Group(Bytes::from(bytes)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<Group, A::Error> {
                let mut all = Vec::with_capacity(bytes.size_hint().unwrap_or_default().min(4_096));
                while let Some(byte) = bytes.next_element()? {
                    all.push(byte);
                }
                Ok(Group(Bytes::from(all)))
            }
        }

        deserializer.deserialize_byte_buf(GroupVisitor)
    }
}

/// What to do when raft is done with a write.
pub(crate) struct Then<T>(pub(crate) Box<dyn FnOnce(T) + Send>);

impl<T: OptionalSend + 'static> Responder<Types, T> for Then<T> {
    fn on_complete(self, result: T) {
        (self.0)(result);
    }
}
