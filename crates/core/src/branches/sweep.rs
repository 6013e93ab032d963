//! Sweep: removes the rows of areas that were dropped, some at a time.
//!
//! Invariants
//! - What a commit holds is kept; every other object that a dropped area leads to is noted as garbage.
//! - No step walks over rows that an earlier one has removed, which may lie there until the tables are compacted.
//! - Areas are swept oldest first, so that the rows of an area's newer ones are there when it is its turn.

use super::state::{AreaId, BranchesState, DroppedRow, path_of_staged, put_garbage, staged_key, staged_of};
use crate::entry::{Applied, Outcome};
use crate::limits::STAGED_ROWS_PER_SWEEP_MAX;
use crate::rows;
use crate::tables::{Row, Table, Tables, Walk, key_after_prefix};
use minicbor::bytes::ByteVec;
use std::ops::Bound;

/// Removes the next rows. The outcome says whether there are more.
pub(crate) fn sweep(state: &mut BranchesState, tables: &mut dyn Tables) -> Applied {
    let mut budget = STAGED_ROWS_PER_SWEEP_MAX;
    while budget > 0 {
        let Some(area) = state.dropped().first().copied() else { break };
        match sweep_area(tables, area, budget) {
            Some(looked_at) => {
                // An area without rows costs its own one.
                budget = budget.saturating_sub(looked_at.max(1));
                state.forget_dropped(tables, area);
            }
            None => break,
        }
    }
    let areas = state.dropped().len() as u64;
    Applied { outcome: Outcome::Swept { areas }, effects: Vec::new() }
}

/// Removes rows of an area and says how many were looked at for that; none if there are more than the budget allows.
fn sweep_area(tables: &mut dyn Tables, area: AreaId, budget: usize) -> Option<usize> {
    let key = area.key();
    let row = tables.get(Table::DroppedAreas, &key).expect("a dropped area has its row");
    let mut dropped: DroppedRow = rows::decode(Table::DroppedAreas, &key, &row);
    // Each row may be looked for in every newer area.
    let cost = 1 + dropped.newer.len();
    let limit = (budget / cost).max(1);
    // One more, to see whether the last row has a later one of its path.
    let found: Vec<Row> = rows_behind(tables, area, dropped.swept_to.as_ref()).take(limit + 1).collect();
    for (nth, row) in found.iter().enumerate().take(limit) {
        let path = path_of_staged(&row.0);
        let is_outdone = || {
            found.get(nth + 1).is_some_and(|next| path_of_staged(&next.0) == path)
                || dropped.newer.iter().any(|newer| has_path(tables, *newer, path))
        };
        if (!dropped.is_committed || is_outdone())
            && let (_, Some(entry)) = staged_of(row)
        {
            put_garbage(tables, &entry.address);
        }
        tables.delete(Table::Staged, &row.0);
    }
    if found.len() <= limit {
        return Some(found.len() * cost);
    }
    dropped.swept_to = Some(ByteVec::from(found[limit - 1].0.clone()));
    tables.put(Table::DroppedAreas, &key, rows::encode(&dropped));
    None
}

fn rows_behind<'t>(
    tables: &'t dyn Tables,
    area: AreaId,
    swept_to: Option<&ByteVec>,
) -> Box<dyn Iterator<Item = Row> + 't> {
    let begin = area.key();
    let end = key_after_prefix(&begin).expect("an id is not all ones, so something comes after its rows");
    let begin = match swept_to {
        Some(swept_to) => Bound::Excluded(&swept_to[..]),
        None => Bound::Included(&begin[..]),
    };
    tables.scan(Table::Staged, (begin, Bound::Excluded(&end)), Walk::Up)
}

fn has_path(tables: &dyn Tables, area: AreaId, path: &str) -> bool {
    tables.get(Table::Staged, &staged_key(area, path, None)).is_some()
}
