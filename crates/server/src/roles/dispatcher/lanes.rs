//! What the Dispatcher does for lanes: it reads and notes nothing itself, and sends the Clerk.

use super::{Dispatcher, Reasserted};
use tokio::sync::oneshot;
use windlass_core::batch::reserver::{Reserver, SessionId, Standing};
use windlass_core::ids::Epoch;
use windlass_core::lanes::desk::Errand;
use windlass_core::lanes::levels::{QueueName, RankName};
use windlass_core::lanes::reader::Placed;
use windlass_core::lanes::tasks::HandedOut;
use windlass_core::limits::{LANE_ACK_EVERY_MS, LANE_ACKS_AT_ONCE, LANE_ACKS_PAUSE_MS};
use windlass_core::time::At;

/// What the Clerk is sent for.
#[derive(Debug)]
pub enum LaneErrand {
    /// Something of one rank, for a leadership.
    OfRank(Epoch, Errand),
    /// Delayed tasks are due.
    Release,
}

/// A key of which nothing goes out.
#[derive(Debug)]
pub struct HeldBack {
    epoch: Epoch,
    rank: RankName,
    key: String,
    /// What had gone out when that began.
    pub handed_out: Vec<HandedOut>,
}

impl Dispatcher {
    /// Sends the Clerk for what the lanes need.
    pub(super) fn send_errands(&mut self) {
        let Some(reserver) = &mut self.reserver else { return };
        let epoch = reserver.epoch();
        for errand in reserver.at_desk(|desk| desk.errands()) {
            // During a stop nobody does errands any more.
            _ = self.errands.send(LaneErrand::OfRank(epoch, errand));
        }
    }

    /// Whether this is the leadership that holds.
    pub(super) fn leads_under(&self, epoch: Epoch) -> bool {
        self.reserver.as_ref().is_some_and(|reserver| reserver.epoch() == epoch)
    }

    /// When something of the lanes is due.
    pub(super) fn next_lane_tick(&self) -> Option<At> {
        let desk = self.reserver.as_ref()?.desk();
        let notes = self.notes_more_lanes.then_some(self.note_lanes_at);
        desk.next_due().into_iter().chain(desk.next_room()).chain(notes).min()
    }

    /// Does what is due of the lanes.
    pub(super) fn tick_lanes(&mut self, now: At) {
        let Some(reserver) = &mut self.reserver else { return };
        if reserver.at_desk(|desk| desk.take_due(now)) {
            _ = self.errands.send(LaneErrand::Release);
        }
        reserver.at_desk(|desk| desk.make_room(now));
        if self.note_lanes_at <= now {
            self.notes_more_lanes = reserver.at_desk(|desk| desk.note_some(LANE_ACKS_AT_ONCE));
            let pause_ms = if self.notes_more_lanes { LANE_ACKS_PAUSE_MS } else { LANE_ACK_EVERY_MS };
            self.note_lanes_at = now.after_ms(pause_ms);
        }
    }

    pub(super) fn note_due(&mut self, at: At) {
        if let Some(reserver) = &mut self.reserver {
            reserver.at_desk(|desk| desk.note_due(at));
        }
    }

    pub(super) fn take_in_tasks(&mut self, queue: &QueueName, rows: Vec<Placed>, is_end: bool, now: At) {
        let Some(reserver) = &mut self.reserver else { return };
        reserver.at_desk(|desk| desk.take_in(queue, rows, is_end));
        self.serve_waiting(now);
        self.answer_impatient(now);
    }

    /// Nothing of a key goes out until [`Dispatcher::go_on`]; says what has gone out before.
    pub(super) fn hold_back(&mut self, lane: &str, priority: u8, key: &str) -> Option<HeldBack> {
        let reserver = self.reserver.as_mut()?;
        let epoch = reserver.epoch();
        let rank = RankName { lane: reserver.desk().lane(lane)?, priority };
        let handed_out = reserver.desk().handed_out(lane, [(priority, key)]);
        reserver.at_desk(|desk| desk.hold_back(rank, key));
        Some(HeldBack { epoch, rank, key: key.to_owned(), handed_out })
    }

    pub(super) fn go_on(&mut self, it: &HeldBack, now: At) {
        // The leadership that holds it back may be over.
        let Some(reserver) = self.reserver.as_mut().filter(|reserver| reserver.epoch() == it.epoch) else {
            return;
        };
        reserver.at_desk(|desk| desk.go_on(it.rank, &it.key));
        self.serve_waiting(now);
        self.answer_impatient(now);
    }

    pub(super) fn give_up_read(&mut self, queue: &QueueName) {
        if let Some(reserver) = &mut self.reserver {
            reserver.at_desk(|desk| desk.give_up_read(queue));
        }
    }

    pub(super) fn reassert(
        &mut self,
        session: SessionId,
        claimed: Vec<Reasserted>,
        reply: oneshot::Sender<Vec<Standing>>,
        now: At,
    ) {
        self.note_consumer(session, now);
        // Without a leadership there is no answer: dropping the reply tells the asker.
        let Some(desk) = self.reserver.as_ref().map(Reserver::desk) else { return };
        let limits = |rank: RankName| desk.name_of(rank.lane).is_some_and(|lane| self.limits_lane(lane));
        let is_limited = self.sessions.may_hold_limited(session)
            || self.limits_lanes
                && claimed.iter().any(|it| it.place.as_ref().is_some_and(|(rank, _)| limits(*rank)));
        if is_limited {
            self.enlist(session);
        }
        let Some(reserver) = &mut self.reserver else { return };
        let standing = |it: Reasserted| match it.place {
            Some((rank, placed)) => reserver.reassert_task(session, rank, placed, it.token),
            None => reserver.reassert(session, it.name, it.token),
        };
        drop(reply.send(claimed.into_iter().map(standing).collect()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Ask, Asker, Event, SessionTimes};
    use super::*;
    use crate::clock::Clock;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use tokio::sync::mpsc::{self, UnboundedReceiver};
    use windlass_core::batch::reserver::{Holder, Reserver};
    use windlass_core::batch::roster::Roster;
    use windlass_core::batch::strategy::Strategy;
    use windlass_core::effect::Times;
    use windlass_core::entry::Effect;
    use windlass_core::ids::{Shard, SubmissionId};
    use windlass_core::lanes::desk::Desk;
    use windlass_core::lanes::key_order::KeyOrder;
    use windlass_core::lanes::levels::{LaneNumber, Level, RankName, STRIDE};
    use windlass_core::lanes::limiting::LaneLimits;
    use windlass_core::lanes::state::LaneRow;

    const RANK: RankName = RankName { lane: LaneNumber(1), priority: 0 };

    /// A leadership with a lane of so many tasks of one key.
    fn reserver_with_tasks(levels: &[Level]) -> Reserver {
        let mut reserver = Reserver::new(Epoch(1), [0; 16], 0, std::iter::empty());
        reserver.set_desk(Desk::default());
        let row = LaneRow {
            number: RANK.lane,
            created_at: At::from_ms(0),
            is_paused: false,
            is_draining: false,
            weights: BTreeMap::new(),
            limits: LaneLimits::default(),
            key_order: KeyOrder::Kept,
        };
        let (lane, name) = (RANK.lane, "mail".to_owned());
        reserver.absorb(&Effect::LaneSet { lane, name, row: Box::new(row) });
        for level in levels {
            let (stride, times) = (STRIDE as u32, Times { rank: 0, tenant: 0 });
            reserver.absorb(&Effect::TaskPlaced {
                rank: RANK,
                level: *level,
                key: "a".into(),
                stride,
                times,
            });
        }
        reserver
    }

    /// Hands out the next task, and hears that it is done.
    fn work(dispatcher: &mut Dispatcher, now: At) -> Level {
        let reserver = dispatcher.reserver.as_mut().expect("it leads");
        let plan = reserver.plan(&Strategy::lane("mail"), now).expect("the lane is there");
        let given = reserver.reserve(Holder::Session(SessionId(1)), 1, plan, now);
        let level = given[0].task.as_ref().expect("it is one of a lane").level;
        let times = Times { rank: level.pass, tenant: 0 };
        let effect = Effect::TaskUnplaced { rank: RANK, level, key: "a".into(), is_done: true, times };
        reserver.absorb(&effect);
        level
    }

    /// As the Dispatcher does when it runs once, at this time.
    fn look(dispatcher: &mut Dispatcher, now: At) {
        dispatcher.tick(now);
        dispatcher.send_errands();
    }

    fn noted(errands: &mut UnboundedReceiver<LaneErrand>) -> Vec<Level> {
        let sent = std::iter::from_fn(|| errands.try_recv().ok());
        let levels = sent.filter_map(|errand| match errand {
            LaneErrand::OfRank(_, Errand::Note(ack)) => Some(ack.level),
            LaneErrand::OfRank(_, Errand::Read { .. }) | LaneErrand::Release => None,
        });
        levels.collect()
    }

    /// One that leads from `began` on, with a lane of these tasks.
    fn leading(levels: &[Level], began: At) -> (Dispatcher, UnboundedReceiver<LaneErrand>) {
        let times = SessionTimes { heartbeat_ms: 1_000, grace_ms: 1_000 };
        let ((lost, _lost), (roster, _roster)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let (sender, errands) = mpsc::unbounded_channel();
        let mut dispatcher = Dispatcher::new(Clock::start(), times, lost, roster, sender);
        let reserver = Box::new(reserver_with_tasks(levels));
        dispatcher.handle(Event::Led { at: began, reserver, roster: Roster::default() }, began);
        (dispatcher, errands)
    }

    #[test]
    fn whoever_has_waited_for_a_key_that_was_held_back_gets_its_task_as_soon_as_it_goes_on() {
        for wait in [true, false] {
            let now = At::from_ms(1 << 40);
            let level = Level { pass: 0, id: SubmissionId::next(None, At::from_ms(1), Shard::default()) };
            let (mut dispatcher, _errands) = leading(&[level], now);
            let held_back = dispatcher.hold_back("mail", 0, "a").expect("the lane is there");
            let (reply, mut answer) = oneshot::channel();
            let asker = Asker::Lease { lease_ms: 1_000, wait, is_covered: false, reply };
            let strategy = Arc::new(Strategy::lane("mail"));
            let waits = dispatcher.reserve(Ask { max: 1, strategy, asker }, now);
            assert!(waits.is_none() && answer.try_recv().is_err(), "it is not known yet what comes next");
            // What the log tells meanwhile does not let it out.
            let moved = Effect::TaskMoved { rank: RANK, from: level, to: level, key: "a".into(), stride: 1 };
            dispatcher.handle(Event::Effects { at: now, effects: vec![moved] }, now);
            dispatcher.serve_waiting(now);
            assert!(answer.try_recv().is_err(), "its levels are still on their way");
            dispatcher.go_on(&held_back, now);
            let (given, _) = answer.try_recv().expect("it is answered").expect("and served");
            assert_eq!(given.len(), 1);
        }
    }

    #[test]
    fn how_far_a_lane_is_done_is_noted_by_the_first_look_after_ten_seconds_and_only_if_it_has_come_on() {
        let mut id = SubmissionId::first();
        let mut level = |nth| {
            id = SubmissionId::next(Some(id), At::from_ms(1), Shard::default());
            Level { pass: nth * STRIDE, id }
        };
        let levels: Vec<Level> = (0..9).map(&mut level).collect();
        let began = At::from_ms(1 << 40);
        let (mut dispatcher, mut errands) = leading(&levels, began);
        look(&mut dispatcher, began);
        for _ in 0..4 {
            work(&mut dispatcher, began);
        }
        look(&mut dispatcher, began.after_ms(LANE_ACK_EVERY_MS - 1));
        assert_eq!(noted(&mut errands), []);
        look(&mut dispatcher, began.after_ms(LANE_ACK_EVERY_MS));
        let first = noted(&mut errands);
        assert!(first.len() == 1 && first[0] >= levels[2] && first[0] < levels[3], "{first:?}");

        look(&mut dispatcher, began.after_ms(2 * LANE_ACK_EVERY_MS));
        assert_eq!(noted(&mut errands), [], "nothing was done since");
        work(&mut dispatcher, began);
        look(&mut dispatcher, began.after_ms(3 * LANE_ACK_EVERY_MS - 1));
        assert_eq!(noted(&mut errands), []);
        look(&mut dispatcher, began.after_ms(3 * LANE_ACK_EVERY_MS));
        let second = noted(&mut errands);
        assert!(second.len() == 1 && second[0] > first[0], "{second:?}");
    }
}
