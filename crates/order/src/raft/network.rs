//! The network between members. A cluster of one has none: whoever is named is told to be unreachable, which raft takes
//! as a reason to try again later.
//!
//! The transport of a cluster of several goes here: [`Peers`] makes a [`Peer`] for each other member.

use super::Types;
use super::checkpoint::Contents;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::{SnapshotOf, VoteOf};
use openraft::{BasicNode, OptionalSend, RaftNetworkFactory, RaftNetworkV2};

/// The other members.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Peers;

/// One other member.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    node: u64,
    address: String,
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, node: u64, at: &BasicNode) -> Peer {
        Peer { node, address: at.addr.clone() }
    }
}

impl Peer {
    fn unreachable(&self) -> Unreachable<Types> {
        Unreachable::from_string(format!(
            "node {} at {:?} cannot be reached: this build runs clusters of one node",
            self.node, self.address
        ))
    }
}

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = Contents;

    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn vote(
        &mut self,
        _request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn full_snapshot(
        &mut self,
        _vote: VoteOf<Types>,
        _snapshot: SnapshotOf<Types, Contents>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(self.unreachable().into())
    }
}
