//! The dead tasks of a lane, grouped by what their last attempts said.

use super::Service;
use super::lane_look::apart;
use crate::limits::{
    DEAD_EXAMPLES, DEAD_GROUPS_COUNTED_MAX, DEAD_GROUPS_KEPT, DEAD_GROUPS_MAX, DEAD_LOOKED_AT_MAX,
    DEAD_LOOKED_AT_ONCE,
};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use windlass_api::json::time_text;
use windlass_api::lanes::{DeadGroup, DeadTasks};
use windlass_api::problem::Problem;
use windlass_core::lanes::levels::LaneNumber;
use windlass_core::lanes::listing::DeadTask;
use windlass_core::lanes::tasks::TaskId;
use windlass_core::time::At;

/// Tasks with the same reason.
#[derive(Debug, Default)]
struct Group {
    tasks: u64,
    examples: Vec<TaskId>,
    last_at: At,
}

/// The reasons so far.
#[derive(Debug, Default)]
struct Groups {
    by_reason: BTreeMap<String, Group>,
    looked_at: u64,
    /// Reasons that were forgotten; one that has come again since counts once more.
    forgotten: u64,
}

impl Service {
    /// The dead tasks of a lane, grouped by their reasons, the largest groups first.
    pub async fn dead_tasks(&self, lane: String) -> Result<DeadTasks, Problem> {
        let (service, number) = (self.clone(), self.lane_number(&lane)?);
        apart(move || Ok(service.dead_grouped(number))).await
    }

    fn dead_grouped(&self, lane: LaneNumber) -> DeadTasks {
        let mut groups = Groups::default();
        let mut after = None;
        for _ in 0..DEAD_LOOKED_AT_MAX / DEAD_LOOKED_AT_ONCE {
            // Some at a time: nobody else is to wait until all are looked at.
            let some: Vec<DeadTask> = self.order().read(|machine| {
                machine.lanes().dead_after(machine.tables(), lane, after).take(DEAD_LOOKED_AT_ONCE).collect()
            });
            after = some.last().filter(|_| some.len() == DEAD_LOOKED_AT_ONCE).map(|dead| dead.id);
            some.into_iter().for_each(|dead| groups.add(dead));
            if after.is_none() {
                break;
            }
        }
        let has_more = after.is_some_and(|after| {
            self.order().read(|machine| {
                machine.lanes().dead_after(machine.tables(), lane, Some(after)).next().is_some()
            })
        });
        groups.said(has_more)
    }
}

impl Groups {
    fn add(&mut self, dead: DeadTask) {
        self.looked_at += 1;
        if self.by_reason.len() == DEAD_GROUPS_COUNTED_MAX && !self.by_reason.contains_key(&dead.reason) {
            self.forget_rare();
        }
        let group = self.by_reason.entry(dead.reason).or_default();
        group.tasks += 1;
        group.last_at = dead.at.max(group.last_at);
        if group.examples.len() < DEAD_EXAMPLES {
            group.examples.push(dead.id);
        }
    }

    /// Keeps the most frequent ones alone.
    fn forget_rare(&mut self) {
        let mut groups: Vec<(String, Group)> = std::mem::take(&mut self.by_reason).into_iter().collect();
        groups.sort_by_key(|(_, group)| Reverse(group.tasks));
        self.forgotten += groups.len().saturating_sub(DEAD_GROUPS_KEPT) as u64;
        groups.truncate(DEAD_GROUPS_KEPT);
        self.by_reason.extend(groups);
    }

    fn said(self, has_more: bool) -> DeadTasks {
        let groups = self.by_reason.into_iter().map(|(reason, Group { tasks, examples, last_at })| {
            DeadGroup { reason, tasks, examples, last_at: time_text(last_at) }
        });
        let mut groups: Vec<DeadGroup> = groups.collect();
        groups.sort_by_key(|group| Reverse(group.tasks));
        let groups_left_out = groups.len().saturating_sub(DEAD_GROUPS_MAX) as u64 + self.forgotten;
        groups.truncate(DEAD_GROUPS_MAX);
        let shown: u64 = groups.iter().map(|group| group.tasks).sum();
        DeadTasks {
            looked_at: self.looked_at,
            has_more,
            groups_left_out,
            tasks_left_out: self.looked_at - shown,
            groups,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_reasons_there_are_memory_is_bounded_and_a_frequent_one_is_found_wherever_it_begins() {
        const RARE: u64 = 5 * DEAD_GROUPS_COUNTED_MAX as u64;
        let mut groups = Groups::default();
        let mut id = 0;
        let mut add = |groups: &mut Groups, reason: String| {
            id += 1;
            let id = TaskId::from_u64(id).expect("it is an id");
            groups.add(DeadTask { id, reason, at: At::from_ms(id.as_u64()) });
            assert!(groups.by_reason.len() <= DEAD_GROUPS_COUNTED_MAX);
        };
        (0..RARE).for_each(|nth| add(&mut groups, format!("rare {nth}")));
        for nth in 0..1_000 {
            add(&mut groups, "frequent".into());
            add(&mut groups, format!("rare {}", RARE + nth));
        }
        let said = groups.said(false);
        let first = &said.groups[0];
        assert_eq!(
            (first.reason.as_str(), first.tasks, first.examples.len()),
            ("frequent", 1_000, DEAD_EXAMPLES)
        );
        assert_eq!((said.groups.len(), said.looked_at), (DEAD_GROUPS_MAX, RARE + 2_000));
        assert_eq!(said.groups_left_out, RARE + 1_000 + 1 - DEAD_GROUPS_MAX as u64);
        assert_eq!(said.tasks_left_out, RARE + 1_000 + 1 - DEAD_GROUPS_MAX as u64);
    }
}
