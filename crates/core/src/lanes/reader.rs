//! The reader: the next tasks of one queue, in memory, however many there are on disk.
//!
//! Of all levels in order, A is how far everything is done, R how far the reader has read, and M the highest one:
//!
//! ```text
//!   ──────A────────R──────────────────────────M──────▶
//!     done   known         on disk only
//! ```
//!
//! Whoever owns it reads rows above R from the tables when [`Reader::next_read`] asks for some, and tells it of every task
//! that is placed, done, or without a place. A task that is placed at or below R is taken in at once; one above R too, if R
//! is the end of the queue. A gap behind A in which everything is done is not read. If the buffer overflows, its last tasks are
//! let go and R goes back to the last one that is kept.
//!
//! Invariants
//! - Every undone task at or below R is in memory: ready or out.
//! - At most `buffer` tasks are ready. Those that are out do not count.
//! - If nothing is ready and R is not the end, a read is under way or asked for: the reader is never stuck.
//! - Among ready tasks the smallest level goes first.
//!
//! With b ready tasks every operation costs O(log b); a read of k rows O(k log b), and what is out is looked through for each read and
//! for each note of how far everything is done.

use super::acks::{Acked, Gap};
use super::desk::Buffer;
use super::levels::Level;
use super::tasks::TaskId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// A task as the reader knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Its level.
    pub level: Level,
    /// Its key.
    pub key: Arc<str>,
    /// What its key is charged for it; nothing if that was done before.
    pub stride: u32,
}

/// What is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Rows above this level; all if there is none.
    pub above: Option<Level>,
    /// Rows up to this level: behind it, everything is done for a while.
    pub up_to: Option<Level>,
    /// So many at most.
    pub limit: usize,
}

/// See the file's head.
#[derive(Debug)]
pub struct Reader {
    buffer: Buffer,
    /// Levels in which nothing is left: they are not read.
    gap: Option<Gap>,
    read_to: Option<Level>,
    is_at_end: bool,
    read: Option<UnderWay>,
    /// Ready tasks by level.
    ready: BTreeMap<Level, Ready>,
    out: BTreeMap<TaskId, Placed>,
    out_levels: BTreeSet<Level>,
}

/// What is known of a ready task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) key: Arc<str>,
    pub(super) stride: u32,
}

/// What happened while a read was under way, which may have come before or after it looked.
#[derive(Debug, Default)]
struct UnderWay {
    placed: BTreeMap<Level, Placed>,
    /// By level: a task that has failed may have got another one since.
    gone: BTreeSet<Level>,
    /// R went back: between it and the rows that come, something is on disk only.
    is_void: bool,
    /// It goes no further than the gap.
    is_to_gap: bool,
}

impl Reader {
    /// A reader that has read nothing above an ack level.
    ///
    /// # Panics
    /// If the buffer holds no more than what it is filled again at.
    pub fn new(acked: Acked, buffer: Buffer) -> Reader {
        assert!(buffer.reload_at < buffer.tasks, "a buffer that is never full enough would be read for ever");
        Reader {
            buffer,
            gap: acked.gap,
            read_to: acked.level,
            is_at_end: false,
            read: None,
            ready: BTreeMap::new(),
            out: BTreeMap::new(),
            out_levels: BTreeSet::new(),
        }
    }

    /// A reader of a rank that has no tasks.
    pub fn of_empty(buffer: Buffer) -> Reader {
        Reader { is_at_end: true, ..Reader::new(Acked::default(), buffer) }
    }

    /// R: how far it has read.
    pub const fn read_to(&self) -> Option<Level> {
        self.read_to
    }

    /// Whether R is the end of the queue.
    pub const fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// How many tasks are ready in memory.
    pub fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// How many tasks are out.
    pub fn out_len(&self) -> usize {
        self.out.len()
    }

    /// The ready tasks, for the audit.
    pub(super) const fn ready(&self) -> &BTreeMap<Level, Ready> {
        &self.ready
    }

    /// The tasks that are out, for the audit.
    pub(super) const fn out(&self) -> &BTreeMap<TaskId, Placed> {
        &self.out
    }

    /// Their levels, for the audit.
    pub(super) const fn out_levels(&self) -> &BTreeSet<Level> {
        &self.out_levels
    }

    /// How much it keeps, for the audit.
    pub(super) const fn buffer(&self) -> Buffer {
        self.buffer
    }

    /// Whether rows are being read, for the audit.
    pub(super) const fn is_read_under_way(&self) -> bool {
        self.read.is_some()
    }

    /// Whether there may be tasks that it has not read yet, and none that it has.
    pub fn is_waiting_for_rows(&self) -> bool {
        self.ready.is_empty() && !self.is_at_end
    }

    /// Whether more rows should be read.
    pub fn needs_rows(&self) -> bool {
        !self.is_at_end && self.ready.len() <= self.buffer.reload_at
    }

    /// The lowest level that is not done, as far as it has read; none if all is.
    pub fn lowest_undone(&self) -> Option<Level> {
        let ready = self.ready.first_key_value().map(|(level, _)| *level);
        let placed = self.read.as_ref().and_then(|it| it.placed.first_key_value()).map(|(level, _)| *level);
        ready.into_iter().chain(self.out_levels.first().copied()).chain(placed).min()
    }

    /// The widest stretch up to a level in which nothing is out, if something is out before it. No ready task may stand before that level.
    pub(super) fn widest_gap(&self, end: Level) -> Option<Gap> {
        let mut out = self.out_levels.range(..=end).copied();
        let mut above = out.next()?;
        let mut widest: Option<Gap> = None;
        loop {
            let next = out.next();
            let to = next.map_or(Some(end), Level::before).filter(|to| *to > above);
            let gap = to.map(|to| Gap { above, to });
            widest = widest.into_iter().chain(gap).max_by_key(|gap| gap.passes());
            match next {
                Some(next) => above = next,
                None => return widest,
            }
        }
    }

    /// What to read now, if anything. The answer comes with [`Reader::take_in`], or else with [`Reader::give_up_read`].
    pub fn next_read(&mut self) -> Option<Read> {
        if self.read.is_some() || !self.needs_rows() {
            return None;
        }
        let gap = self.gap.filter(|gap| self.read_to < Some(gap.to));
        if let Some(gap) = gap.filter(|gap| self.read_to >= Some(gap.above)) {
            self.read_to = Some(gap.to);
        }
        let up_to = gap.filter(|gap| self.read_to < Some(gap.above)).map(|gap| gap.above);
        self.read = Some(UnderWay { is_to_gap: up_to.is_some(), ..UnderWay::default() });
        // What is out above R lies in the way and is left out again, but never all of a read.
        let above = self.read_to.map_or(Bound::Unbounded, Bound::Excluded);
        let in_the_way = self.out_levels.range((above, Bound::Unbounded)).count();
        Some(Read { above: self.read_to, up_to, limit: self.buffer.tasks - self.ready.len() + in_the_way })
    }

    /// Takes in the rows that were read, in order, but for those that are somebody else's. Fewer than were asked for means that
    /// the last one is the end.
    pub fn take_in(
        &mut self,
        rows: impl IntoIterator<Item = Placed>,
        is_end: bool,
        is_own: impl Fn(&Placed) -> bool,
    ) {
        let UnderWay { placed, gone, is_void, is_to_gap } =
            self.read.take().expect("rows come when they were asked for");
        if !is_void {
            for row in rows {
                self.read_to = self.read_to.max(Some(row.level));
                if !gone.contains(&row.level) && is_own(&row) {
                    self.make_ready(row);
                }
            }
            match self.gap.filter(|_| is_to_gap && is_end) {
                Some(gap) => self.read_to = self.read_to.max(Some(gap.to)),
                None => self.is_at_end = is_end,
            }
            self.cut();
        }
        self.merge_all(placed, &gone);
    }

    /// The read failed: it may be asked for again.
    pub fn give_up_read(&mut self) {
        let UnderWay { placed, gone, .. } =
            self.read.take().expect("only a read that is under way is given up");
        self.merge_all(placed, &gone);
    }

    fn merge_all(&mut self, placed: BTreeMap<Level, Placed>, gone: &BTreeSet<Level>) {
        for it in placed.into_values() {
            if !gone.contains(&it.level) {
                self.merge(it);
            }
        }
    }

    /// A task has got a place.
    pub fn place(&mut self, it: Placed) {
        if let Some(read) = &mut self.read {
            read.gone.remove(&it.level);
            // The read that is under way may have come to it, or not.
            if Some(it.level) > self.read_to {
                read.placed.insert(it.level, it);
                return;
            }
        }
        self.merge(it);
    }

    /// A task has no place any more: it is done, or has failed, or was taken away.
    pub fn remove(&mut self, level: Level) {
        if let Some(read) = &mut self.read {
            read.gone.insert(level);
        }
        // Mostly it is out from there, and then it is not ready.
        if self.take_out(level.id) != Some(level) {
            self.ready.remove(&level);
        }
    }

    /// A task is not out any more, whatever became of it.
    pub fn forget(&mut self, id: TaskId) {
        self.take_out(id);
    }

    /// The level of a task that was out, and is not any more.
    fn take_out(&mut self, id: TaskId) -> Option<Level> {
        let Placed { level, .. } = self.out.remove(&id)?;
        self.out_levels.remove(&level);
        Some(level)
    }

    /// A task has another place.
    pub fn shift(&mut self, from: Level, to: Placed) {
        if let Some(out) = self.out.get_mut(&from.id) {
            self.out_levels.remove(&out.level);
            self.out_levels.insert(to.level);
            out.level = to.level;
            if let Some(read) = &mut self.read {
                read.gone.insert(from);
            }
            return;
        }
        self.remove(from);
        self.place(to);
    }

    /// The ready task with the smallest level.
    pub fn first(&self) -> Option<(Level, &Arc<str>)> {
        self.ready.first_key_value().map(|(level, ready)| (*level, &ready.key))
    }

    /// Lets the first ready task go: it is somebody else's.
    pub fn skip_first(&mut self) {
        self.ready.pop_first();
    }

    /// Hands out the task with the smallest level.
    pub fn hand_out(&mut self) -> Option<Placed> {
        let (level, Ready { key, stride }) = self.ready.pop_first()?;
        let placed = Placed { level, key, stride };
        self.out_levels.insert(level);
        self.out.insert(level.id, placed.clone());
        Some(placed)
    }

    /// Takes a task back that nobody works on any more, for [`Reader::place`]; it is not charged again.
    pub fn take_back(&mut self, id: TaskId) -> Option<Placed> {
        let placed = self.out.remove(&id)?;
        self.out_levels.remove(&placed.level);
        Some(Placed { stride: 0, ..placed })
    }

    /// Lets all ready tasks go; they are read again.
    pub fn let_go(&mut self) {
        let Some((first, _)) = self.ready.first_key_value() else { return };
        self.read_to = first.before();
        self.ready.clear();
        self.is_at_end = false;
        if let Some(read) = &mut self.read {
            read.is_void = true;
        }
    }

    /// A consumer still works on a task that it got from an earlier leader.
    pub fn hold(&mut self, placed: Placed) {
        self.ready.remove(&placed.level);
        self.out_levels.insert(placed.level);
        self.out.insert(placed.level.id, placed);
    }

    /// Takes a task in if nothing that is not known can lie before it.
    fn merge(&mut self, it: Placed) {
        if Some(it.level) > self.read_to {
            if !self.is_at_end {
                return;
            }
            self.read_to = Some(it.level);
        }
        self.make_ready(it);
        self.cut();
    }

    fn make_ready(&mut self, it: Placed) {
        if !self.out.contains_key(&it.level.id) {
            self.ready.insert(it.level, Ready { key: it.key, stride: it.stride });
        }
    }

    /// Lets go what does not fit, from the end.
    fn cut(&mut self) {
        if self.ready.len() <= self.buffer.tasks {
            return;
        }
        while self.ready.len() > self.buffer.tasks {
            self.ready.pop_last();
        }
        self.read_to = self.ready.last_key_value().map(|(level, _)| *level);
        self.is_at_end = false;
        if let Some(read) = &mut self.read {
            read.is_void = true;
        }
    }
}
