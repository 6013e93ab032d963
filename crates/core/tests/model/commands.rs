//! Chooses entries by chance: mostly sensible ones, and every kind of late, repeated, broken and fenced one.

use crate::room::{Handed, Room};
use minicbor::bytes::ByteVec;
use windlass_core::batch::change::{Change, Changes};
use windlass_core::batch::roster::Enlist;
use windlass_core::batch::submissions::{Input, MetaValue, OnFailure, SubmissionState, Submit};
use windlass_core::batch::weights::Weigh;
use windlass_core::entry::{
    Cancel, Command, Complete, Done, Entry, Fail, FailedAttempt, Lead, Output, RetryFailed,
};
use windlass_core::ids::{Attempt, ChunkIndex, ContinuationToken, Epoch, SenderId, Shard, SubmissionId};
use windlass_core::limits::{
    CHUNKS_PER_BLOCK, DEDUP_WINDOW_MS, FAILURE_REASON_BYTES_MAX, INLINE_OUTPUT_BYTES_MAX,
};
use windlass_core::seeded::Seeded;
use windlass_core::time::At;

/// 2025-06-15T15:06:40Z, well within the time that ids can tell.
const BEGIN_MS: u64 = 1_750_000_000_000;

/// Chooses the next entry of a sequence.
#[derive(Debug)]
pub(crate) struct Chooser {
    chance: Seeded,
    at_ms: u64,
    tokens: u64,
    /// Whether this sequence has submissions of more than one block: they cost more, so most have none.
    is_large: bool,
    /// The last submit, to be delivered again.
    last_submit: Option<(SenderId, ContinuationToken, Submit)>,
}

impl Chooser {
    pub(crate) fn new(seed: u64) -> Chooser {
        let mut chance = Seeded::new(seed);
        let is_large = chance.below(16) == 0;
        Chooser { chance, at_ms: BEGIN_MS, tokens: 0, is_large, last_submit: None }
    }

    /// The next entry, given what the room knows so far.
    pub(crate) fn next(&mut self, room: &Room) -> Entry {
        self.pass_time();
        self.tokens += 1;
        let entry = Entry {
            epoch: room.epoch,
            at: At::from_ms(self.at_ms),
            seed: self.chance.draw(),
            sender: SenderId(1 + self.chance.below(2)),
            token: ContinuationToken(self.tokens),
            command: Command::Lead(Lead { shard: self.shard() }),
        };
        if room.epoch == Epoch(0) {
            return Entry { epoch: Epoch(1), ..entry };
        }
        match self.chance.below(100) {
            0..5 => Entry { epoch: Epoch(room.epoch.0 + 1 + self.small(2)), ..entry },
            // A leadership that has ended, or begins twice: fenced, whatever it asks.
            5..7 => Entry { epoch: Epoch(room.epoch.0 - self.small(2)), ..entry },
            7..10 => {
                let command = self.command(room);
                Entry { epoch: Epoch(room.epoch.0 - 1), command, ..entry }
            }
            10..13 if self.last_submit.is_some() => self.delivered_again(entry),
            _ => {
                let command = self.command(room);
                if let Command::Submit(submit) = &command {
                    self.last_submit = Some((entry.sender, entry.token, submit.clone()));
                }
                Entry { command, ..entry }
            }
        }
    }

    /// Time mostly passes a little, sometimes stands still or goes back, and rarely leaps past the dedup window.
    fn pass_time(&mut self) {
        self.at_ms = match self.chance.below(40) {
            0 => self.at_ms + DEDUP_WINDOW_MS + 1,
            1 => self.at_ms.saturating_sub(5_000),
            2..10 => self.at_ms,
            _ => self.at_ms + self.chance.below(3_000),
        };
    }

    /// The log may deliver twice: the same request again, or by a broken sender another one under the same name.
    fn delivered_again(&mut self, entry: Entry) -> Entry {
        let (sender, token, mut submit) = self.last_submit.clone().expect("the caller looked");
        if self.chance.below(3) == 0 {
            submit.priority += 1;
        }
        Entry { sender, token, command: Command::Submit(submit), ..entry }
    }

    fn command(&mut self, room: &Room) -> Command {
        let roll = self.chance.below(100);
        if room.submissions.is_empty() || roll < 18 {
            return Command::Submit(if self.chance.below(6) == 0 {
                self.broken_submit()
            } else {
                self.submit()
            });
        }
        let submission = self.target(room);
        let handed = room.submissions.get(&submission);
        match roll {
            18..49 => Command::Complete(Complete { submission, done: self.done(room, handed) }),
            49..76 => Command::Fail(Fail { submission, failed: self.failed(room, handed) }),
            76..80 => Command::Cancel(Cancel { submission }),
            80..88 => Command::Change(Change { submission, changes: self.changes() }),
            88..90 => {
                let mut sessions = || (0..self.chance.below(3)).map(|_| self.chance.below(6)).collect();
                let (joined, left) = (sessions(), sessions());
                Command::Enlist(Enlist { joined, left, leases_ms: self.chance.below(2) * 5_000 })
            }
            90..92 => {
                let weight = |chance: &mut Seeded| chance.below(5).checked_sub(1).map(|it| it as u32);
                let weights =
                    (0..self.chance.below(3)).map(|value| (value.to_string(), weight(&mut self.chance)));
                Command::Weigh(Weigh { field: "size".into(), weights: weights.collect() })
            }
            _ => {
                // Most submissions have nothing to retry: look for one that has.
                let is_failed = |it: &Handed| it.chunks.iter().any(|chunk| chunk.is_failed(it.round));
                let found = room.submissions.iter().rev().find(|(_, it)| is_failed(it)).map(|(id, _)| *id);
                let submission = found.filter(|_| self.chance.below(4) > 0).unwrap_or(submission);
                Command::RetryFailed(RetryFailed { submission })
            }
        }
    }

    fn submit(&mut self) -> Submit {
        let chunks = match self.chance.below(8) {
            0 if self.is_large => CHUNKS_PER_BLOCK - 1 + self.chance.below(CHUNKS_PER_BLOCK + 500),
            0 => 60 + self.chance.below(20),
            _ => 1 + self.chance.below(6),
        };
        let mut submit = Submit::new(chunks);
        submit.attempts_max = 1 + self.small(3);
        submit.retry_delay_ms = [0, 1_000, 400_000][self.pick(3)];
        submit.on_failure = [OnFailure::Stop, OnFailure::Continue][self.pick(2)];
        submit.priority = i64::from(self.small(3)) - 1;
        if self.chance.below(2) == 0 {
            let shade = ["red", "redder", "blue"][self.pick(3)];
            submit.metadata.insert("shade".into(), MetaValue::Text(shade.into()));
        }
        if self.chance.below(2) == 0 {
            submit.metadata.insert("size".into(), MetaValue::Integer(i64::from(self.small(3)) - 1));
            submit.metadata.insert("urgent".into(), MetaValue::Bool(self.chance.below(2) == 0));
        }
        submit.input = match self.chance.below(4) {
            0 => Input::Prefix("inputs/day=1".into()),
            1 if chunks == 1 => Input::Inline(ByteVec::from(vec![7; 9])),
            _ => Input::Nowhere,
        };
        if self.chance.below(3) == 0 {
            // Few keys and few differences: the same key comes back with the same payload and with others.
            submit = Submit::new(1 + self.chance.below(2));
            submit.on_failure = OnFailure::Continue;
            submit.attempts_max = 2;
            submit.idempotency_key = Some(format!("key {}", self.small(3)));
        }
        submit
    }

    fn broken_submit(&mut self) -> Submit {
        let mut submit = self.submit();
        match self.chance.below(6) {
            0 => submit.chunks = 0,
            1 => submit.attempts_max = 0,
            2 => submit.idempotency_key = Some(String::new()),
            3 => submit.input = Input::Prefix("../up".into()),
            4 => drop(submit.metadata.insert("white space".into(), MetaValue::Bool(true))),
            _ => {
                submit.chunks = 2;
                submit.input = Input::Inline(ByteVec::from(vec![1]));
            }
        }
        submit
    }

    /// Some of everything that can be different; sometimes nothing, and sometimes what cannot be.
    fn changes(&mut self) -> Changes {
        let mut changes = Changes::default();
        if self.chance.below(3) == 0 {
            changes.priority = Some(i64::from(self.small(3)) - 1);
        }
        if self.chance.below(3) == 0 {
            changes.paused = Some(self.chance.below(2) == 0);
        }
        let wanted = self.submit();
        if self.chance.below(3) == 0 {
            changes.metadata_set = wanted.metadata;
        }
        if self.chance.below(3) == 0 {
            let fields = ["shade", "size", "urgent", "never-there"].map(String::from);
            changes.metadata_remove.extend(fields.into_iter().filter(|_| self.chance.below(2) == 0));
            changes.metadata_remove.retain(|field| !changes.metadata_set.contains_key(field));
        }
        if self.chance.below(4) == 0 {
            changes.attempts_max = Some([wanted.attempts_max, 1_000][self.pick(2)]);
            changes.retry_delay_ms = Some(wanted.retry_delay_ms).filter(|_| self.chance.below(2) == 0);
            changes.on_failure = Some(wanted.on_failure).filter(|_| self.chance.below(2) == 0);
        }
        match self.chance.below(40) {
            0 => changes.attempts_max = Some(0),
            1 => changes.metadata_remove.push("white space".into()),
            2 => changes.metadata_remove.extend(changes.metadata_set.keys().next().cloned()),
            // Fields that are there already may make it too many.
            3 => {
                let fields = (0..29 + self.chance.below(5)).map(|n| (format!("f{n}"), MetaValue::Bool(true)));
                changes.metadata_set.extend(fields);
            }
            _ => {}
        }
        changes
    }

    /// Mostly a submission that runs; sometimes one that is over, sometimes one that never was.
    fn target(&mut self, room: &Room) -> SubmissionId {
        if self.chance.below(25) == 0 {
            return SubmissionId::from_u64(1 + self.chance.below(1 << 62))
                .expect("it is positive and below 2^63");
        }
        let wants_running = self.chance.below(6) > 0;
        let is_wanted = |it: &Handed| !wants_running || it.state == SubmissionState::Running;
        let wanted: Vec<_> =
            room.submissions.iter().filter(|(_, it)| is_wanted(it)).map(|(id, _)| *id).collect();
        let all: Vec<_> = room.submissions.keys().copied().collect();
        let from = if wanted.is_empty() { all } else { wanted };
        from[self.pick(from.len())]
    }

    fn done(&mut self, room: &Room, handed: Option<&Handed>) -> Vec<Done> {
        let mut chunks = self.chunks(handed);
        let rest =
            || handed.into_iter().flat_map(|it| (0..).zip(&it.chunks).map(move |chunk| (it.round, chunk)));
        if self.chance.below(8) == 0 {
            // The whole rest, so that blocks fill up and submissions end.
            let left = rest().filter(|(round, (_, chunk))| chunk.is_unsettled(*round));
            chunks = left.map(|(_, (index, _))| index).collect();
        } else if self.is_large && self.chance.below(4) == 0 {
            let first = CHUNKS_PER_BLOCK * self.chance.below(2);
            chunks = (first..first + CHUNKS_PER_BLOCK).collect();
        }
        let are_alike = self.chance.below(2) == 0;
        let alike = Attempt { epoch: room.epoch, nth: 0 };
        let is_many = chunks.len() > 100;
        let mut all = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let attempt = if are_alike || is_many { alike } else { self.attempt(room, handed, chunk) };
            let output = if is_many { Output::Stored } else { self.output() };
            all.push(Done { chunk: ChunkIndex(chunk), attempt, output, entries: None });
        }
        all
    }

    fn output(&mut self) -> Output {
        match self.chance.below(60) {
            0 => Output::Inline(ByteVec::from(vec![0; INLINE_OUTPUT_BYTES_MAX + 1])),
            1..20 => Output::Inline(ByteVec::from(self.chance.draw().to_be_bytes().to_vec())),
            20..40 => Output::Stored,
            _ => Output::Nothing,
        }
    }

    fn failed(&mut self, room: &Room, handed: Option<&Handed>) -> Vec<FailedAttempt> {
        let chunks = self.chunks(handed);
        let mut all = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let reason = match self.chance.below(60) {
                0 => "x".repeat(FAILURE_REASON_BYTES_MAX + 1),
                _ => format!("reason {}", self.chance.below(100)),
            };
            let attempt = self.attempt(room, handed, chunk);
            all.push(FailedAttempt { chunk: ChunkIndex(chunk), attempt, reason });
        }
        all
    }

    /// A few chunks: most exist, some twice, some beyond the end, some at a block's border; rarely none at all.
    fn chunks(&mut self, handed: Option<&Handed>) -> Vec<u64> {
        let total = handed.map_or(3, |it| it.chunks.len() as u64);
        let count = [0, 1, 1, 1, 2, 3, 4, 8][self.pick(8)];
        let mut chunks = Vec::new();
        for _ in 0..count {
            chunks.push(match self.chance.below(20) {
                0 => total + self.chance.below(3),
                1 => u64::MAX - self.chance.below(2),
                2 => CHUNKS_PER_BLOCK - 1 + self.chance.below(2),
                3..9 => self.chance.below(total.min(4)),
                _ => self.chance.below(total),
            });
        }
        chunks
    }

    /// An attempt at a chunk: one that was counted before, one older or newer than it, or any.
    fn attempt(&mut self, room: &Room, handed: Option<&Handed>, chunk: u64) -> Attempt {
        let known = handed.and_then(|it| it.chunks.get(usize::try_from(chunk).ok()?));
        let counted = known.and_then(|it| it.failure.as_ref().map(|failure| failure.attempt));
        let accepted = known.and_then(|it| it.done.as_ref().map(|done| done.0));
        match (counted.or(accepted), self.chance.below(6)) {
            (Some(before), 0) => before,
            (Some(before), 1) => Attempt { nth: before.nth.saturating_sub(1), ..before },
            (Some(before), 2..4) => Attempt { nth: before.nth + 1, ..before },
            _ => Attempt {
                epoch: Epoch(room.epoch.0 - self.small(2).min(room.epoch.0 - 1)),
                nth: u64::from(handed.map_or(0, |it| it.round)) << 32 | u64::from(self.small(3)),
            },
        }
    }

    fn shard(&mut self) -> Shard {
        Shard::new([0, 0, 0, 513][self.pick(4)]).expect("it fits ten bits")
    }

    fn small(&mut self, below: u32) -> u32 {
        u32::try_from(self.chance.below(u64::from(below))).expect("it is below a small number")
    }

    fn pick(&mut self, len: usize) -> usize {
        usize::try_from(self.chance.below(len as u64)).expect("it is below a length")
    }
}
