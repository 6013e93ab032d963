//! The naive model of the lanes: it never forgets a key, and knows nothing of readers, buffers and ack levels.

mod levels;

use std::collections::BTreeMap;
use windlass_core::entry::{Applied, Command, Effect, Entry, Fail, FailedAttempt, Outcome, Refusal, Settled};
use windlass_core::ids::Attempt;
use windlass_core::ids::{ContinuationToken, SenderId};
use windlass_core::lanes::acks::Gap;
use windlass_core::lanes::key_order::KeyOrder;
use windlass_core::lanes::levels::{LaneNumber, Level, RankName, Weight, tenant_of};
use windlass_core::lanes::limiting::LaneLimits;
use windlass_core::lanes::open::SetLane;
use windlass_core::lanes::ranks::RankRow;
use windlass_core::lanes::redrive::Redrive;
use windlass_core::lanes::relevel::UnderWay;
use windlass_core::lanes::state::{LaneRow, LanesState};
use windlass_core::lanes::tasks::{AddTasks, NewTask, Standing, TaskId};
use windlass_core::lanes::weigh::WeighKeys;
use windlass_core::limits::{RETRY_DELAY_MS_MAX, TASKS_DUE_PER_COMMAND_MAX};
use windlass_core::time::At;

/// What is known of a task that is not done.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) rank: RankName,
    pub(crate) key: String,
    pub(crate) weight: Weight,
    pub(crate) standing: Standing,
    pub(crate) failed: Option<Attempt>,
    /// It is not in the order in which it was added any more, or never was.
    pub(crate) was_delayed: bool,
    /// Its place was charged to its key.
    pub(crate) is_charged: bool,
    /// How far behind it the next one of its key stands; 0 if it was charged before.
    pub(crate) stride: u32,
    failures: u32,
    attempts_max: u32,
    retry_delay_ms: u64,
}

#[derive(Debug)]
struct KnownLane {
    row: LaneRow,
}

/// A tenant while it has tasks, or its turn is not over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct KnownTenant {
    time: u64,
    acked: Option<Level>,
    gap: Option<Gap>,
    finish: u64,
    waiting: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    at: At,
    lanes: BTreeMap<String, KnownLane>,
    pub(crate) tasks: BTreeMap<TaskId, Known>,
    ranks: BTreeMap<RankName, RankRow>,
    finishes: BTreeMap<(RankName, String), u64>,
    relevels: BTreeMap<(RankName, String), UnderWay>,
    tenants: BTreeMap<(RankName, String), KnownTenant>,
    replies: BTreeMap<String, (String, Vec<NewTask>, Outcome)>,
    /// The newest token of each sender of an add without a key.
    sent: BTreeMap<SenderId, ContinuationToken>,
}

impl Model {
    /// What applying the entry should give. Of ids the model knows only that they grow.
    pub(crate) fn apply(&mut self, entry: &Entry, gave: &Applied) -> Applied {
        self.at = self.at.max(entry.at);
        match &entry.command {
            Command::Lead(_) => answered(Outcome::Led { epoch: entry.epoch }),
            Command::SetLane(it) => self.set_lane(it),
            Command::AddTasks(it) => self.add(entry, it, gave),
            Command::Ack(it) => self.ack(it),
            Command::WeighKeys(it) => self.weigh(it),
            Command::LimitLane(it) => self.limit(it),
            Command::Relevel(it) => self.relevel(it),
            Command::OrderKeys(it) => self.order_keys(it, gave),
            Command::ReleaseTasks => self.release(),
            Command::Redrive(it) => self.redrive(it),
            Command::Complete(it) => {
                let mut effects = Vec::new();
                let settled = it.done.iter().map(|_| self.complete(it.submission, &mut effects)).collect();
                Applied { outcome: Outcome::Settled(settled), effects }
            }
            Command::CompleteTasks(it) => {
                let mut effects = Vec::new();
                let placed =
                    it.placed.iter().flat_map(|of_queue| of_queue.levels.iter().map(|level| level.id));
                let all = placed.chain(it.others.iter().copied());
                let settled = all.map(|id| self.complete(id, &mut effects)).collect();
                Applied { outcome: Outcome::Settled(settled), effects }
            }
            Command::Fail(Fail { submission, failed }) => {
                let mut effects = Vec::new();
                let settled = failed.iter().map(|one| self.fail(*submission, one, &mut effects)).collect();
                Applied { outcome: Outcome::Settled(settled), effects }
            }
            other => panic!("no lane knows {other:?}"),
        }
    }

    fn set_lane(&mut self, it: &SetLane) -> Applied {
        if !self.lanes.contains_key(&it.name) && !it.may_create {
            return Applied::refused(Refusal::LaneUnknown { lane: it.name.clone() });
        }
        let number = LaneNumber(self.lanes.len() as u32 + 1);
        let row = LaneRow {
            number,
            created_at: self.at,
            is_paused: false,
            is_draining: false,
            weights: BTreeMap::new(),
            limits: LaneLimits::default(),
            key_order: KeyOrder::Absent,
        };
        let KnownLane { row } = self.lanes.entry(it.name.clone()).or_insert(KnownLane { row });
        row.is_paused = it.is_paused.unwrap_or(row.is_paused);
        row.is_draining = it.is_draining.unwrap_or(row.is_draining);
        lane_set(&it.name, row)
    }

    fn add(&mut self, entry: &Entry, it: &AddTasks, gave: &Applied) -> Applied {
        if let Some(problem) = it.problem() {
            return Applied::refused(Refusal::Malformed { problem });
        }
        let key = &it.idempotency_key;
        if key.is_none() && self.sent.get(&entry.sender) >= Some(&entry.token) {
            return Applied::refused(Refusal::Repeated);
        }
        if let Some((lane, tasks, outcome)) = key.as_ref().and_then(|key| self.replies.get(key)) {
            let is_same = *lane == it.lane && *tasks == it.tasks;
            let other = || Outcome::Refused(Refusal::IdempotencyKeyReused);
            return answered(if is_same { outcome.clone() } else { other() });
        }
        let Some(lane) = self.lanes.get(&it.lane) else {
            return Applied::refused(Refusal::LaneUnknown { lane: it.lane.clone() });
        };
        if lane.row.is_draining {
            return Applied::refused(Refusal::LaneDraining { lane: it.lane.clone() });
        }
        let number = lane.row.number;
        for handed_out in &it.handed_out {
            self.hear(RankName { lane: number, priority: handed_out.priority }, handed_out);
        }
        let Outcome::TasksAdded { tasks: ids } = &gave.outcome else { panic!("{:?}", gave.outcome) };
        assert_eq!(ids.iter().count(), it.tasks.len());
        assert!(ids.iter().is_sorted());
        let effects = ids.iter().zip(&it.tasks).map(|(id, new)| self.add_one(number, id, new)).collect();
        let outcome = gave.outcome.clone();
        match key.clone() {
            Some(key) => drop(self.replies.insert(key, (it.lane.clone(), it.tasks.clone(), outcome.clone()))),
            None => drop(self.sent.insert(entry.sender, entry.token)),
        }
        Applied { outcome, effects }
    }

    fn add_one(&mut self, lane: LaneNumber, id: TaskId, new: &NewTask) -> Effect {
        let rank = RankName { lane, priority: new.priority };
        let until = new.not_before.filter(|until| *until > self.at);
        self.row(rank).added += 1;
        let known = Known {
            rank,
            key: new.key.clone(),
            weight: new.weight,
            standing: Standing::Dead,
            failed: None,
            was_delayed: until.is_some(),
            is_charged: true,
            stride: 0,
            failures: 0,
            attempts_max: new.attempts_max,
            retry_delay_ms: new.retry_delay_ms,
        };
        assert!(self.tasks.insert(id, known).is_none(), "an id is given once");
        match until {
            Some(until) => self.delay(id, until),
            None => self.charge_and_place(id),
        }
    }

    fn delay(&mut self, id: TaskId, until: At) -> Effect {
        self.known(id).standing = Standing::Delayed { until };
        let rank = self.known(id).rank;
        self.row(rank).delayed += 1;
        Effect::TaskDelayed { until }
    }

    fn complete(&mut self, id: TaskId, effects: &mut Vec<Effect>) -> Settled {
        let Some(known) = self.tasks.get(&id).cloned() else {
            effects.push(Effect::TaskGone { task: id });
            return Settled::AlreadyDone;
        };
        effects.push(match known.standing {
            Standing::Waiting { pass } => self.take_out(id, pass, true),
            Standing::Delayed { .. } => {
                self.row(known.rank).delayed -= 1;
                Effect::TaskGone { task: id }
            }
            Standing::Dead => {
                self.row(known.rank).dead -= 1;
                Effect::TaskGone { task: id }
            }
        });
        self.row(known.rank).done += 1;
        self.tasks.remove(&id);
        Settled::Accepted
    }

    fn fail(&mut self, id: TaskId, it: &FailedAttempt, effects: &mut Vec<Effect>) -> Settled {
        let Some(known) = self.tasks.get(&id).cloned() else {
            effects.push(Effect::TaskGone { task: id });
            return Settled::AlreadyDone;
        };
        let Standing::Waiting { pass } = known.standing else { return Settled::AlreadyFailed };
        if known.failed.is_some_and(|before| before >= it.attempt) {
            return Settled::AlreadyFailed;
        }
        effects.push(self.take_out(id, pass, false));
        let failures = known.failures + 1;
        let now = self.known(id);
        (now.failures, now.failed) = (failures, Some(it.attempt));
        (now.was_delayed, now.is_charged) = (true, false);
        if failures < known.attempts_max {
            let delay = (0..failures - 1).fold(known.retry_delay_ms, |delay, _| delay * 2);
            effects.push(self.delay(id, self.at.after_ms(delay.min(RETRY_DELAY_MS_MAX))));
        } else {
            now.standing = Standing::Dead;
            self.row(known.rank).dead += 1;
        }
        Settled::Accepted
    }

    fn delayed(&self) -> impl Iterator<Item = (At, TaskId)> {
        self.tasks.iter().filter_map(|(id, known)| match known.standing {
            Standing::Delayed { until } => Some((until, *id)),
            Standing::Waiting { .. } | Standing::Dead => None,
        })
    }

    /// When the first delayed task is due.
    pub(crate) fn next_due(&self) -> Option<At> {
        self.delayed().min().map(|(until, _)| until)
    }

    fn release(&mut self) -> Applied {
        let mut due: Vec<_> = self.delayed().filter(|(until, _)| *until <= self.at).collect();
        due.sort_unstable();
        due.truncate(TASKS_DUE_PER_COMMAND_MAX);
        let mut effects = Vec::new();
        for (_, id) in &due {
            let Known { rank, failures, .. } = *self.known(*id);
            self.row(rank).delayed -= 1;
            let now = self.time_around(*id);
            effects.push(if failures > 0 { self.place(*id, now, 0) } else { self.charge_and_place(*id) });
        }
        effects.extend(self.next_due().map(|until| Effect::TaskDelayed { until }));
        Applied { outcome: Outcome::TasksReleased { tasks: due.len() as u64 }, effects }
    }

    fn redrive(&mut self, it: &Redrive) -> Applied {
        let Some(lane) = self.lanes.get(&it.lane).map(|lane| lane.row.number) else {
            return Applied::refused(Refusal::LaneUnknown { lane: it.lane.clone() });
        };
        let mut effects = Vec::new();
        for id in &it.tasks {
            let is_dead = |known: &&Known| known.rank.lane == lane && known.standing == Standing::Dead;
            let Some(rank) = self.tasks.get(id).filter(is_dead).map(|known| known.rank) else { continue };
            self.row(rank).dead -= 1;
            self.known(*id).failures = 0;
            effects.push(self.charge_and_place(*id));
        }
        Applied { outcome: Outcome::Redriven { tasks: effects.len() as u64 }, effects }
    }

    fn weigh(&mut self, it: &WeighKeys) -> Applied {
        let Some(lane) = self.lanes.get_mut(&it.lane) else {
            return Applied::refused(Refusal::LaneUnknown { lane: it.lane.clone() });
        };
        for (key, weight) in &it.weights {
            match weight {
                Some(weight) => lane.row.weights.insert(key.clone(), *weight),
                None => lane.row.weights.remove(key),
            };
        }
        lane_set(&it.lane, &lane.row)
    }

    /// Whether the machine says of its lanes what the model says, to the last count.
    pub(crate) fn agrees(&self, lanes: &LanesState) {
        let said = lanes.all().map(|lane| (lane.name(), lane.row()));
        assert!(said.eq(self.lanes.iter().map(|(name, it)| (&**name, &it.row))));
        let ranks = lanes.all().flat_map(|lane| {
            let name = |priority| RankName { lane: lane.row().number, priority };
            lane.ranks().map(move |(priority, rank)| (name(priority), *rank.row()))
        });
        let ranks: BTreeMap<_, _> = ranks.collect();
        assert_eq!(ranks, self.ranks, "virtual times, ack levels and counts");
        self.agrees_on_tenants(lanes);
    }

    fn known(&mut self, id: TaskId) -> &mut Known {
        self.tasks.get_mut(&id).expect("the caller looked")
    }

    fn row(&mut self, rank: RankName) -> &mut RankRow {
        self.ranks.entry(rank).or_default()
    }

    /// What is said of the lane of this number.
    pub(crate) fn lane(&self, number: LaneNumber) -> &LaneRow {
        let lane = self.lanes.values().find(|lane| lane.row.number == number);
        &lane.expect("it was created").row
    }

    /// A rank's virtual time.
    pub(crate) fn virtual_time(&self, rank: RankName) -> u64 {
        self.ranks.get(&rank).map_or(0, |row| row.virtual_time)
    }
}

fn lane_set(name: &str, row: &LaneRow) -> Applied {
    let effect = Effect::LaneSet { lane: row.number, name: name.to_owned(), row: Box::new(row.clone()) };
    Applied { outcome: Outcome::LaneSet, effects: vec![effect] }
}

fn answered(outcome: Outcome) -> Applied {
    Applied { outcome, effects: Vec::new() }
}
