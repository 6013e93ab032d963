//! The batcher: commands that arrive together become one group, one log write and one fsync.
//!
//! It takes everything that waits, and waits for nothing itself but the end of the group before: a lone command goes out at
//! once, and under load the groups grow while the disk is busy. After a group of many proposals it also waits, for a moment, until
//! those who made them have their answers: mostly they have nothing new to propose before that, and the processors are better
//! used by their threads than by a smaller group.
//!
//! Invariants
//! - Commands are written in the order in which they were taken.
//! - A group's bytes are those of [`EntryGroup::to_bytes`](windlass_core::entry::EntryGroup::to_bytes).
//! - Every command that was taken is answered, if only with a fault.

use crate::fault::{Alarm, OrderFault};
use crate::limits::{
    ANSWERS_PATIENCE, BYTES_TOGETHER_MAX, COMMANDS_TOGETHER_MAX, GROUP_BYTES_MAX, GROUP_COMMANDS_MAX,
    GROUPS_IN_FLIGHT_MAX, PROPOSALS_MANY,
};
use crate::postbox::Caller;
use crate::raft::{Group, Node, Then};
use crate::stamp::{Stamp, Stamper};
use crate::waiting::Waiting;
use bytes::Bytes;
use minicbor::Encoder;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use windlass_core::entry::Command;
use windlass_core::ids::{ContinuationToken, Epoch, SenderId};

/// Where this node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Another node leads, or none.
    Following,
    /// Raft made this node the leader, and its leadership in the machine is on its way.
    Claiming,
    /// This node leads.
    Leading(Epoch),
}

/// Commands of one caller on their way into a group, encoded by it so that the one batcher only copies.
pub(crate) struct Proposal {
    pub(crate) commands: EncodedCommands,
    pub(crate) caller: Caller,
}

/// The stored bytes of some commands, one after the other. They go into one group.
pub(crate) struct EncodedCommands {
    bytes: Vec<u8>,
    /// Where each of them ends, but for the last.
    ends: Vec<usize>,
    /// How many small ones they are as much work as.
    weight: usize,
}

impl EncodedCommands {
    pub(crate) fn one(command: &Command) -> EncodedCommands {
        /// A completion of one chunk has 26 bytes, a task with a payload of a hundred 138.
        const USUAL_BYTES: usize = 256;
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        minicbor::encode(command, &mut bytes).expect("encoding into memory does not fail");
        EncodedCommands { bytes, ends: Vec::new(), weight: command.weight() }
    }

    /// Commands in parts that leave room for others in a group.
    pub(crate) fn in_parts(commands: &[Command]) -> Vec<EncodedCommands> {
        let mut parts: Vec<EncodedCommands> = Vec::new();
        for command in commands {
            let one = EncodedCommands::one(command);
            match parts.last_mut() {
                Some(part)
                    if part.weight + one.weight <= COMMANDS_TOGETHER_MAX
                        && part.bytes.len() + one.bytes.len() <= BYTES_TOGETHER_MAX =>
                {
                    part.ends.push(part.bytes.len());
                    part.bytes.extend_from_slice(&one.bytes);
                    part.weight += one.weight;
                }
                Some(_) | None => parts.push(one),
            }
        }
        parts
    }

    pub(crate) const fn len(&self) -> usize {
        self.ends.len() + 1
    }

    fn each(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        let ends = self.ends.iter().copied().chain([self.bytes.len()]);
        begins.zip(ends).map(|(begin, end)| &self.bytes[begin..end])
    }
}

/// Writes groups to the log.
#[derive(Clone)]
pub(crate) struct GroupWriter {
    pub(crate) node: Node,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) stamper: Arc<Mutex<Stamper>>,
    pub(crate) alarm: Alarm,
    pub(crate) counts: Arc<Counts>,
}

/// What was written.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) commands: AtomicU64,
    pub(crate) groups: AtomicU64,
}

impl GroupWriter {
    /// Stamps a group, writes it, and does not wait for it; the caller of each command is answered when it is applied.
    /// `claim` hears the token before anything is written.
    pub(crate) async fn write(
        &self,
        epoch: Epoch,
        group: Vec<Proposal>,
        permit: Option<OwnedSemaphorePermit>,
        claim: impl FnOnce(ContinuationToken),
    ) {
        let count = group.iter().map(|proposal| proposal.commands.len()).sum();
        let (commands, callers): (Vec<EncodedCommands>, Vec<(usize, Caller)>) = group
            .into_iter()
            .map(|Proposal { commands, caller }| {
                let count = commands.len();
                (commands, (count, caller))
            })
            .unzip();
        let first = self.waiting.register(callers);
        claim(first);
        let stamp = self.stamper().stamp();
        let bytes = encode_group(epoch, stamp, self.waiting.sender(), first, &commands);
        self.counts.commands.fetch_add(count as u64, Ordering::Relaxed);
        self.counts.groups.fetch_add(1, Ordering::Relaxed);

        let waiting = Arc::clone(&self.waiting);
        let then = Then(Box::new(move |result: openraft::raft::ClientWriteResult<_>| {
            drop(permit);
            if result.is_err() {
                waiting.fail(first, count, &OrderFault::NotLeader);
            }
        }));
        if self.node.client_write_ff(Group(bytes), Some(then)).await.is_err() {
            let fault = self.alarm.raised().unwrap_or(OrderFault::Closed);
            self.waiting.fail(first, count, &fault);
        }
    }

    pub(crate) fn stamper(&self) -> MutexGuard<'_, Stamper> {
        self.stamper.lock().expect("nothing panics while it stamps")
    }
}

/// Makes groups of commands.
pub(crate) struct Batcher {
    inbox: mpsc::Receiver<Proposal>,
    stop: watch::Receiver<bool>,
    standing: watch::Receiver<Standing>,
    writer: GroupWriter,
    in_flight: Arc<Semaphore>,
    /// Ends when the last group's callers have their answers, if they are many.
    answered: Option<oneshot::Receiver<Infallible>>,
    queue: VecDeque<Proposal>,
    arrived: Vec<Proposal>,
}

impl Batcher {
    pub(crate) fn new(
        inbox: mpsc::Receiver<Proposal>,
        stop: watch::Receiver<bool>,
        standing: watch::Receiver<Standing>,
        writer: GroupWriter,
    ) -> Batcher {
        let in_flight = Arc::new(Semaphore::new(GROUPS_IN_FLIGHT_MAX));
        let (queue, arrived) = (VecDeque::new(), Vec::new());
        Batcher { inbox, stop, standing, writer, in_flight, answered: None, queue, arrived }
    }

    /// Writes groups until the inbox is closed, then waits for those in flight.
    pub(crate) async fn run(mut self) {
        while self.run_once().await {}
        // All places free again: everything written is applied, or has failed.
        drop(self.in_flight.acquire_many(GROUPS_IN_FLIGHT_MAX as u32).await);
    }

    /// Takes what waits and writes one group; false when nothing will come any more.
    async fn run_once(&mut self) -> bool {
        if self.queue.is_empty() && !self.receive().await {
            return false;
        }
        let permit = Arc::clone(&self.in_flight).acquire_owned().await.expect("the places are never closed");
        self.await_answers().await;
        // While this waited for its place, others have come.
        while self.queue.len() < GROUP_COMMANDS_MAX
            && let Ok(proposal) = self.inbox.try_recv()
        {
            self.queue.push_back(proposal);
        }
        match self.leadership().await {
            Ok(epoch) => {
                let group = self.take_group();
                self.writer.write(epoch, group, Some(permit), |_| {}).await;
            }
            Err(fault) => {
                for proposal in self.queue.drain(..) {
                    proposal.caller.answer(Err(fault.clone()));
                }
            }
        }
        true
    }

    /// Waits for the next commands; false when none will come any more.
    async fn receive(&mut self) -> bool {
        let stopped = tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop), if !self.inbox.is_closed() => true,
            _ = self.inbox.recv_many(&mut self.arrived, GROUP_COMMANDS_MAX) => false,
        };
        if stopped {
            // What was sent before is still taken.
            self.inbox.close();
            self.inbox.recv_many(&mut self.arrived, GROUP_COMMANDS_MAX).await;
        }
        self.queue.extend(self.arrived.drain(..));
        !self.queue.is_empty()
    }

    /// The epoch to write under, once there is one.
    async fn leadership(&mut self) -> Result<Epoch, OrderFault> {
        let settled = self.standing.wait_for(|standing| *standing != Standing::Claiming).await;
        match settled.map(|standing| *standing) {
            Ok(Standing::Leading(epoch)) => Ok(epoch),
            // A node that cannot go on does not lead either, but its caller should hear why.
            Ok(Standing::Following | Standing::Claiming) => {
                Err(self.writer.alarm.raised().unwrap_or(OrderFault::NotLeader))
            }
            Err(_) => Err(self.writer.alarm.raised().unwrap_or(OrderFault::Closed)),
        }
    }

    /// Waits for a moment until the callers of the last group have their answers, if they are many and the next group has room.
    async fn await_answers(&mut self) {
        if let Some(answered) = self.answered.take()
            && self.queue.len() < GROUP_COMMANDS_MAX
        {
            // Nothing is ever said by it: it ends when nobody holds its other end.
            drop(tokio::time::timeout(ANSWERS_PATIENCE, answered).await);
        }
    }

    fn take_group(&mut self) -> Vec<Proposal> {
        let (mut bytes, mut weight) = (0, 0);
        let fitting = self.queue.iter().take_while(|proposal| {
            let is_first = weight == 0;
            bytes += proposal.commands.bytes.len();
            weight += proposal.commands.weight;
            is_first || (bytes <= GROUP_BYTES_MAX && weight <= GROUP_COMMANDS_MAX)
        });
        let count = fitting.count();
        let mut group: Vec<Proposal> = self.queue.drain(..count).collect();
        if count >= PROPOSALS_MANY {
            let (answering, answered) = oneshot::channel();
            let answering = Arc::new(answering);
            group.iter_mut().for_each(|proposal| proposal.caller.hold(Arc::clone(&answering)));
            self.answered = Some(answered);
        }
        group
    }
}

/// The bytes of a group whose commands are encoded already and whose tokens count up from `first`.
fn encode_group(
    epoch: Epoch,
    stamp: Stamp,
    sender: SenderId,
    first: ContinuationToken,
    commands: &[EncodedCommands],
) -> Bytes {
    let count: usize = commands.iter().map(EncodedCommands::len).sum();
    // At most 9 bytes for each number and list head.
    let length = 64 + 10 * count + commands.iter().map(|some| some.bytes.len()).sum::<usize>();
    let mut out = Encoder::new(Vec::with_capacity(length));
    let mut encode = || -> Result<(), minicbor::encode::Error<Infallible>> {
        out.array(5)?.encode(epoch)?.encode(stamp.at)?.u64(stamp.seed)?.encode(sender)?;
        out.array(count as u64)?;
        for (command, token) in commands.iter().flat_map(EncodedCommands::each).zip(first.0..) {
            out.array(2)?.encode(ContinuationToken(token))?;
            out.writer_mut().extend_from_slice(command);
        }
        Ok(())
    };
    encode().expect("encoding into memory does not fail");
    out.into_writer().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::batch::submissions::Submit;
    use windlass_core::entry::{EntryGroup, Lead, Sent};
    use windlass_core::ids::Shard;
    use windlass_core::lanes::settle::CompleteTasks;
    use windlass_core::lanes::tasks::TaskId;
    use windlass_core::time::At;

    #[test]
    fn commands_that_are_many_or_large_go_in_several_parts_and_one_that_is_too_large_goes_alone() {
        let lens = |commands: &[Command]| -> Vec<usize> {
            EncodedCommands::in_parts(commands).iter().map(EncodedCommands::len).collect()
        };
        let submit = |bytes| Command::Submit(Submit { opaque: vec![7; bytes].into(), ..Submit::new(1) });
        assert_eq!(lens(&[]), [0; 0]);
        assert_eq!(lens(&vec![submit(1); COMMANDS_TOGETHER_MAX + 1]), [COMMANDS_TOGETHER_MAX, 1]);
        assert_eq!(lens(&vec![submit(BYTES_TOGETHER_MAX / 3); 5]), [2, 2, 1]);
        assert_eq!(lens(&[submit(1), submit(2 * BYTES_TOGETHER_MAX), submit(1)]), [1, 1, 1]);
        let others = |count| vec![TaskId::first(); count];
        let complete =
            |count| Command::CompleteTasks(CompleteTasks { placed: Vec::new(), others: others(count) });
        let half = COMMANDS_TOGETHER_MAX / 2;
        assert_eq!(lens(&[complete(half), complete(half), complete(0)]), [2, 1], "each counts for its tasks");
    }

    #[test]
    fn a_group_of_encoded_commands_has_the_bytes_of_the_group() {
        let commands = vec![
            Command::Lead(Lead { shard: Shard::default() }),
            Command::Submit(Submit::new(1_000_000)),
            Command::Submit(Submit { idempotency_key: Some("key".into()), ..Submit::new(1) }),
        ];
        let mut encoded = vec![EncodedCommands::one(&commands[0])];
        encoded.extend(EncodedCommands::in_parts(&commands[1..]));
        assert_eq!(encoded.iter().map(EncodedCommands::len).collect::<Vec<_>>(), [1, 2]);
        let group = EntryGroup {
            epoch: Epoch(3),
            at: At::from_ms(1_750_000_000_000),
            seed: u64::MAX,
            sender: SenderId(77),
            commands: commands
                .into_iter()
                .zip(23..)
                .map(|(command, token)| Sent { token: ContinuationToken(token), command })
                .collect(),
        };
        let stamp = Stamp { at: group.at, seed: group.seed };
        let bytes = encode_group(group.epoch, stamp, group.sender, ContinuationToken(23), &encoded);
        assert_eq!(bytes, group.to_bytes());
        assert_eq!(EntryGroup::from_bytes(&bytes).unwrap(), group);
    }
}
