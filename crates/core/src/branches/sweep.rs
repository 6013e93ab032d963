//! Sweep: removes the rows of areas that were dropped, some at a time.
//!
//! Invariants
//! - What a commit holds is kept; every other object that a dropped area leads to is noted as garbage.

use super::state::{AreaId, BranchesState, DroppedRow, path_of_staged, staged_of};
use crate::entry::{Applied, Outcome};
use crate::limits::STAGED_ROWS_PER_SWEEP_MAX;
use crate::rows;
use crate::tables::{Row, Table, Tables};

/// Removes the next rows. The outcome says whether there are more.
pub(crate) fn sweep(state: &mut BranchesState, tables: &mut dyn Tables) -> Applied {
    let mut budget = STAGED_ROWS_PER_SWEEP_MAX;
    while budget > 0 {
        let Some(area) = state.dropped().first().copied() else { break };
        budget -= sweep_area(tables, area, budget).min(budget);
        if budget > 0 {
            state.forget_dropped(tables, area);
        }
    }
    let areas = state.dropped().len() as u64;
    Applied { outcome: Outcome::Swept { areas }, effects: Vec::new() }
}

/// Removes up to so many rows of an area, and says how many it removed; fewer only if there are no more.
fn sweep_area(tables: &mut dyn Tables, area: AreaId, limit: usize) -> usize {
    let key = area.key();
    let row = tables.get(Table::DroppedAreas, &key).expect("a dropped area has its row");
    let dropped: DroppedRow = rows::decode(Table::DroppedAreas, &key, &row);
    // One more, to see whether the last row has a later one of its path.
    let found: Vec<Row> = tables.scan_prefix(Table::Staged, &key).take(limit + 1).collect();
    for (nth, row) in found.iter().enumerate().take(limit) {
        let next = found.get(nth + 1);
        let is_outdone = next.is_some_and(|next| path_of_staged(&next.0) == path_of_staged(&row.0));
        if (!dropped.is_committed || is_outdone)
            && let (_, Some(entry)) = staged_of(row)
        {
            super::state::put_garbage(tables, &entry.address);
        }
        tables.delete(Table::Staged, &row.0);
    }
    found.len().min(limit)
}
