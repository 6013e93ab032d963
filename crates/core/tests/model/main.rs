//! The batch room against naive models of it, by chance.
//!
//! `room` is the model, `commands` chooses what is asked of it, `reading` compares what readers see, `reserving` is
//! the model of the leader's reserver, `sequences` runs the seeds and says how to replay one that fails.

mod commands;
mod determinism;
mod reading;
mod reserving;
mod room;
mod sequences;

use commands::Chooser;
use room::Room;
use windlass_core::audit;
use windlass_core::machine::Machine;
use windlass_core::seeded::Seeded;
use windlass_core::tables::MemoryTables;

#[test]
fn the_batch_room_answers_as_the_naive_model_does() {
    sequences::run("the_batch_room_answers_as_the_naive_model_does", 10_000, |seed| {
        let mut chance = Seeded::new(seed);
        let mut chooser = Chooser::new(chance.draw());
        let mut machine = Machine::open(MemoryTables::default());
        let mut room = Room::default();
        for _ in 0..20 + chance.below(41) {
            let entry = chooser.next(&room);
            let applied = machine.apply(entry.clone());
            let expected = room.apply(&entry, &applied);
            assert_eq!(applied, expected, "after {entry:?}");
            machine.flush();
            audit::check(&machine);
            assert_eq!((machine.epoch(), machine.at()), (room.epoch, room.at), "after {entry:?}");
            assert_eq!(machine.replies(), room.replies.len() as u64, "after {entry:?}");
            if chance.below(12) == 0 {
                machine = reopened(machine);
            }
        }
        reading::agrees(&machine, &room, &mut chance);
    });
}

/// The machine as the next process finds it: what is in the tables and nothing else.
fn reopened(machine: Machine<MemoryTables>) -> Machine<MemoryTables> {
    let mut reopened = Machine::open(machine.tables().clone());
    assert_eq!(reopened.token_key(), machine.token_key());
    assert_eq!(reopened.replies(), machine.replies());
    assert_eq!(reopened.batch().unsettled(), machine.batch().unsettled());
    reopened.flush();
    assert_eq!(reopened.tables(), machine.tables(), "opening changes no row");
    audit::check(&reopened);
    reopened
}
