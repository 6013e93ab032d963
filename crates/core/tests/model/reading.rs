//! What readers see, compared with what the model says they should.

use crate::room::{Chunk, Handed, Room};
use windlass_core::batch::chunks::OutputKind;
use windlass_core::batch::listing::{ChunkResult, ChunkState, SubmissionFilter, SubmissionView};
use windlass_core::batch::select::{SelectedStanding, Selection};
use windlass_core::batch::submissions::{MetaValue, Metadata, SubmissionState};
use windlass_core::entry::Output;
use windlass_core::ids::{ChunkIndex, SubmissionId};
use windlass_core::limits::{CHUNKS_PER_BLOCK, PAGE_ROWS_MAX};
use windlass_core::machine::Machine;
use windlass_core::seeded::Seeded;
use windlass_core::tables::MemoryTables;

/// Checks every way to read the batch room.
pub(crate) fn agrees(machine: &Machine<MemoryTables>, room: &Room, chance: &mut Seeded) {
    let unknown = SubmissionId::from_u64(1).expect("1 is an id");
    assert_eq!((machine.show(unknown), machine.results(unknown, ChunkIndex(0), 9)), (None, None));

    let enlisted: Vec<u64> = machine.roster().sessions().iter().map(|session| session.0).collect();
    assert!(enlisted.iter().eq(&room.enlisted), "{enlisted:?} are on the roster");
    assert_eq!(machine.roster().leases_until(), room.leases_until);
    assert!(machine.weights().eq(room.weights.clone()));

    for (id, handed) in &room.submissions {
        assert_eq!(machine.show(*id), Some(view(*id, handed)));
        results_agree(machine, *id, handed);
        let failures = (0..).map(ChunkIndex).zip(&handed.chunks);
        let failures =
            failures.filter_map(|(index, chunk)| Some((index, chunk.failure.as_ref()?.row.clone())));
        assert_eq!(machine.failures(*id, PAGE_ROWS_MAX), failures.take(PAGE_ROWS_MAX).collect::<Vec<_>>());
    }
    let running = room.submissions.iter().filter(|(_, it)| it.state == SubmissionState::Running);
    let unsettled: Vec<_> = running.map(|(id, it)| it.unsettled(*id)).collect();
    assert_eq!(machine.unsettled().collect::<Vec<_>>(), unsettled);

    for filter in filters() {
        let limit = 1 + usize::try_from(chance.below(4)).expect("it is below 4");
        assert_eq!(
            listed(machine, &filter, limit),
            expected(room, &filter),
            "{filter:?} in pages of {limit}"
        );
        for selection in selections(filter) {
            let chosen: Vec<_> = room
                .submissions
                .iter()
                .rev()
                .filter(|(_, it)| is_selected(&selection, it))
                .map(|(id, _)| *id)
                .collect();
            assert_eq!(selected(machine, &selection, limit), chosen, "{selection:?} in steps of {limit}");
            for id in room.submissions.keys() {
                assert_eq!(machine.is_selected(&selection, *id), chosen.contains(id), "{selection:?} {id}");
            }
            assert!(!machine.is_selected(&selection, unknown));
        }
    }
}

fn view(id: SubmissionId, handed: &Handed) -> SubmissionView {
    SubmissionView {
        id,
        state: handed.state,
        submission: handed.row(),
        about: handed.submit.clone(),
        paused: handed.paused,
        finished_at: handed.finished_at,
    }
}

/// All chunks of a small submission; of a large one the first page, one across a block's border, and the last.
fn results_agree(machine: &Machine<MemoryTables>, id: SubmissionId, handed: &Handed) {
    let total = handed.chunks.len() as u64;
    for from in [0, 2, CHUNKS_PER_BLOCK - 5, total.saturating_sub(3), total, u64::MAX] {
        let limit = if from == 0 { PAGE_ROWS_MAX } else { 10 };
        let all =
            (0..).map(ChunkIndex).zip(&handed.chunks).skip_while(|(index, _)| index.0 < from).take(limit);
        let expected: Vec<_> = all.map(|(index, chunk)| result(index, chunk, handed.round)).collect();
        assert_eq!(machine.results(id, ChunkIndex(from), limit), Some(expected), "from {from}");
    }
}

fn result(chunk: ChunkIndex, known: &Chunk, round: u32) -> ChunkResult {
    let state = match (&known.done, &known.failure) {
        (Some((attempt, output)), _) => {
            let (output, inline) = match output {
                Output::Nothing => (OutputKind::Nothing, None),
                Output::Stored => (OutputKind::Stored, None),
                Output::Inline(bytes) => (OutputKind::Inline, Some(bytes.to_vec())),
            };
            ChunkState::Done { attempt: *attempt, output, inline }
        }
        (None, Some(failure)) if known.is_failed(round) => ChunkState::Failed(failure.row.clone()),
        (None, failure) => ChunkState::Unsettled(failure.as_ref().map(|it| it.row.clone())),
    };
    ChunkResult { chunk, state }
}

fn filters() -> Vec<SubmissionFilter> {
    let states = [
        None,
        Some(SubmissionState::Running),
        Some(SubmissionState::Completed),
        Some(SubmissionState::Failed),
        Some(SubmissionState::Cancelled),
    ];
    // "red" begins "redder", and 1 and true differ only in kind: neither may be found for the other.
    let texts = ["red", "redder", "blue", "none"].map(|it| MetaValue::Text(it.into()));
    let sizes = [-1, 0, 1].map(MetaValue::Integer);
    let one = |field: &str, value: MetaValue| Metadata::from([(field.into(), value)]);
    let mut metadata =
        vec![Metadata::new(), one("size", MetaValue::Bool(true)), one("shad", texts[0].clone())];
    metadata.extend(texts.iter().map(|shade| one("shade", shade.clone())));
    metadata.extend(sizes.iter().map(|size| one("size", size.clone())));
    for size in sizes {
        let both = [("shade".into(), texts[0].clone()), ("size".into(), size)];
        metadata.push(Metadata::from(both));
    }
    let with_state =
        |metadata: &Metadata| states.map(|state| SubmissionFilter { state, metadata: metadata.clone() });
    metadata.iter().flat_map(with_state).collect()
}

fn listed(machine: &Machine<MemoryTables>, filter: &SubmissionFilter, limit: usize) -> Vec<SubmissionView> {
    let (mut all, mut below) = (Vec::new(), None);
    loop {
        let page = machine.list(filter, below, limit);
        assert!(page.items.len() <= limit);
        all.extend(page.items);
        assert!(page.next.is_none() || below.is_none() || page.next < below, "each page lies below the last");
        below = page.next;
        if below.is_none() {
            return all;
        }
    }
}

fn expected(room: &Room, filter: &SubmissionFilter) -> Vec<SubmissionView> {
    let has_all = |it: &Handed| {
        filter.metadata.iter().all(|(field, value)| it.submit.metadata.get(field) == Some(value))
    };
    let is_shown = |it: &Handed| filter.state.is_none_or(|state| state == it.state) && has_all(it);
    room.submissions.iter().rev().filter(|(_, it)| is_shown(it)).map(|(id, it)| view(*id, it)).collect()
}

/// The filter as a bulk verb has it; one for any state is also one for what can get another round.
fn selections(filter: SubmissionFilter) -> Vec<Selection> {
    let standings = match filter.state {
        Some(state) => vec![SelectedStanding::In(state)],
        None => vec![SelectedStanding::Any, SelectedStanding::Retryable],
    };
    standings.into_iter().map(|standing| Selection { standing, metadata: filter.metadata.clone() }).collect()
}

fn selected(machine: &Machine<MemoryTables>, selection: &Selection, looked_at: usize) -> Vec<SubmissionId> {
    let (mut all, mut below) = (Vec::new(), None);
    loop {
        let page = machine.select(selection, below, looked_at);
        assert!(page.items.len() <= looked_at);
        all.extend(page.items);
        below = page.next;
        if below.is_none() {
            return all;
        }
    }
}

fn is_selected(selection: &Selection, it: &Handed) -> bool {
    let stands = match selection.standing {
        SelectedStanding::Any => true,
        SelectedStanding::In(state) => it.state == state,
        SelectedStanding::Retryable => it.state != SubmissionState::Cancelled && it.counts().failed > 0,
    };
    stands && selection.metadata.iter().all(|(field, value)| it.submit.metadata.get(field) == Some(value))
}
