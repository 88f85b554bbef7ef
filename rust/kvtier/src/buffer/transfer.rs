//! The memory of one vectored transfer, and who keeps it alive.

use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;
use std::slice;

use super::lease::{RowAccess, RowLease};
use super::scratch::Scratch;
use crate::error::{Error, ErrorKind, Result};

/// The segments of one vectored transfer: a row, scratch pages, or a row followed by scratch pages.
///
/// It owns what it points to, so an IO engine that holds it until the transfer has ended (also when the operation has
/// long timed out) never touches freed memory.
#[derive(Debug)]
pub struct IoMemory {
    segments: Vec<Segment>,
    row: Row,
    scratch: Option<Scratch>,
    done: usize,
}

#[derive(Debug)]
enum Row {
    None,
    /// Read by the transfer. No access is held: if the operation ends meanwhile, what was written is not published.
    Source(RowLease),
    /// Written by the transfer, so the operation's result waits for the transfer's end.
    Target(RowAccess),
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the pointers lead into the lease's region and the scratch buffer, which are Send and owned by this value.
unsafe impl Send for IoMemory {}

impl IoMemory {
    /// Memory to write to storage: the row.
    pub fn source(row: RowLease) -> Self {
        let segments = row.segments().map(|(base, len)| Segment { base, len }).collect();
        Self { segments, row: Row::Source(row), scratch: None, done: 0 }
    }

    /// Memory to fill from storage: the row, whose operation's result waits until this value is dropped or taken apart.
    ///
    /// # Errors
    /// `ReadOnly` when the rows are read-only.
    pub fn target(row: RowAccess) -> Result<Self> {
        let Some(lease) = row.lease() else {
            return Err(Error::new(ErrorKind::Internal, "a row access without a lease"));
        };
        if !lease.is_writable() {
            return Err(Error::new(ErrorKind::ReadOnly, "the rows are read-only memory"));
        }
        let segments = lease.segments().map(|(base, len)| Segment { base, len }).collect();
        Ok(Self { segments, row: Row::Target(row), scratch: None, done: 0 })
    }

    /// Memory of kvtier's own: the first `len` bytes of `scratch`, to write or to fill.
    pub fn scratch(scratch: Scratch, len: usize) -> Self {
        Self { segments: Vec::new(), row: Row::None, scratch: None, done: 0 }.followed_by(scratch, len)
    }

    /// Adds the first `len` bytes of `scratch` behind the row. A transfer has one scratch buffer at most.
    #[must_use]
    pub fn followed_by(mut self, scratch: Scratch, len: usize) -> Self {
        debug_assert!(self.scratch.is_none() && len <= scratch.len());
        self.segments.push(Segment { base: scratch.base(), len: len.min(scratch.len()) });
        self.scratch = Some(scratch);
        self
    }

    /// Bytes of all segments.
    pub fn total_bytes(&self) -> usize {
        self.segments.iter().map(|s| s.len).sum()
    }

    /// Bytes moved so far.
    pub fn done_bytes(&self) -> usize {
        self.done
    }

    /// Bytes still to move.
    pub fn left_bytes(&self) -> usize {
        self.total_bytes() - self.done
    }

    /// Counts `n` more bytes as moved (a system call may move fewer than asked).
    pub fn advance(&mut self, n: usize) {
        self.done = (self.done + n).min(self.total_bytes());
    }

    /// Whether all segments begin and end at multiples of `align`, as direct IO wants it.
    pub fn is_aligned_to(&self, align: usize) -> bool {
        self.segments.iter().all(|s| s.base.addr().get().is_multiple_of(align) && s.len.is_multiple_of(align))
    }

    /// Calls `f` with the bytes still to write.
    pub fn with_slices<R>(&self, f: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        let slices: Vec<_> = self
            .left()
            .map(|s| {
                // SAFETY: the owners in `self` keep the segment mapped. A row that is reused by the engine after its
                // operation has timed out may change under the slice; it is only passed to the kernel, which reads
                // whatever is there, and the bytes are never published (`RowLease::is_open` is asked afterwards).
                IoSlice::new(unsafe { slice::from_raw_parts(s.base.as_ptr(), s.len) })
            })
            .collect();
        f(&slices)
    }

    /// Calls `f` with the bytes still to fill; an empty list when this memory is an [`IoMemory::source`].
    pub fn with_slices_mut<R>(&mut self, f: impl FnOnce(&mut [IoSliceMut<'_>]) -> R) -> R {
        if matches!(self.row, Row::Source(_)) {
            return f(&mut []);
        }
        let mut slices: Vec<_> = self
            .left()
            .map(|s| {
                // SAFETY: the owners in `self` keep the segment mapped; a row segment is writable (`target` checks) and
                // its gate is held, so nobody else touches it; `&mut self` excludes other slices.
                IoSliceMut::new(unsafe { slice::from_raw_parts_mut(s.base.as_ptr(), s.len) })
            })
            .collect();
        f(&mut slices)
    }

    /// Address and length of each segment still to write, for a system call that goes on after it was begun: they are
    /// good while this value lives, wherever it is moved to. The caller keeps it until the call has ended.
    pub(crate) fn left_to_write(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> + '_ {
        self.left().map(|s| (s.base, s.len))
    }

    /// The same for what is still to fill, which nobody touches before the call has ended; nothing when this memory is an
    /// [`IoMemory::source`].
    pub(crate) fn left_to_fill(&mut self) -> impl Iterator<Item = (NonNull<u8>, usize)> + '_ {
        let writable = !matches!(self.row, Row::Source(_));
        self.left().filter(move |_| writable).map(|s| (s.base, s.len))
    }

    /// The lease of the row that is being written to storage.
    pub fn source_lease(&self) -> Option<&RowLease> {
        match &self.row {
            Row::Source(lease) => Some(lease),
            Row::None | Row::Target(_) => None,
        }
    }

    /// Takes the memory apart again: the row that was to be filled, if it was a target, and the scratch buffer.
    pub fn into_parts(self) -> (Option<RowAccess>, Option<Scratch>) {
        let row = match self.row {
            Row::Target(access) => Some(access),
            Row::None | Row::Source(_) => None,
        };
        (row, self.scratch)
    }

    fn left(&self) -> impl Iterator<Item = Segment> + '_ {
        let mut skip = self.done;
        self.segments.iter().filter_map(move |s| {
            let skipped = skip.min(s.len);
            skip -= skipped;
            // SAFETY: skipped <= len, so the address stays within the segment or one past its end.
            (skipped < s.len).then(|| Segment { base: unsafe { s.base.add(skipped) }, len: s.len - skipped })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{HostRows, ScratchPool};

    #[test]
    fn a_short_transfer_goes_on_where_it_stopped() -> Result<()> {
        let rows = HostRows::new(2, 10)?;
        let region = rows.region();
        let mut access = RowLease::unbounded(&region, 1)?.enter()?;
        access.copy_from(b"0123456789")?;
        let lease = access.leave()?;
        let pool = ScratchPool::new(4, 1);
        let mut tail = pool.take()?;
        tail[..4].copy_from_slice(b"abcd");
        let mut memory = IoMemory::source(lease).followed_by(tail, 4);
        let text = |m: &IoMemory| m.with_slices(|s| s.iter().map(|x| String::from_utf8_lossy(x)).collect::<String>());
        assert_eq!((memory.total_bytes(), text(&memory)), (14, "0123456789abcd".into()));
        memory.advance(7);
        assert_eq!(text(&memory), "789abcd");
        memory.advance(5);
        assert_eq!((memory.left_bytes(), text(&memory)), (2, "cd".into()));
        memory.advance(5);
        assert_eq!((memory.left_bytes(), text(&memory)), (0, String::new()));
        Ok(())
    }
}
