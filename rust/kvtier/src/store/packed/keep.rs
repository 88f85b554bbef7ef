//! Blocks that stay when their segment is taken: written again, into its next generation, or into other segments.
//!
//! They are all written first and then published together: a page of a table goes out once for as many of them as it has,
//! not once for each. Meanwhile nobody finds them, so it is done at once, by the thread that takes the segment.

use std::sync::Arc;

use super::acquire::read_block;
use super::catalogue::{NamespaceId, Spot, View};
use super::format::{Entry, Geometry, Header};
use super::own::{OwnSegment, SlotTicket, publish_together};
use super::policy::Heat;
use super::pool::Pool;
use super::segment::{SegmentFile, write_all};
use super::site::now_ns;
use crate::buffer::{PAGE, Scratch, ScratchPool};
use crate::error::{Error, Result};
use crate::frame::Trailer;
use crate::layout::BlockKey;

/// A block that moves to another generation, in memory meanwhile.
pub(super) struct Kept {
    pub(super) trailer: Trailer,
    heat: Heat,
    block: Scratch,
}

/// One that lies complete in its new place.
struct Placed {
    key: BlockKey,
    heat: Heat,
    own: Arc<OwnSegment>,
    slot: u32,
}

/// Reads blocks of a segment that shall stay. Those that can't be read, or are damaged, can't.
pub(super) fn read_kept(file: &SegmentFile, header: &Header, geometry: Geometry, stay: Vec<(u32, Heat)>) -> Vec<Kept> {
    let scratch = ScratchPool::new(geometry.slot_bytes as usize, 0);
    let read = |(slot, heat)| {
        let (trailer, block) = read_block(file, header, geometry, slot, &scratch).ok()?;
        Some(Kept { trailer, heat, block })
    };
    stay.into_iter().filter_map(read).collect()
}

impl Kept {
    /// Writes the block into a slot of another generation; returns what is to stand in the table.
    fn write_to(mut self, slot: &SlotTicket) -> rustix::io::Result<Entry> {
        let own = &slot.own;
        let trailer = Trailer { placement: own.header.generation, ..self.trailer };
        let bytes = own.geometry.slot_bytes as usize;
        if let Some(page) = self.block[..bytes].last_chunk_mut::<PAGE>() {
            trailer.encode(page);
        }
        write_all(&own.file.data, slot.offset(), &self.block[..bytes])?;
        Ok(Entry::of(&trailer))
    }
}

impl Pool {
    /// Writes blocks of a namespace again, into these slots; returns the keys of those that could not be.
    pub(super) fn keep(
        &self,
        namespace: NamespaceId,
        kept: Vec<Kept>,
        mut slots: impl Iterator<Item = SlotTicket>,
    ) -> Vec<BlockKey> {
        let mut lost = Vec::new();
        let (mut placed, mut complete) = (Vec::new(), Vec::new());
        // Free again only when all others have theirs: the next one would be given the same slot, and be lost as well.
        let mut unfit = Vec::new();
        for kept in kept {
            let (key, heat) = (kept.trailer.key, kept.heat);
            let Some(slot) = slots.next() else {
                lost.push(key);
                continue;
            };
            match kept.write_to(&slot) {
                Ok(entry) => {
                    placed.push(Placed { key, heat, own: Arc::clone(&slot.own), slot: slot.slot });
                    complete.push((slot, entry));
                }
                Err(errno) => {
                    self.warn_of_lost(&key, &Error::from_io("writing the block again", errno.into()));
                    slot.wipe();
                    unfit.push(slot);
                    lost.push(key);
                }
            }
        }
        for (placed, written) in placed.into_iter().zip(publish_together(complete)) {
            if let Err(error) = &written {
                self.warn_of_lost(&placed.key, error);
                self.note_failing(placed.own.id());
            }
            if written.and_then(|()| self.placed(namespace, &placed)).is_err() {
                lost.push(placed.key);
            }
        }
        lost
    }

    /// Makes a block known in its new place.
    fn placed(&self, namespace: NamespaceId, placed: &Placed) -> Result<()> {
        let Placed { key, heat, own, slot } = placed;
        self.published(namespace, &own.header, *slot, key)?;
        let there = Spot { segment: own.id(), slot: *slot };
        // A second chance, not an endless one.
        self.state.lock().catalogue.set_heat(there, heat.saturating_sub(1));
        Ok(())
    }

    fn warn_of_lost(&self, key: &BlockKey, error: &Error) {
        self.failed_work.warn(module_path!(), format_args!("a block that was to stay is lost: {error} [key={key}]"));
    }

    /// Slots in other segments for the pinned blocks of one that is taken from their namespace, and that this process has
    /// locked; `None` when there are not enough.
    pub(super) fn room_elsewhere(&self, id: u32, into: Option<NamespaceId>) -> Result<Option<Vec<SlotTicket>>> {
        let mut slots = Vec::new();
        let (from, wanted) = {
            let mut state = self.state.lock();
            state.catalogue.end_pins(now_ns());
            match state.catalogue.view(id) {
                Some(View { namespace: Some(from), pinned, .. }) if Some(*from) != into => (*from, pinned.len()),
                _ => return Ok(Some(slots)),
            }
        };
        let fill = |slots: &mut Vec<SlotTicket>| {
            let mut state = self.state.lock();
            let station = &mut state.stations[from];
            slots.extend(std::iter::from_fn(|| station.take_slot().0).take(wanted - slots.len()));
            slots.len() == wanted
        };
        while !fill(&mut slots) {
            let own = match self.another_own(from)? {
                // Where room is given back, whoever has what is left of it shares it.
                None if into.is_none() => self.acquire(from)?,
                own => own,
            };
            let Some(own) = own else { return Ok(None) };
            let mut state = self.state.lock();
            if state.catalogue.namespaces[from].epoch != own.header.epoch {
                return Ok(None);
            }
            state.stations[from].active = Some(own);
        }
        Ok(Some(slots))
    }

    /// One more segment for a namespace, of its own ones.
    fn another_own(&self, namespace: NamespaceId) -> Result<Option<Arc<OwnSegment>>> {
        if let Some(own) = self.adopt_any(namespace)? {
            return Ok(Some(own));
        }
        let purpose = self.purpose_of(namespace);
        let most = self.superblock().most_segments();
        for id in self.by_rank().into_iter().filter(|id| *id < most) {
            let is_own = self.state.lock().catalogue.view(id).is_some_and(|view| view.namespace == Some(namespace));
            if is_own && let Some(own) = self.reclaim(id, namespace, &purpose)? {
                return Ok(Some(own));
            }
        }
        Ok(None)
    }
}
