//! Rebuilding the pages of tables that can't be read, from the trailers of the blocks whose entries they had.
//!
//! A pool without any table has millions of trailers, so they are read on a thread of its own: the keeper serves stores and
//! follows the other processes meanwhile, and whoever closes the pool waits for the reads that are under way, not for the
//! rest.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use super::acquire::trailer_of;
use super::catalogue::Segment;
use super::format::{Entry, Geometry, Header, TablePage};
use super::pool::{Pool, for_each};
use super::segment::{SegmentFile, Through, read_all};
use super::site::now_ns;
use crate::buffer::{PAGE, ScratchPool};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

/// Segments at the same time, and reads of each: together, what a disk needs to be busy with single pages.
const SEGMENTS: usize = 4;
const READS: usize = 8;
/// Slots of up to so many bytes are read whole, many with one read: that takes the device no longer than single trailers, and
/// the processor a tenth of the time.
const SMALL_SLOT: u64 = 16 << 10;
/// Bytes of such a read.
const RUN_BYTES: u64 = 256 << 10;
/// From one look whether the pool is closed to the next, in slots that are read one by one.
const FEW_SLOTS: usize = 8;

/// The thread, if one is at it.
#[derive(Debug, Default)]
pub(super) struct Rebuild {
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Rebuild {
    /// Starts going over the segments whose tables are damaged, unless there are none, or somebody is at it.
    pub(super) fn start(pool: &Arc<Pool>) {
        let mut thread = pool.rebuild.thread.lock();
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let damaged = pool.damaged_segments();
        if damaged.is_empty() {
            return;
        }
        let builder = std::thread::Builder::new().name("kvtier-rebuild".into());
        let shared = Arc::clone(pool);
        match builder.spawn(move || shared.rebuild_tables(&damaged)) {
            Ok(started) => *thread = Some(started),
            Err(error) => pool.failed_work.warn(module_path!(), format_args!("no thread to rebuild tables: {error}")),
        }
    }

    /// Waits for the thread, which has seen that the pool is closed.
    pub(super) fn stop(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic there would have been a defect, and is over now.
            let _ = thread.join();
        }
    }
}

impl Pool {
    fn damaged_segments(&self) -> Vec<u32> {
        let state = self.state.lock();
        let is_damaged = |(_, segment): &(&u32, &Segment)| {
            segment.view.as_ref().is_some_and(|view| view.damaged_pages().next().is_some())
        };
        state.catalogue.segments.iter().filter(is_damaged).map(|(id, _)| *id).collect()
    }

    /// Rebuilds what nobody owns. A segment's owner knows what lies there, and writes the page with its next block.
    fn rebuild_tables(&self, damaged: &[u32]) {
        let (began, rebuilt) = (Instant::now(), AtomicUsize::new(0));
        for_each(damaged, SEGMENTS, |id| match self.rebuild_table(*id) {
            Ok(done) => drop(rebuilt.fetch_add(usize::from(done), Ordering::Relaxed)),
            Err(error) if error.kind() == ErrorKind::Shutdown => {}
            Err(error) => {
                self.failed_work.warn(module_path!(), format_args!("a damaged table can't be rebuilt now: {error}"));
            }
        });
        self.answer_probes();
        let (rebuilt, root) = (rebuilt.into_inner(), self.site.path.display());
        if rebuilt > 0 {
            let took = began.elapsed().as_secs_f64();
            log::warn!("damaged tables of {rebuilt} segments in {root} were rebuilt from their blocks, in {took:.1} s");
        }
    }

    /// Rebuilds a segment's table, if nobody has the segment; returns whether it did.
    fn rebuild_table(&self, id: u32) -> Result<bool> {
        let claim = if self.access.read_only { None } else { self.claim(id)? };
        if claim.is_none() && !self.access.read_only {
            return Ok(false);
        }
        let file = claim.as_ref().map_or_else(|| self.file_of(id), |claim| Ok(Arc::clone(&claim.file)))?;
        let header = file.header(self.superblock().pool)?;
        let geometry = self.geometry_of(&header)?;
        let pages = if claim.is_some() {
            self.settled_table(&file, &header, geometry)?
        } else {
            self.whole_table(&file, &header, geometry)?.0
        };
        // Nobody stops a process that may write from beginning anew in a segment that is only read here.
        if claim.is_none() && file.header(self.superblock().pool)? != header {
            return Ok(false);
        }
        let pages: Vec<_> = pages.into_iter().map(Some).collect();
        self.state.lock().catalogue.install(&header, geometry, Some(&pages), file.used());
        Ok(true)
    }

    /// The table of a segment that is locked, whole: what was damaged is rebuilt, and written.
    pub(super) fn settled_table(
        &self,
        file: &SegmentFile,
        header: &Header,
        geometry: Geometry,
    ) -> Result<Vec<TablePage>> {
        let (pages, rebuilt) = self.whole_table(file, header, geometry)?;
        for page in rebuilt.iter().filter_map(|number| pages.get(*number)) {
            file.write_table_page(geometry, page, Through::Device)
                .map_err(|e| Error::from_io("writing a segment's table", e.into()))?;
        }
        if !rebuilt.is_empty() {
            self.hints.note(header.segment);
        }
        Ok(pages)
    }

    /// The table of a segment, whole, and the numbers of its pages that were damaged.
    fn whole_table(
        &self,
        file: &SegmentFile,
        header: &Header,
        geometry: Geometry,
    ) -> Result<(Vec<TablePage>, Vec<usize>)> {
        let found = Self::read_table(file, header, geometry)?;
        let damaged: Vec<_> = (0..found.len()).filter(|number| found[*number].is_none()).collect();
        let mut rebuilt = self.rebuilt_pages(file, header, geometry, &damaged)?.into_iter();
        let pages = found.into_iter().filter_map(|page| page.or_else(|| rebuilt.next())).collect();
        Ok((pages, damaged))
    }

    /// These pages of a segment's table, in order, from the trailers of the blocks whose entries they have.
    fn rebuilt_pages(
        &self,
        file: &SegmentFile,
        header: &Header,
        geometry: Geometry,
        numbers: &[usize],
    ) -> Result<Vec<TablePage>> {
        let together = slots_together(geometry);
        let parts: Vec<_> = numbers.iter().flat_map(|number| parts(geometry.slots_of(*number), together)).collect();
        let scratch = ScratchPool::new(together * geometry.slot_bytes.min(SMALL_SLOT) as usize, READS);
        let mut found = Mutex::new(Ok(Vec::new()));
        for_each(&parts, READS, |slots| {
            if found.lock().is_err() {
                return;
            }
            let entries = self.entries_of(file, header, geometry, slots.clone(), &scratch);
            let mut found = found.lock();
            match (&mut *found, entries) {
                (Ok(all), Ok(entries)) => all.extend(entries),
                (Ok(_), Err(error)) => *found = Err(error),
                (Err(_), _) => {}
            }
        });
        // Above whatever it was: pages count from 0.
        let sequence = now_ns();
        let empty = |number| TablePage::empty(header.pool, header.segment, number as u32, header.generation);
        let mut pages: Vec<_> = numbers.iter().map(|number| TablePage { sequence, ..empty(*number) }).collect();
        for (slot, entry) in std::mem::replace(found.get_mut(), Ok(Vec::new()))? {
            let (number, index) = geometry.entry_of(slot);
            let page = numbers.binary_search(&number).ok().and_then(|at| pages.get_mut(at));
            if let Some(place) = page.and_then(|page| page.entries.get_mut(index)) {
                *place = Some(entry);
            }
        }
        Ok(pages)
    }

    /// The entries of the blocks in some slots.
    fn entries_of(
        &self,
        file: &SegmentFile,
        header: &Header,
        geometry: Geometry,
        slots: Range<u32>,
        scratch: &Arc<ScratchPool>,
    ) -> Result<Vec<(u32, Entry)>> {
        if self.state.lock().stopped {
            return Err(Error::new(ErrorKind::Shutdown, "the tier was shut down"));
        }
        let mut memory = scratch.take()?;
        // Where a payload can't be read, the trailers may be.
        if geometry.slot_bytes <= SMALL_SLOT
            && let Ok(found) = read_entries(file, header, geometry, slots.clone(), &mut memory)
        {
            return Ok(found);
        }
        let mut found = Vec::new();
        for slot in slots {
            found.extend(read_entries(file, header, geometry, slot..slot + 1, &mut memory)?);
        }
        Ok(found)
    }
}

/// How many slots are read by one thread before it looks for more.
fn slots_together(geometry: Geometry) -> usize {
    ((RUN_BYTES / geometry.slot_bytes) as usize).max(FEW_SLOTS)
}

fn parts(slots: Range<u32>, most: usize) -> impl Iterator<Item = Range<u32>> {
    let end = slots.end;
    slots.step_by(most).map(move |first| first..end.min(first + most as u32))
}

/// The entries of the blocks in adjacent slots, from the first one's trailer to the last one's in one read.
fn read_entries(
    file: &SegmentFile,
    header: &Header,
    geometry: Geometry,
    slots: Range<u32>,
    memory: &mut [u8],
) -> Result<Vec<(u32, Entry)>> {
    let slot_bytes = geometry.slot_bytes as usize;
    let bytes = slots.len().saturating_sub(1) * slot_bytes + PAGE;
    let at = geometry.slot_offset(slots.start) + geometry.slot_bytes - PAGE as u64;
    let memory = memory.get_mut(..bytes).ok_or_else(|| Error::new(ErrorKind::Internal, "too many slots at once"))?;
    read_all(&file.data, at, memory).map_err(|e| Error::from_io("reading blocks' trailers", e.into()))?;
    let entry =
        |(slot, from_trailer): (u32, &[u8])| Some((slot, Entry::of(&trailer_of(from_trailer.first_chunk()?, header)?)));
    Ok(slots.zip(memory.chunks(slot_bytes)).filter_map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::packed::format::ENTRIES_PER_PAGE;

    #[test]
    fn each_slot_is_in_one_part_and_parts_fit_into_what_is_read_at_once() {
        for slot_bytes in [8192, 12_288, 16_384, 20_480, 69_632, 2_101_248] {
            let geometry = Geometry::of(64 << 20, slot_bytes).unwrap();
            let together = slots_together(geometry);
            for number in 0..geometry.table_pages() {
                let slots = geometry.slots_of(number);
                let parts: Vec<_> = parts(slots.clone(), together).collect();
                assert!(parts.iter().all(|part| (1..=together).contains(&part.len())));
                assert!(parts.into_iter().flatten().eq(slots));
            }
            let read = if slot_bytes <= SMALL_SLOT { together as u64 * slot_bytes } else { PAGE as u64 };
            assert!(read <= RUN_BYTES && together <= ENTRIES_PER_PAGE);
        }
    }
}
