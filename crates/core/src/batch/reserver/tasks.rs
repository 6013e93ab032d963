//! Tasks of lanes, which are reserved, held and given back as chunks are.

use super::{HandOut, Holder, Reservation, Reserver, SessionId, Standing};
use crate::batch::strategy::Strategy;
use crate::batch::tokens::AttemptToken;
use crate::batch::views::{PlanId, Stage};
use crate::entry::Refusal;
use crate::ids::{Attempt, ChunkIndex, ChunkName};
use crate::lanes::desk::{Desk, Next};
use crate::lanes::levels::{LaneNumber, RankName, tenant_of};
use crate::lanes::meters::Metered;
use crate::lanes::reader::Placed;
use crate::lanes::tasks::TaskId;
use crate::limits::LEASES_LOOKED_AT_MAX;
use crate::time::At;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Reserver {
    /// Takes the lanes in charge, none of whose tasks is out.
    pub fn set_desk(&mut self, desk: Desk) {
        self.desk = desk;
    }

    /// The lanes.
    pub const fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Acts on the lanes. Whoever waits for those that may have something to give then is looked at.
    pub fn at_desk<T>(&mut self, act: impl FnOnce(&mut Desk) -> T) -> T {
        let done = act(&mut self.desk);
        self.wake_lanes();
        done
    }

    /// Who holds tasks of a lane, each as often as it holds one.
    pub fn holders_of_tasks(&self, lane: LaneNumber) -> impl Iterator<Item = Holder> {
        let out = self.desk.out_of_lane(lane);
        out.filter_map(|task| Some(self.out.get(&name_of_task(task))?.holder))
    }

    /// When so many leases are over on tasks of keys, tenants, or the whole lane, if that many are among the first leases of all: tasks
    /// that are with sessions have none. One walk along the leases, for all of them.
    pub fn lease_ends(&self, lane: LaneNumber, so_many: &BTreeMap<Metered, u32>) -> BTreeMap<Metered, At> {
        let (mut left, mut ends) = (so_many.clone(), BTreeMap::new());
        left.retain(|_, count| *count > 0);
        for (until, name) in self.by_deadline.iter().take(LEASES_LOOKED_AT_MAX) {
            if left.is_empty() {
                break;
            }
            let place = self.desk.place_of(name.submission).filter(|place| place.rank.lane == lane);
            let Some(place) = place else { continue };
            let tenant = tenant_of(&place.key).map(Arc::from);
            for of in [None, Some(place.key.clone())].into_iter().chain(tenant.map(Some)) {
                let Some(count) = left.get_mut(&of) else { continue };
                *count -= 1;
                if *count == 0 {
                    left.remove(&of);
                    ends.insert(of, *until);
                }
            }
        }
        ends
    }

    /// Whether a plan can only say after some reading what its lanes give.
    pub fn is_reading(&self, plan: PlanId) -> bool {
        self.ready.stages(plan).iter().any(|stage| match stage {
            Stage::Lane(lane) => self.desk.lane(lane).is_some_and(|lane| self.desk.is_reading(lane)),
            Stage::Chunks(_) => false,
        })
    }

    /// Those who wait for lanes that may have something to give are looked at.
    pub(super) fn wake_lanes(&mut self) {
        for lane in self.desk.take_woken() {
            if let Some(name) = self.desk.name_of(lane) {
                self.ready.wake_lane(name);
            }
        }
    }

    /// Refuses lanes that nobody has created: a misspelled name would wait for ever.
    pub(super) fn check_lanes(&self, strategy: &Strategy) -> Result<(), String> {
        match strategy.lanes().into_iter().find(|lane| self.desk.lane(lane).is_none()) {
            Some(lane) => Err(Refusal::LaneUnknown { lane: lane.to_owned() }.to_string()),
            None => Ok(()),
        }
    }

    /// Hands out tasks of a lane. Says whether it is known what else the lane gives.
    pub(super) fn reserve_tasks(
        &mut self,
        holder: Holder,
        left: &mut usize,
        lane: &str,
        now: At,
        hand_outs: &mut Vec<HandOut>,
    ) -> bool {
        let Some(lane) = self.desk.lane(lane) else { return true };
        while *left > 0 {
            let place = match self.desk.hand_out(lane, now) {
                Next::Task(place) => place,
                Next::Nothing => return true,
                Next::BeingRead => return false,
            };
            let task = place.level.id;
            let name = name_of_task(task);
            let attempt = Attempt::of_task(self.epoch, self.tasks_came_back);
            self.hold(name, Reservation { attempt, holder });
            let token = AttemptToken::new(&self.token_key, name, attempt);
            let chunks = vec![(name.chunk, token)];
            hand_outs.push(HandOut { submission: task, chunks, plain: None, task: Some(place) });
            *left -= 1;
        }
        true
    }

    /// Gives a session back a task that it got from an earlier leader and still works on; `placed` is what the task's row
    /// says. Nothing is done if the task is out.
    pub fn reassert_task(
        &mut self,
        session: SessionId,
        rank: RankName,
        placed: Placed,
        token: AttemptToken,
    ) -> Standing {
        let name = name_of_task(placed.level.id);
        if !token.is_of(&self.token_key, name) {
            return Standing::Forged;
        }
        if self.out.contains_key(&name) || self.delayed.contains_key(&name) {
            return self.reassert(session, name, token);
        }
        self.desk.hold(rank, &placed);
        self.hold(name, Reservation { attempt: token.attempt, holder: Holder::Session(session) });
        Standing::Holds
    }

    /// Nobody holds a task any more; one that has failed may be handed out again, by another attempt.
    pub(super) fn forget_task(&mut self, task: TaskId, is_done: bool) {
        let name = name_of_task(task);
        self.undelay(name);
        if is_done {
            self.unhold(name);
            self.came_back.remove(&name);
        } else if self.out.contains_key(&name) {
            self.take_back(name);
        }
    }
}

/// A task's name among those of chunks.
const fn name_of_task(task: TaskId) -> ChunkName {
    ChunkName { submission: task, chunk: ChunkIndex(0) }
}
