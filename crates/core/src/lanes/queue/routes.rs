//! What a queue is told of its tasks, and of those of its flows.

use super::{Flow, Queue, Stand};
use crate::lanes::levels::{Level, QueueName, tenant_of};
use crate::lanes::reader::Placed;
use crate::lanes::state::LaneRow;
use crate::lanes::tasks::TaskId;
use std::sync::Arc;

/// Where a key's tasks are.
enum Route<'a> {
    /// In this queue.
    Here(&'a mut Queue),
    /// In a flow of it.
    Below(&'a mut Queue),
}

impl Queue {
    /// Acts on a queue below this one, or on this one.
    pub(in crate::lanes) fn at(
        &mut self,
        name: &QueueName,
        last_id: TaskId,
        act: &mut dyn FnMut(&mut Queue),
    ) {
        if self.name == *name {
            return act(self);
        }
        let of = name.of.as_deref().and_then(|of| self.flow_name(self.flow_of(of)?));
        let Some(of) = of else { return };
        self.change(&of, |flow| flow.queue.at(name, last_id, act));
        self.note_loaded(&of);
        self.refresh(&of, last_id);
    }

    /// A task has got a place.
    pub(in crate::lanes) fn place(
        &mut self,
        placed: Placed,
        known_time: u64,
        tenant_time: u64,
        last_id: TaskId,
    ) {
        self.know_time(known_time, last_id);
        let name = self.flow_of(&placed.key);
        if self.name.of.is_none()
            && let Some(name) = name.filter(|name| **name != *placed.key && !self.flows.contains_key(*name))
        {
            // A tenant that is not known has had nothing until now.
            let name: Arc<str> = name.into();
            let queue = Queue::of_empty(QueueName::of(self.rank(), name.clone()), self.flow_buffer());
            let level = Level { pass: self.virtual_time, id: last_id };
            let (known_turn, queue) = (level.pass, Box::new(queue));
            let flow = Flow { level, known_turn, stand: Stand::Resting, is_loaded: false, queue };
            self.add_flow(name, flow);
        }
        self.route(&placed.key.clone(), last_id, &mut |queue| match queue {
            Route::Here(queue) => queue.reader.place(placed.clone()),
            Route::Below(queue) => queue.place(placed.clone(), tenant_time, 0, last_id),
        });
    }

    /// The machine knows of a virtual time.
    fn know_time(&mut self, time: u64, last_id: TaskId) {
        self.known_time = self.known_time.max(time);
        self.advance(time, last_id);
    }

    /// Acts on the flow that a key belongs to, or on this queue if it is in none.
    fn route(&mut self, key: &str, last_id: TaskId, act: &mut dyn FnMut(Route<'_>)) {
        let name = self.flow_of(key).and_then(|name| self.flow_name(name));
        let Some(name) = name else { return act(Route::Here(self)) };
        self.change(&name, |flow| act(Route::Below(&mut flow.queue)));
        self.note_loaded(&name);
        self.refresh(&name, last_id);
    }

    /// Whether the levels of a key's tasks are those of this queue.
    fn is_around(&self, key: &str) -> bool {
        self.name.of.is_some() || tenant_of(key).is_none()
    }

    /// A task has no place any more.
    pub(in crate::lanes) fn remove(
        &mut self,
        key: &str,
        level: Level,
        known_time: u64,
        tenant_time: u64,
        last_id: TaskId,
    ) {
        self.know_time(known_time, last_id);
        if self.is_around(key) {
            self.reader.remove(level);
            self.done += 1;
        }
        self.route(key, last_id, &mut |queue| {
            if let Route::Below(queue) = queue {
                queue.remove(key, level, tenant_time, 0, last_id);
            }
        });
    }

    /// A task has another place.
    pub(in crate::lanes) fn shift(&mut self, from: Level, to: &Placed, last_id: TaskId) {
        let is_apart = self.is_of_flow(&to.key);
        let is_out_here = self.reader.out().contains_key(&from.id);
        if self.is_around(&to.key) {
            // Of a key that is a flow, only what is out is here.
            match is_apart && !is_out_here {
                true => self.reader.remove(from),
                false => self.reader.shift(from, to.clone()),
            }
        }
        self.route(&to.key, last_id, &mut |queue| {
            if let Route::Below(queue) = queue {
                match is_out_here {
                    true => queue.reader.remove(from),
                    false => queue.shift(from, to, last_id),
                }
            }
        });
        if from != to.level {
            self.bring_forward(to);
        }
    }

    /// Takes a task back that nobody works on any more.
    pub(in crate::lanes) fn put_back(&mut self, key: &str, id: TaskId, last_id: TaskId) {
        let taken_back = self.reader.take_back(id);
        self.route(key, last_id, &mut |queue| match (queue, taken_back.clone()) {
            (Route::Here(queue) | Route::Below(queue), Some(placed)) => queue.reader.place(placed),
            (Route::Below(queue), None) => queue.put_back(key, id, last_id),
            (Route::Here(_), None) => {}
        });
    }

    /// A task is not out any more, whatever became of it.
    pub(in crate::lanes) fn forget(&mut self, key: &str, id: TaskId, last_id: TaskId) {
        self.reader.forget(id);
        self.route(key, last_id, &mut |queue| {
            if let Route::Below(queue) = queue {
                queue.forget(key, id, last_id);
            }
        });
    }

    /// A consumer still works on a task of an earlier leader, for which its tenant is charged.
    pub(in crate::lanes) fn hold(&mut self, placed: &Placed, lane: &LaneRow, last_id: TaskId) {
        if self.is_around(&placed.key) {
            self.reader.hold(placed.clone());
            return self.advance(placed.level.pass, last_id);
        }
        let Some(name) = tenant_of(&placed.key).and_then(|name| self.flow_name(name)) else { return };
        self.change(&name, |flow| flow.queue.hold(placed, lane, last_id));
        let flow = self.flows.get_mut(&name).expect("it has a name");
        if placed.stride > 0 {
            // The turn that it was handed out in. Of turns behind the virtual time nothing is left to be charged.
            let turn = flow.known_turn;
            flow.known_turn = turn.saturating_add(u64::from(lane.tenant_stride(&name)));
            let cost = flow.known_turn.max(self.begun_at) - turn.max(self.begun_at);
            let before = (flow.level, name.clone());
            flow.level.pass = flow.level.pass.saturating_add(cost);
            if self.line.remove(&before) {
                self.line.insert((flow.level, name.clone()));
            }
            self.advance(turn, last_id);
        }
        self.refresh(&name, last_id);
    }

    /// Takes in rows that were read for it.
    pub(in crate::lanes) fn take_in(&mut self, rows: Vec<Placed>, is_end: bool) {
        let flows = &self.flows;
        self.reader.take_in(rows, is_end, |placed| !flows.contains_key(&placed.key));
    }
}
