//! Redrive: tasks that have failed for good are tried again, as if they had just been added.

use super::levels::RankName;
use super::records;
use super::settle::key_of_dead;
use super::state::LanesState;
use super::tasks::{Standing, TaskId};
use super::writer::place;
use crate::entry::{Applied, Outcome, Refusal};
use crate::limits::TASKS_PER_ADD_MAX;
use crate::tables::{Table, Tables};
use minicbor::{Decode, Encode};

/// See [`Command::Redrive`](crate::entry::Command::Redrive).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Redrive {
    /// The lane.
    #[n(0)]
    pub lane: String,
    /// The tasks; those that are not dead, or of another lane, are left as they are.
    #[n(1)]
    pub tasks: Vec<TaskId>,
}

/// Applies it.
pub(crate) fn redrive(state: &mut LanesState, tables: &mut dyn Tables, it: &Redrive) -> Applied {
    let Some(lane) = state.by_name(&it.lane) else {
        return Applied::refused(Refusal::LaneUnknown { lane: it.lane.clone() });
    };
    if it.tasks.len() > TASKS_PER_ADD_MAX {
        let problem = format!("drive at most {TASKS_PER_ADD_MAX} tasks again at a time");
        return Applied::refused(Refusal::Malformed { problem });
    }

    // Nothing below can be refused.
    let number = lane.row().number;
    let mut effects = Vec::with_capacity(it.tasks.len());
    for id in &it.tasks {
        let Some((mut task, _)) = records::find(tables, *id) else { continue };
        if task.lane != number || task.standing != Standing::Dead {
            continue;
        }
        let name = RankName { lane: number, priority: task.priority };
        tables.delete(Table::DeadTasks, &key_of_dead(number, *id));
        state.count(name, |row| row.dead -= 1);
        let charge = state.charge(name, &task.key, task.weight);
        task.failures = 0;
        effects.push(place(state, tables, *id, task, charge));
    }
    let first = state.dead_after(tables, number, None).next().map(|it| it.id);
    state.set_dead_from(number, first);
    Applied { outcome: Outcome::Redriven { tasks: effects.len() as u64 }, effects }
}
