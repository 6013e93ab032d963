//! Flows of a queue: when one comes about, where it stands, and when it goes.

use super::{First, Flow, Picking, Queue, Stand};
use crate::lanes::acks::Acked;
use crate::lanes::levels::{Level, is_tenant};
use crate::lanes::reader::Placed;
use crate::lanes::tasks::TaskId;
use crate::limits::{LANE_FLOW_TASKS_MAX, LANE_FLOWS_LOADED_MAX};
use std::sync::Arc;

impl Queue {
    /// A key has met its limit: it gets a cursor of its own, from its next task on.
    pub(super) fn set_apart(&mut self, key: &Arc<str>, next: Level, it: &mut Picking<'_>) {
        let queue = Box::new(self.queue_of_flow(key, Acked { level: next.before(), gap: None }, 0));
        it.stirred.insert(queue.name.clone());
        let flow = Flow { level: next, known_turn: next.pass, stand: Stand::Parked, is_loaded: false, queue };
        self.add_flow(key.clone(), flow);
    }

    pub(super) fn park(&mut self, name: &Arc<str>) {
        let park = |flow: &mut Flow| {
            flow.stand = Stand::Parked;
            flow.level
        };
        let level = self.change(name, park).expect("whoever is in line is a flow");
        self.line.remove(&(level, name.clone()));
    }

    /// Moves a flow that is in line to another level.
    pub(super) fn move_in_line(&mut self, name: &Arc<str>, from: Level, to: Level) {
        self.line.remove(&(from, name.clone()));
        self.change(name, |flow| flow.level = to);
        self.line.insert((to, name.clone()));
    }

    /// Moves a key that is a flow on to the level of its next task, if that is higher: what was given back to it before it was
    /// set apart, or has been moved since, is not its turn. Says whether it has moved.
    pub(super) fn catch_up(&mut self, level: Level, name: &Arc<str>, it: &mut Picking<'_>) -> bool {
        if is_tenant(name) {
            return false;
        }
        let first = self.change(name, |flow| flow.queue.first(it)).expect("whoever is in line is a flow");
        let Some(First::Task(next, _)) = first else { return false };
        if next.pass <= level.pass {
            return false;
        }
        self.move_in_line(name, level, next);
        true
    }

    /// A task has another place: if it is the next one of a key that is a flow, the key's turn comes no later.
    pub(super) fn bring_forward(&mut self, to: &Placed) {
        let Some(flow) = self.flows.get_mut(&to.key) else { return };
        let is_next = flow.queue.reader.first().is_some_and(|(level, _)| level == to.level);
        let turn = Level { pass: to.level.pass.max(self.virtual_time), ..to.level };
        if !is_next || turn >= flow.level {
            return;
        }
        let before = std::mem::replace(&mut flow.level, turn);
        match flow.stand {
            Stand::InLine => {
                self.line.remove(&(before, to.key.clone()));
                self.line.insert((turn, to.key.clone()));
            }
            Stand::Parked => {}
            Stand::Resting => unreachable!("it has a task that is next"),
        }
    }

    /// A limit is not in the way of a key or tenant any more.
    pub(in crate::lanes) fn unpark(&mut self, name: &str, last_id: TaskId) {
        let Some(of) = self.flow_of(name).and_then(|of| self.flow_name(of)) else { return };
        self.change(&of, |flow| {
            if *of != *name {
                flow.queue.unpark(name, last_id);
            } else if flow.stand == Stand::Parked {
                flow.stand = Stand::Resting;
            }
        });
        self.refresh(&of, last_id);
    }

    /// The name of a flow that is there.
    pub(super) fn flow_name(&self, name: &str) -> Option<Arc<str>> {
        self.flows.get_key_value(name).map(|(name, _)| name.clone())
    }

    /// Everybody may try again.
    pub(in crate::lanes) fn unpark_all(&mut self, last_id: TaskId) {
        let names: Vec<Arc<str>> = self.flows.keys().cloned().collect();
        for name in names {
            self.change(&name, |flow| {
                flow.queue.unpark_all(last_id);
                if flow.stand == Stand::Parked {
                    flow.stand = Stand::Resting;
                }
            });
            self.refresh(&name, last_id);
        }
    }

    /// Whether it may have something to give.
    fn may_give(&self) -> bool {
        self.reader.ready_len() > 0 || !self.reader.is_at_end() || !self.line.is_empty()
    }

    /// Whether nothing is known of it that its rows do not say.
    fn is_spent(&self) -> bool {
        let is_idle = self.reader.out_len() == 0 && !self.reader.is_read_under_way();
        is_idle && self.flows.values().all(|flow| flow.stand == Stand::Resting && flow.queue.is_spent())
    }

    /// Puts a flow where it belongs: into the line, to rest, or away. Whether it is parked does not change by it.
    pub(super) fn refresh(&mut self, name: &Arc<str>, last_id: TaskId) {
        let Some(flow) = self.flows.get_mut(name) else { return };
        let may_give = flow.queue.may_give();
        match (flow.stand, may_give) {
            (Stand::Parked | Stand::InLine, true) => {}
            (Stand::Parked, false) => {
                if flow.level.pass <= self.virtual_time && flow.queue.is_spent() {
                    self.remove_flow(name);
                }
            }
            (Stand::Resting, true) => {
                self.resting.remove(&(flow.level.pass, name.clone()));
                if flow.level.pass < self.virtual_time {
                    flow.level = Level { pass: self.virtual_time, id: last_id };
                }
                flow.stand = Stand::InLine;
                self.line.insert((flow.level, name.clone()));
            }
            (Stand::InLine | Stand::Resting, false) => {
                self.line.remove(&(flow.level, name.clone()));
                flow.stand = Stand::Resting;
                if flow.level.pass > self.virtual_time {
                    self.resting.insert((flow.level.pass, name.clone()));
                } else if flow.queue.is_spent() {
                    self.remove_flow(name);
                }
            }
        }
    }

    /// Keeps the tasks of flows in memory within bounds, those of flows within flows too.
    pub(super) fn note_loaded(&mut self, name: &Arc<str>) {
        let Some(flow) = self.flows.get_mut(name) else { return };
        if !flow.is_loaded && flow.queue.counts().ready > 0 {
            flow.is_loaded = true;
            self.loaded.push_back(name.clone());
        }
        // A tenant lets some of its users go before it has to be let go as a whole, or one with very many would be read for ever.
        let most = if self.name.of.is_none() { LANE_FLOW_TASKS_MAX } else { LANE_FLOW_TASKS_MAX / 4 };
        while (self.loaded.len() > LANE_FLOWS_LOADED_MAX || self.of_flows.ready > most)
            && let Some(first) = self.loaded.pop_front()
        {
            self.change(&first, |flow| {
                flow.is_loaded = false;
                flow.queue.let_go();
            });
        }
    }

    /// Lets go of everything that is ready; it is read again.
    fn let_go(&mut self) {
        self.reader.let_go();
        for name in std::mem::take(&mut self.loaded) {
            self.change(&name, |flow| {
                flow.is_loaded = false;
                flow.queue.let_go();
            });
        }
    }
}
