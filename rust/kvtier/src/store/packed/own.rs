//! A segment that this process owns: which of its slots are free, and its table, which only the owner writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use super::format::{Entry, Geometry, Header, SlotState, TablePage};
use super::hints::Hints;
use super::segment::{SegmentFile, Through};
use crate::buffer::PAGE;
use crate::error::{Error, ErrorKind, Result};
use crate::io::IoEngine;
use crate::process::Home;
use crate::sync::Mutex;

/// A segment's lock, held. Within the process `busy` is what keeps others from it, since they share its description.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) file: Arc<SegmentFile>,
    busy: Arc<AtomicBool>,
    home: Home,
}

impl Claim {
    /// Takes the lock, unless somebody has it, here or in another process.
    pub(super) fn try_take(file: &Arc<SegmentFile>, busy: &Arc<AtomicBool>) -> rustix::io::Result<Option<Self>> {
        if busy.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        let locked = file.try_lock();
        if matches!(locked, Ok(true)) {
            return Ok(Some(Self { file: Arc::clone(file), busy: Arc::clone(busy), home: Home::here() }));
        }
        busy.store(false, Ordering::Release);
        locked.map(|_| None)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A forked child shares the description, and so the lock, which is its parent's.
        if self.home.is_surely_here() {
            self.file.unlock();
        }
        self.busy.store(false, Ordering::Release);
    }
}

/// An owned segment. When the last of its slots in flight and the namespace have let go of it, so has the process; its
/// blocks stay.
#[derive(Debug)]
pub(super) struct OwnSegment {
    pub(super) header: Header,
    pub(super) geometry: Geometry,
    pub(super) file: Arc<SegmentFile>,
    hints: Arc<Hints>,
    state: Mutex<OwnState>,
    _claim: Claim,
}

#[derive(Debug)]
struct OwnState {
    /// Slots that nothing was written to in this generation, or whose writing has ended without a block; the next one is
    /// the last.
    free: Vec<u32>,
    pages: Vec<TablePage>,
    waiting: Vec<Change>,
    /// Whether some thread is writing the table; it takes what waits, too.
    writing: bool,
    /// Whether the device has refused a page: then this is no place for more.
    failed: bool,
}

/// A change of one slot's entry.
pub(super) struct Change {
    slot: u32,
    entry: Entry,
    /// The slot, if it is in flight.
    ticket: Option<SlotTicket>,
    /// Whether the device has to have it.
    durable: bool,
    then: Box<dyn FnOnce(Result<()>) + Send>,
}

impl std::fmt::Debug for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Change(slot {})", self.slot)
    }
}

impl OwnSegment {
    /// Goes on with a segment whose table is `pages`.
    pub(super) fn new(
        header: Header,
        geometry: Geometry,
        claim: Claim,
        pages: Vec<TablePage>,
        hints: &Arc<Hints>,
    ) -> Arc<Self> {
        let is_free = |slot: &u32| {
            let (page, entry) = geometry.entry_of(*slot);
            pages.get(page).is_some_and(|page| page.entries[entry].is_none())
        };
        let free = (0..geometry.slots).rev().filter(is_free).collect();
        let state = OwnState { free, pages, waiting: Vec::new(), writing: false, failed: false };
        let (file, hints) = (Arc::clone(&claim.file), Arc::clone(hints));
        Arc::new(Self { header, geometry, file, hints, state: Mutex::new(state), _claim: claim })
    }

    pub(super) fn id(&self) -> u32 {
        self.header.segment
    }

    /// A slot to write a block to.
    pub(super) fn take_slot(self: &Arc<Self>) -> Option<SlotTicket> {
        let mut state = self.state.lock();
        let slot = if state.failed { None } else { state.free.pop() }?;
        Some(SlotTicket { own: Arc::clone(self), slot, filled: false })
    }

    /// How many slots are free.
    pub(super) fn free_slots(&self) -> usize {
        let state = self.state.lock();
        if state.failed { 0 } else { state.free.len() }
    }

    /// Marks a block as one that is of no use.
    pub(super) fn bury(self: &Arc<Self>, slot: u32, then: Box<dyn FnOnce(Result<()>) + Send>) {
        let (page, index) = self.geometry.entry_of(slot);
        let known = self.state.lock().pages.get(page).and_then(|page| page.entries[index]);
        match known {
            Some(entry) => {
                let entry = Entry { state: SlotState::Dead, ..entry };
                self.change([Change { slot, entry, ticket: None, durable: false, then }], None);
            }
            None => then(Ok(())),
        }
    }

    /// Writes entries, and those that others want to write meanwhile, page by page. With an engine that completes later
    /// this returns at once, and what is changed by the work that is just being done goes out in one write.
    fn change(self: &Arc<Self>, changes: impl IntoIterator<Item = Change>, io: Option<&Arc<dyn IoEngine>>) {
        let mut durable = false;
        {
            let mut state = self.state.lock();
            state.waiting.extend(changes.into_iter().inspect(|change| durable |= change.durable));
            if state.writing {
                return;
            }
            state.writing = true;
        }
        match io.filter(|io| io.completes_later()) {
            None => while self.write_round(Through::Device) {},
            Some(io) => {
                let rounds = Rounds(Arc::clone(self));
                let task = Box::new(move || drop(rounds));
                // Flushing blocks.
                if durable { io.spawn(task) } else { io.spawn_brief(task) }
            }
        }
    }

    /// Writes what waits; false when nothing did, and nobody is writing any more. Only one thread at a time does this, so
    /// pages don't overtake each other.
    fn write_round(&self, through: Through) -> bool {
        let Some((changes, pages)) = self.next_round() else { return false };
        let write = |page| self.file.write_table_page(self.geometry, page, through);
        let mut written: Vec<_> = pages.iter().map(write).collect();
        if changes.iter().any(|change| change.durable)
            && let Err(errno) = self.file.flush()
        {
            written.fill(Err(errno));
        }
        self.settle(changes, &pages, &written);
        true
    }

    /// What waits, and the pages that it changes.
    fn next_round(&self) -> Option<(Vec<Change>, Vec<TablePage>)> {
        let mut state = self.state.lock();
        let changes = std::mem::take(&mut state.waiting);
        if changes.is_empty() {
            state.writing = false;
            return None;
        }
        let pages = self.apply(&mut state, &changes);
        Some((changes, pages))
    }

    /// Tells those who made the changes how it went.
    fn settle(&self, changes: Vec<Change>, pages: &[TablePage], written: &[rustix::io::Result<()>]) {
        self.hints.note(self.id());
        let outcome = |change: &Change| {
            let number = self.geometry.entry_of(change.slot).0;
            let at = pages.iter().position(|page| page.number as usize == number);
            let result = at.and_then(|at| written.get(at).copied()).unwrap_or(Ok(()));
            result.map_err(|e| Error::from_io("writing a segment's table", e.into()))
        };
        let outcomes: Vec<_> = changes.iter().map(outcome).collect();
        if outcomes.iter().any(Result::is_err) {
            self.take_back(&changes, &outcomes);
        }
        for (change, outcome) in changes.into_iter().zip(outcomes) {
            if let (Some(mut ticket), true) = (change.ticket, outcome.is_ok()) {
                ticket.filled = true;
            }
            (change.then)(outcome);
        }
    }

    /// Brings changes into the pages in memory; returns those that changed.
    fn apply(&self, state: &mut OwnState, changes: &[Change]) -> Vec<TablePage> {
        let mut numbers: Vec<usize> = Vec::new();
        for change in changes {
            let (page, index) = self.geometry.entry_of(change.slot);
            if let Some(known) = state.pages.get_mut(page) {
                known.entries[index] = Some(change.entry);
                if !numbers.contains(&page) {
                    known.sequence += 1;
                    numbers.push(page);
                }
            }
        }
        numbers.sort_unstable();
        numbers.into_iter().filter_map(|page| state.pages.get(page).cloned()).collect()
    }

    /// What could not be written is not there.
    fn take_back(&self, changes: &[Change], outcomes: &[Result<()>]) {
        let mut state = self.state.lock();
        for (change, _) in changes.iter().zip(outcomes).filter(|(_, result)| result.is_err()) {
            let (page, index) = self.geometry.entry_of(change.slot);
            if change.ticket.is_some()
                && let Some(page) = state.pages.get_mut(page)
            {
                page.entries[index] = None;
            }
        }
        state.failed = true;
    }
}

/// The writing of a table that is left to an engine. It is done when this is dropped, so also when the engine was stopped.
struct Rounds(Arc<OwnSegment>);

impl Drop for Rounds {
    fn drop(&mut self) {
        while self.0.write_round(Through::Cache) {}
    }
}

/// A slot that a block is being written to. It is used again only when this is dropped, so it goes where the write's
/// memory goes.
#[derive(Debug)]
pub(super) struct SlotTicket {
    pub(super) own: Arc<OwnSegment>,
    pub(super) slot: u32,
    filled: bool,
}

impl SlotTicket {
    /// Where the block goes.
    pub(super) fn offset(&self) -> u64 {
        self.own.geometry.slot_offset(self.slot)
    }

    /// Makes sure that no trailer stands in the slot.
    pub(super) fn wipe(&self) {
        let end = self.offset() + self.own.geometry.slot_bytes;
        // Where nothing can be written, nothing can be published either.
        let _ = self.own.file.write(end - PAGE as u64, &[0; PAGE]);
    }

    /// The block is complete: writes its entry, and calls `then` when every process can see it.
    /// Written by the calling thread, or, where that must not wait for the device, by `io`.
    pub(super) fn publish(
        self,
        entry: Entry,
        durable: bool,
        io: Option<&Arc<dyn IoEngine>>,
        then: Box<dyn FnOnce(Result<()>) + Send>,
    ) {
        let own = Arc::clone(&self.own);
        own.change([Change { slot: self.slot, entry, ticket: Some(self), durable, then }], io);
    }
}

/// Blocks that are complete in their slots: writes their entries, those of a segment together, and waits until every
/// process can see them. How it went with each, in their order.
pub(super) fn publish_together(blocks: Vec<(SlotTicket, Entry)>) -> Vec<Result<()>> {
    let (send, receive) = channel();
    let no_answer = |_: &_| Err(Error::new(ErrorKind::Internal, "the table gave no answer"));
    let mut outcomes: Vec<_> = blocks.iter().map(no_answer).collect();
    let mut segments: Vec<(Arc<OwnSegment>, Vec<Change>)> = Vec::new();
    for ((ticket, entry), outcome) in blocks.into_iter().zip(0..) {
        let (own, slot, send) = (Arc::clone(&ticket.own), ticket.slot, send.clone());
        let then = Box::new(move |written| drop(send.send((outcome, written))));
        let change = Change { slot, entry, ticket: Some(ticket), durable: false, then };
        match segments.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &own)) {
            Some((_, changes)) => changes.push(change),
            None => segments.push((own, vec![change])),
        }
    }
    drop(send);
    for (own, changes) in segments {
        own.change(changes, None);
    }
    // Some may be written by a thread that was at the table already. Each is told of once, or dropped.
    for (outcome, written) in receive {
        if let Some(known) = outcomes.get_mut::<usize>(outcome) {
            *known = written;
        }
    }
    outcomes
}

impl Drop for SlotTicket {
    fn drop(&mut self) {
        if !self.filled {
            self.own.state.lock().free.push(self.slot);
        }
    }
}
