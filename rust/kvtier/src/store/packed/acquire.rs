//! Getting a segment to store into: one with room, a new one, or one whose blocks are worth least.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::catalogue::NamespaceId;
use super::format::{Geometry, Header, Page, SlotState, TablePage};
use super::keep::{Kept, read_kept};
use super::own::{Claim, OwnSegment, SlotTicket};
use super::pool::Pool;
use super::segment::{self, SegmentFile, read_all};
use super::site::now_ns;
use crate::buffer::{PAGE, Scratch, ScratchPool};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::Trailer;
use crate::index::Set;
use crate::layout::BlockKey;

/// What a segment is made for.
pub(super) struct Purpose {
    namespace: String,
    identity: [u8; 32],
    epoch: u64,
    geometry: Geometry,
}

impl Pool {
    /// A segment for blocks of `namespace`, owned by this process; `None` when there is none just now.
    ///
    /// # Errors
    /// What making or reading segments fails with.
    pub(super) fn acquire(&self, namespace: NamespaceId) -> Result<Option<Arc<OwnSegment>>> {
        let purpose = self.purpose_of(namespace);
        if let Some(own) = self.adopt_any(namespace)? {
            return Ok(Some(own));
        }
        match self.make_any(&purpose) {
            Ok(Some(own)) => return Ok(Some(own)),
            Ok(None) => {}
            // The disk is full, so room is made within.
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                if self.state.lock().catalogue.segments.values().all(|segment| segment.view.is_none()) {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        let most = self.superblock().most_segments();
        for id in self.by_rank().into_iter().filter(|id| *id < most) {
            if let Some(own) = self.reclaim(id, namespace, &purpose)? {
                return Ok(Some(own));
            }
        }
        Ok(None)
    }

    pub(super) fn purpose_of(&self, namespace: NamespaceId) -> Purpose {
        let state = self.state.lock();
        let known = &state.catalogue.namespaces[namespace];
        Purpose {
            namespace: known.name.clone(),
            identity: known.identity,
            epoch: known.epoch,
            geometry: known.geometry,
        }
    }

    /// Goes on with a segment of the namespace that has room and no owner: one whose owner was closed, or is dead. Its lock
    /// is free, so all that the owner ever wrote has landed. Not with one beyond the cap: that would never go.
    pub(super) fn adopt_any(&self, namespace: NamespaceId) -> Result<Option<Arc<OwnSegment>>> {
        let most = self.superblock().most_segments();
        let mut with_room: Vec<_> = {
            let state = self.state.lock();
            let is_fit = |(id, segment): &(&u32, &super::catalogue::Segment)| {
                **id < most
                    && !segment.failing
                    && segment.view.as_ref().is_some_and(|v| v.namespace == Some(namespace) && v.has_room())
            };
            state.catalogue.segments.iter().filter(is_fit).map(|(id, _)| *id).collect()
        };
        with_room.sort_unstable();
        for id in with_room {
            let Some(claim) = self.claim(id)? else { continue };
            if let Some(own) = self.adopt(claim, namespace)? {
                return Ok(Some(own));
            }
        }
        Ok(None)
    }

    /// Becomes the owner of a segment as it is; `None` when it is not the namespace's any more, or full.
    fn adopt(&self, claim: Claim, namespace: NamespaceId) -> Result<Option<Arc<OwnSegment>>> {
        let header = match claim.file.header(self.superblock().pool) {
            Ok(header) => header,
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(_) => return Ok(None),
        };
        let geometry = self.geometry_of(&header)?;
        if self.state.lock().catalogue.namespace_of(&header) != Some(namespace) {
            return Ok(None);
        }
        let pages = self.settled_table(&claim.file, &header, geometry)?;
        let known: Vec<_> = pages.iter().cloned().map(Some).collect();
        self.state.lock().catalogue.install(&header, geometry, Some(&known), now_ns() / 1_000_000_000);
        let own = OwnSegment::new(header, geometry, claim, pages, &self.hints);
        Ok((own.free_slots() > 0).then_some(own))
    }

    /// Makes a segment, if the bounds allow one more.
    fn make_any(&self, purpose: &Purpose) -> Result<Option<Arc<OwnSegment>>> {
        let bytes = self.superblock().segment_bytes;
        let most = self.superblock().most_segments();
        let usable = self.usable_segments();
        // As a rule, all that may be there are.
        if usable.range(..most).count() == most as usize {
            return Ok(None);
        }
        let mut there = self.site.segments()?;
        there.sort_unstable();
        for id in there.iter().filter(|id| **id < most && !usable.contains(id)) {
            // Begun by somebody who is gone, or damaged: there is nothing in it that could be found.
            if self.is_unusable(*id)
                && let Some(claim) = self.claim(*id)?
                && self.is_unusable(*id)
            {
                return self.make(claim, purpose).map(Some);
            }
        }
        let floor = self.superblock().min_free_bytes;
        if floor > 0 && self.free_bytes() < floor.saturating_add(bytes) {
            return Ok(None);
        }
        for id in (0..most).filter(|id| there.binary_search(id).is_err()) {
            let file = match SegmentFile::create(self.dir(), id, self.access) {
                Ok(file) => self.keep_file(file),
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(Error::from_io("making a segment", errno.into())),
            };
            let Some(claim) = self.claim(id)? else { continue };
            if !Arc::ptr_eq(&claim.file, &file) {
                continue;
            }
            return match self.make(claim, purpose) {
                Ok(own) => Ok(Some(own)),
                Err(error) => {
                    // Nobody has seen anything in it. While this process has its lock, nobody else makes it theirs.
                    let _ = unlinkat(self.dir(), segment::name_of(id), AtFlags::empty());
                    self.forget_file(&file);
                    Err(error)
                }
            };
        }
        Ok(None)
    }

    /// Segments whose content is known.
    fn usable_segments(&self) -> BTreeSet<u32> {
        let state = self.state.lock();
        state.catalogue.segments.iter().filter(|(_, segment)| segment.view.is_some()).map(|(id, _)| *id).collect()
    }

    /// Whether a segment's header says that it was never finished, or is damaged.
    fn is_unusable(&self, id: u32) -> bool {
        match self.file_of(id).and_then(|file| file.header(self.superblock().pool)) {
            Ok(header) => self.geometry_of(&header).is_err(),
            // Another pool's are left alone, whatever they do here.
            Err(error) => error.kind() == ErrorKind::Foreign,
        }
    }

    /// Gives a segment all of its room and a first generation. That is later than any that it may have had, so that no old
    /// trailer is ever taken for one of its own.
    fn make(&self, claim: Claim, purpose: &Purpose) -> Result<Arc<OwnSegment>> {
        let bytes = self.superblock().segment_bytes;
        claim.file.allocate(bytes).map_err(|errno| {
            let error = Error::from_io("reserving room for a segment", errno.into());
            error.with("segment", segment::name_of(claim.file.id)).with("bytes", bytes)
        })?;
        self.begin(claim, purpose, now_ns())
    }

    /// Begins a generation in a segment that is locked.
    fn begin(&self, claim: Claim, purpose: &Purpose, generation: u64) -> Result<Arc<OwnSegment>> {
        let Purpose { namespace, identity, epoch, geometry } = purpose;
        let id = claim.file.id;
        let header = Header {
            pool: self.superblock().pool,
            segment: id,
            slots: geometry.slots,
            slot_bytes: geometry.slot_bytes,
            payload_bytes: self.payload_bytes(namespace),
            generation,
            epoch: *epoch,
            born_unix_ns: now_ns(),
            owner: self.nonce,
            identity: *identity,
            namespace: namespace.clone(),
        };
        claim.file.write_header(&header)?;
        self.hints.note(id);
        let empty = |number| TablePage::empty(header.pool, id, number as u32, generation);
        let pages: Vec<_> = (0..geometry.table_pages()).map(empty).collect();
        let known: Vec<_> = pages.iter().cloned().map(Some).collect();
        self.state.lock().catalogue.install(&header, *geometry, Some(&known), now_ns() / 1_000_000_000);
        Ok(OwnSegment::new(header, *geometry, claim, pages, &self.hints))
    }

    fn payload_bytes(&self, namespace: &str) -> u64 {
        let state = self.state.lock();
        let known = state.catalogue.namespaces.iter().find(|known| known.name == *namespace);
        known.map_or(0, |known| known.payload_bytes)
    }

    /// Takes a segment with all that is in it for blocks of `namespace`; its hot blocks stay. `None` when it can't be had
    /// just now.
    pub(super) fn reclaim(
        &self,
        id: u32,
        namespace: NamespaceId,
        purpose: &Purpose,
    ) -> Result<Option<Arc<OwnSegment>>> {
        let Some(emptied) = self.empty(id, Some(namespace))? else { return Ok(None) };
        let (from, mut dropped) = (emptied.from, emptied.dropped);
        let own = if from == Some(namespace) {
            let own = self.begin_anew(emptied.claim, purpose, &emptied.header)?;
            dropped.extend(self.keep(namespace, emptied.kept, std::iter::from_fn(|| own.take_slot())));
            own
        } else {
            if let Some(from) = from {
                dropped.extend(self.keep(from, emptied.kept, emptied.elsewhere.into_iter()));
            }
            self.begin_anew(emptied.claim, purpose, &emptied.header)?
        };
        self.tell_dropped(from, &dropped);
        Ok(Some(own))
    }

    /// Begins the next generation of a segment. Where that can't be written, its blocks are there still.
    fn begin_anew(&self, claim: Claim, purpose: &Purpose, header: &Header) -> Result<Arc<OwnSegment>> {
        let begun = self.begin(claim, purpose, header.generation + 1);
        if begun.is_err() {
            self.refresh(header.segment);
        }
        begun
    }

    /// Takes a segment away, and gives its room back to the file system; false when it can't be had just now.
    pub(super) fn discard(&self, id: u32) -> Result<bool> {
        let Some(emptied) = self.empty(id, None)? else { return Ok(false) };
        let Emptied { claim, header, kept, elsewhere, mut dropped, from } = emptied;
        if let Some(from) = from {
            dropped.extend(self.keep(from, kept, elsewhere.into_iter()));
        }
        // Those who have it open shall see that nothing in it counts any more.
        let next = Header { generation: header.generation + 1, namespace: String::new(), ..header };
        if let Err(error) = claim.file.write_header(&next) {
            drop(claim);
            self.refresh(id);
            return Err(error);
        }
        self.hints.note(id);
        claim.file.punch();
        unlinkat(self.dir(), segment::name_of(id), AtFlags::empty())
            .map_err(|e| Error::from_io("removing a segment", e.into()))?;
        self.forget_file(&claim.file);
        self.tell_dropped(from, &dropped);
        Ok(true)
    }

    /// Claims a segment, and makes its blocks unknown here. Nothing on storage has changed yet.
    fn empty(&self, id: u32, into: Option<NamespaceId>) -> Result<Option<Emptied>> {
        let Some(claim) = self.claim(id)? else { return Ok(None) };
        let emptied = self.empty_claimed(claim, into);
        if !matches!(emptied, Ok(Some(_))) {
            // Who opened a namespace meanwhile has left the segment to its owner.
            self.refresh(id);
        }
        emptied
    }

    fn empty_claimed(&self, claim: Claim, into: Option<NamespaceId>) -> Result<Option<Emptied>> {
        let id = claim.file.id;
        let header = match claim.file.header(self.superblock().pool) {
            Ok(header) => header,
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(_) => return Ok(None),
        };
        let geometry = self.geometry_of(&header)?;
        let Some(elsewhere) = self.room_elsewhere(id, into)? else { return Ok(None) };
        let pages = Self::read_table(&claim.file, &header, geometry)?;
        let (from, stay) = {
            let mut state = self.state.lock();
            let Some(view) = state.catalogue.view(id) else { return Ok(None) };
            if view.is_held() || view.header.generation != header.generation {
                return Ok(None);
            }
            let from = view.namespace;
            let is_same = from.is_some() && from == into;
            let stay = if is_same { view.kept_slots(&*self.policy) } else { view.pinned_slots() };
            // More were pinned meanwhile.
            if !is_same && stay.len() > elsewhere.len() {
                return Ok(None);
            }
            state.catalogue.take_view(id);
            (from, stay)
        };
        let kept = read_kept(&claim.file, &header, geometry, stay);
        let stay: Set<_> = kept.iter().map(|kept| kept.trailer.key).collect();
        let is_dropped = |key: &BlockKey| !stay.contains(key);
        let blocks = pages.iter().flatten().flat_map(|page| page.entries.iter().flatten());
        let dropped = blocks
            .filter(|entry| entry.state == SlotState::Block)
            .filter_map(|entry| entry.name.key())
            .filter(is_dropped)
            .collect();
        Ok(Some(Emptied { claim, header, kept, elsewhere, dropped, from }))
    }
}

/// A segment on its way from one generation to the next.
struct Emptied {
    claim: Claim,
    header: Header,
    /// Blocks that stay, in memory meanwhile.
    kept: Vec<Kept>,
    /// Slots for them, where the segment is taken from their namespace.
    elsewhere: Vec<SlotTicket>,
    dropped: Vec<BlockKey>,
    from: Option<NamespaceId>,
}

/// Reads a whole block of a segment, and verifies it as far as that can be done without being asked for it.
pub(super) fn read_block(
    file: &SegmentFile,
    header: &Header,
    geometry: Geometry,
    slot: u32,
    scratch: &Arc<ScratchPool>,
) -> Result<(Trailer, Scratch)> {
    let mut block = scratch.take()?;
    let bytes = geometry.slot_bytes as usize;
    read_all(&file.data, geometry.slot_offset(slot), &mut block[..bytes])
        .map_err(|e| Error::from_io("reading a block", e.into()))?;
    let Some(page) = block[..bytes].last_chunk::<PAGE>() else {
        return Err(Error::new(ErrorKind::Internal, "a slot without a trailer"));
    };
    let trailer = trailer_of(page, header).ok_or_else(|| Error::new(ErrorKind::Foreign, "no block of the segment"))?;
    let payload = block.get(..trailer.payload_bytes as usize).unwrap_or_default();
    if trailer.algorithm.of([payload]) != trailer.payload_checksum {
        return Err(Error::new(ErrorKind::Checksum, "the block's checksum is wrong"));
    }
    Ok((trailer, block))
}

/// The trailer on a page, if it is one of the segment's generation.
pub(super) fn trailer_of(page: &Page, header: &Header) -> Option<Trailer> {
    Trailer::decode(page).ok().filter(|trailer| {
        (trailer.placement, trailer.identity, trailer.payload_bytes)
            == (header.generation, header.identity, header.payload_bytes)
    })
}
