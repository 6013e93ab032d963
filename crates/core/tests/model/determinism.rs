//! Same entries, same rows, however they are flushed and whenever the process restarts.

use crate::commands::Chooser;
use crate::room::Room;
use crate::sequences;
use windlass_core::entry::{Applied, Entry, EntryGroup, Sent};
use windlass_core::machine::Machine;
use windlass_core::seeded::Seeded;
use windlass_core::tables::MemoryTables;

#[test]
fn machines_fed_the_same_entries_hold_the_same_rows_however_they_are_flushed() {
    sequences::run(
        "machines_fed_the_same_entries_hold_the_same_rows_however_they_are_flushed",
        1_000,
        |seed| {
            let mut chance = Seeded::new(seed);
            let groups = groups(&mut chance);
            let reopens_after = chance.below(groups.len() as u64);
            let mut eager = Machine::open(MemoryTables::default());
            let mut lazy = Machine::open(MemoryTables::default());
            let mut reopened = Machine::open(MemoryTables::default());
            for (number, bytes) in (0..).zip(&groups) {
                let by_eager = feed(&mut eager, bytes, true);
                let by_lazy = feed(&mut lazy, bytes, false);
                let by_reopened = feed(&mut reopened, bytes, false);
                assert_eq!(by_eager, by_lazy, "group {number}");
                assert_eq!(by_eager, by_reopened, "group {number}");
                assert_eq!(eager.tables(), lazy.tables(), "group {number}");
                assert_eq!(eager.tables(), reopened.tables(), "group {number}");
                if number == reopens_after {
                    reopened = Machine::open(reopened.tables().clone());
                }
            }
        },
    );
}

/// Groups of entries as the log holds them. A machine of its own tells the chooser what there is to ask for.
fn groups(chance: &mut Seeded) -> Vec<Vec<u8>> {
    let mut chooser = Chooser::new(chance.draw());
    let mut machine = Machine::open(MemoryTables::default());
    let mut room = Room::default();
    let mut groups: Vec<EntryGroup> = Vec::new();
    for _ in 0..20 + chance.below(41) {
        let entry = chooser.next(&room);
        let fits = groups.last().filter(|group| group.epoch == entry.epoch && chance.below(5) > 0);
        // What a group shares, its entries share: this one joins the last group under that group's stamp.
        let entry = match fits {
            Some(group) => {
                let seed = group.seed.wrapping_add(group.commands.len() as u64);
                Entry { at: group.at, seed, sender: group.sender, ..entry }
            }
            None => {
                let Entry { epoch, at, seed, sender, .. } = entry;
                groups.push(EntryGroup { epoch, at, seed, sender, commands: Vec::new() });
                entry
            }
        };
        let sent = Sent { token: entry.token, command: entry.command.clone() };
        groups.last_mut().expect("there is one").commands.push(sent);
        let applied = machine.apply(entry.clone());
        room.apply(&entry, &applied);
    }
    groups.iter().map(EntryGroup::to_bytes).collect()
}

fn feed(machine: &mut Machine<MemoryTables>, bytes: &[u8], flushes_each: bool) -> Vec<Applied> {
    let group = EntryGroup::from_bytes(bytes).expect("what was written is read");
    assert_eq!(group.to_bytes(), bytes, "an entry is stored in one way only");
    let mut all = Vec::new();
    for entry in group.into_entries() {
        all.push(machine.apply(entry));
        if flushes_each {
            machine.flush();
        }
    }
    machine.flush();
    all
}
