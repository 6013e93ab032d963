//! Format: the bytes of what raft stores: entries, the vote, the purged position, the applied position. CBOR arrays with
//! numbered fields.
//!
//! Invariants
//! - An entry's index is the log record's, and is not stored twice.
//! - An unknown kind of entry does not decode.
//! - A group costs fewer than 20 bytes on top of its own.

use super::{Entry, Group, LeaderId, LogId, Membership, StoredMembership, Vote};
use bytes::Bytes;
use minicbor::bytes::ByteSlice;
use minicbor::{Decode, Encode};
use openraft::vote::RaftLeaderId;
use openraft::{BasicNode, EntryPayload};
use std::collections::{BTreeMap, BTreeSet};

/// Why stored bytes were not read: a sentence for whoever has to mend it.
pub(crate) type Unreadable = String;

/// How far the log is applied, and who its members are by then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) applied: Option<LogId>,
    pub(crate) membership: StoredMembership,
}

#[derive(Encode, Decode)]
struct EntryBytes<'b> {
    #[n(0)]
    term: u64,
    #[n(1)]
    node: u64,
    #[b(2)]
    payload: PayloadBytes<'b>,
}

#[derive(Encode, Decode)]
enum PayloadBytes<'b> {
    #[n(0)]
    Blank,
    #[n(1)]
    Normal(#[b(0)] &'b ByteSlice),
    #[n(2)]
    Membership(#[n(0)] MembershipBytes),
}

#[derive(Encode, Decode)]
struct MembershipBytes {
    #[n(0)]
    voters: Vec<Vec<u64>>,
    #[n(1)]
    nodes: BTreeMap<u64, NodeBytes>,
}

#[derive(Encode, Decode)]
struct NodeBytes {
    #[n(0)]
    address: String,
}

#[derive(Encode, Decode)]
struct LogIdBytes {
    #[n(0)]
    term: u64,
    #[n(1)]
    node: u64,
    #[n(2)]
    index: u64,
}

#[derive(Encode, Decode)]
struct VoteBytes {
    #[n(0)]
    term: u64,
    #[n(1)]
    node: u64,
    #[n(2)]
    is_committed: bool,
}

#[derive(Encode, Decode)]
struct PositionBytes {
    #[n(0)]
    applied: Option<LogIdBytes>,
    #[n(1)]
    membership_at: Option<LogIdBytes>,
    #[n(2)]
    membership: MembershipBytes,
}

pub(crate) fn encode_entry(entry: &Entry) -> Bytes {
    let payload = match &entry.payload {
        EntryPayload::Blank => PayloadBytes::Blank,
        EntryPayload::Normal(group) => PayloadBytes::Normal((&group.0[..]).into()),
        EntryPayload::Membership(membership) => PayloadBytes::Membership(membership.into()),
    };
    let LeaderId { term, node_id: node } = entry.log_id.leader_id;
    encode(&EntryBytes { term, node, payload })
}

/// The entry with this index of raft's.
pub(crate) fn decode_entry(raft_index: u64, bytes: &Bytes) -> Result<Entry, Unreadable> {
    let stored: EntryBytes<'_> = decode("an entry", bytes)?;
    let payload = match stored.payload {
        PayloadBytes::Blank => EntryPayload::Blank,
        PayloadBytes::Normal(group) => EntryPayload::Normal(Group(bytes.slice_ref(group))),
        PayloadBytes::Membership(membership) => EntryPayload::Membership(membership.try_into()?),
    };
    let log_id = LogId::new(LeaderId::new(stored.term, stored.node), raft_index);
    Ok(Entry { log_id, payload })
}

pub(crate) fn encode_vote(vote: &Vote) -> Bytes {
    let LeaderId { term, node_id: node } = vote.leader_id;
    encode(&VoteBytes { term, node, is_committed: vote.committed })
}

pub(crate) fn decode_vote(bytes: &[u8]) -> Result<Vote, Unreadable> {
    let VoteBytes { term, node, is_committed } = decode("the vote", bytes)?;
    Ok(Vote { leader_id: LeaderId::new(term, node), committed: is_committed })
}

pub(crate) fn encode_log_id(log_id: &LogId) -> Bytes {
    encode(&LogIdBytes::from(log_id))
}

pub(crate) fn decode_log_id(bytes: &[u8]) -> Result<LogId, Unreadable> {
    decode::<LogIdBytes>("the purged position", bytes).map(LogId::from)
}

pub(crate) fn encode_position(position: &Position) -> Vec<u8> {
    encode(&PositionBytes {
        applied: position.applied.as_ref().map(LogIdBytes::from),
        membership_at: position.membership.log_id().as_ref().map(LogIdBytes::from),
        membership: position.membership.membership().into(),
    })
    .into()
}

pub(crate) fn decode_position(bytes: &[u8]) -> Result<Position, Unreadable> {
    let stored: PositionBytes = decode("the applied position", bytes)?;
    let membership_at = stored.membership_at.map(LogId::from);
    let membership = StoredMembership::new(membership_at, stored.membership.try_into()?);
    Ok(Position { applied: stored.applied.map(LogId::from), membership })
}

fn encode<T: Encode<()>>(value: &T) -> Bytes {
    minicbor::to_vec(value).expect("encoding into memory does not fail").into()
}

fn decode<'b, T: Decode<'b, ()>>(what: &str, bytes: &'b [u8]) -> Result<T, Unreadable> {
    minicbor::decode(bytes).map_err(|error| {
        format!(
            "{what} is not one that this build knows ({error}); start the build that wrote it, or a newer one"
        )
    })
}

impl From<&LogId> for LogIdBytes {
    fn from(log_id: &LogId) -> LogIdBytes {
        LogIdBytes { term: log_id.leader_id.term, node: log_id.leader_id.node_id, index: log_id.index }
    }
}

impl From<LogIdBytes> for LogId {
    fn from(stored: LogIdBytes) -> LogId {
        LogId::new(LeaderId::new(stored.term, stored.node), stored.index)
    }
}

impl From<&Membership> for MembershipBytes {
    fn from(membership: &Membership) -> MembershipBytes {
        let voters = membership.get_joint_config().iter().map(|set| set.iter().copied().collect()).collect();
        let node = |(id, node): (&u64, &BasicNode)| (*id, NodeBytes { address: node.addr.clone() });
        MembershipBytes { voters, nodes: membership.nodes().map(node).collect() }
    }
}

impl TryFrom<MembershipBytes> for Membership {
    type Error = Unreadable;

    fn try_from(stored: MembershipBytes) -> Result<Membership, Unreadable> {
        if stored.voters.is_empty() && stored.nodes.is_empty() {
            return Ok(Membership::default());
        }
        let voters: Vec<BTreeSet<u64>> = stored.voters.into_iter().map(BTreeSet::from_iter).collect();
        let nodes: BTreeMap<u64, BasicNode> =
            stored.nodes.into_iter().map(|(id, node)| (id, BasicNode::new(node.address))).collect();
        Membership::new(voters, nodes).map_err(|error| {
            format!("the stored members make no cluster: {error}; restore the data folder from a backup")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn log_id(index: u64) -> LogId {
        LogId::new(LeaderId::new(3, 1), index)
    }

    fn membership() -> Membership {
        let nodes = BTreeMap::from([(1, BasicNode::new("a:1")), (2, BasicNode::new("b:2"))]);
        Membership::new(vec![BTreeSet::from([1]), BTreeSet::from([1, 2])], nodes).unwrap()
    }

    fn entries() -> Vec<Entry> {
        let payloads = [
            EntryPayload::Blank,
            EntryPayload::Normal(Group(Bytes::from_static(b"turn"))),
            EntryPayload::Membership(membership()),
        ];
        payloads
            .into_iter()
            .zip(9..)
            .map(|(payload, index)| Entry { log_id: log_id(index), payload })
            .collect()
    }

    #[test]
    fn the_stored_bytes_are_forever() {
        let entries: Vec<String> = entries().iter().map(|entry| hex(&encode_entry(entry))).collect();
        assert_eq!(
            entries,
            [
                "830301820080",
                "83030182018144 7475726e".replace(' ', "").as_str(),
                "8303018202818282810182 0102a2018163613a31028163623a32".replace(' ', "").as_str(),
            ]
        );
        assert_eq!(hex(&encode_vote(&Vote { leader_id: LeaderId::new(3, 1), committed: true })), "830301f5");
        assert_eq!(hex(&encode_log_id(&log_id(9))), "83030109");
        let position = Position {
            applied: Some(log_id(9)),
            membership: StoredMembership::new(Some(log_id(0)), membership()),
        };
        assert_eq!(
            hex(&encode_position(&position)),
            "8383030109830301008282810182 0102a2018163613a31028163623a32".replace(' ', "")
        );
    }

    #[test]
    fn everything_reads_back_as_it_was() {
        for entry in entries() {
            assert_eq!(decode_entry(entry.log_id.index, &encode_entry(&entry)), Ok(entry));
        }
        let vote = Vote { leader_id: LeaderId::new(u64::MAX, 7), committed: false };
        assert_eq!(decode_vote(&encode_vote(&vote)), Ok(vote));
        assert_eq!(decode_log_id(&encode_log_id(&log_id(5))), Ok(log_id(5)));
        for position in [
            Position::default(),
            Position {
                applied: Some(log_id(9)),
                membership: StoredMembership::new(Some(log_id(0)), membership()),
            },
        ] {
            assert_eq!(decode_position(&encode_position(&position)), Ok(position));
        }
    }

    #[test]
    fn an_entry_of_a_kind_that_is_not_known_is_refused() {
        let refused = decode_entry(9, &Bytes::from_static(&[0x83, 3, 1, 0x82, 9, 0x80])).unwrap_err();
        assert!(refused.contains("start the build that wrote it"), "{refused}");
    }

    #[test]
    fn a_group_costs_fewer_than_twenty_bytes_on_top_of_its_own() {
        let group = Group(Bytes::from(vec![7; 1 << 20]));
        let leader_id = LeaderId::new(70_000, 3);
        let entry = Entry { log_id: LogId::new(leader_id, 1 << 40), payload: EntryPayload::Normal(group) };
        assert!(encode_entry(&entry).len() < (1 << 20) + 20);
    }
}
