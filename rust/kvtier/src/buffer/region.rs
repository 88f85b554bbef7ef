//! The rows of a tier, as one or several pieces of the engine's memory.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::process::{self, Home};

/// One piece of memory that holds a part of every row, such as one layer's tensor.
///
/// Row `i`'s part is the `row_bytes` bytes at `base + i * stride`.
#[derive(Clone, Copy, Debug)]
pub struct RowPart {
    /// Where row 0's part begins.
    pub base: NonNull<u8>,
    /// Bytes of each row in this part.
    pub row_bytes: usize,
    /// Bytes from one row's part to the next row's; at least `row_bytes`.
    pub stride: usize,
}

impl RowPart {
    /// Whether a row of this part and a row of another one, of as many rows, share memory.
    fn overlaps(&self, other: &Self, num_rows: usize) -> bool {
        let bounds = |part: &Self, row: usize| {
            let begin = part.base.addr().get() + row * part.stride;
            (begin, begin + part.row_bytes)
        };
        let (first, second) = if self.base <= other.base { (self, other) } else { (other, self) };
        let (begin, end) = (bounds(second, 0).0, bounds(first, num_rows - 1).1);
        if begin >= end {
            return false;
        }
        if first.stride == second.stride && num_rows > 1 {
            // Interleaved, as slices of one array are: it is the same for every row.
            let offset = (begin - first.base.addr().get()) % first.stride;
            return offset < first.row_bytes || offset + second.row_bytes > first.stride;
        }
        let (mut i, mut j) = (0, 0);
        while i < num_rows && j < num_rows {
            let (a, b) = (bounds(first, i), bounds(second, j));
            if a.0 < b.1 && b.0 < a.1 {
                return true;
            }
            if a.1 <= b.1 { i += 1 } else { j += 1 }
        }
        false
    }
}

/// All rows of one tier: `num_rows` rows of `row_bytes` bytes, row `i` being the concatenation of each part's row `i`.
pub struct Region {
    parts: Vec<RowPart>,
    num_rows: usize,
    row_bytes: usize,
    writable: bool,
    /// The one process whose memory this is, where forked children are kept out.
    home: Option<Home>,
    /// Keeps the memory alive; dropped with the last lease, on whichever thread that is.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the pointers are plain addresses; access to the memory behind them goes through leases, whose gates say whose
// turn it is, and `_owner` (itself Send + Sync) keeps it mapped for as long as the region lives.
unsafe impl Send for Region {}
// SAFETY: as above; a shared region hands out addresses only to leases.
unsafe impl Sync for Region {}

impl Region {
    /// Describes memory that `owner` keeps alive.
    ///
    /// # Errors
    /// `InvalidInput` when there is no row or no part, a part has no bytes, or rows or parts overlap.
    ///
    /// # Safety
    /// For each part, `base` to `base + (num_rows - 1) * stride + row_bytes` is mapped memory that stays readable (and
    /// writable, if `writable`) until `owner` is dropped. While an operation on a row is open, nobody else writes to
    /// that row, and nobody reads it if the operation is a load.
    pub unsafe fn from_parts(
        parts: Vec<RowPart>,
        num_rows: usize,
        writable: bool,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Arc<Self>> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
        if parts.is_empty() || num_rows == 0 {
            return invalid("rows: at least one row of at least one byte is needed".into());
        }
        for (i, part) in parts.iter().enumerate() {
            if part.row_bytes == 0 {
                return invalid(format!("rows: part {i} has rows of 0 bytes"));
            }
            if part.stride < part.row_bytes {
                return invalid(format!(
                    "rows: part {i} has rows of {} bytes every {} bytes, so they overlap",
                    part.row_bytes, part.stride
                ));
            }
        }
        for (i, part) in parts.iter().enumerate() {
            if let Some(j) = parts[..i].iter().position(|other| part.overlaps(other, num_rows)) {
                return invalid(format!("rows: parts {j} and {i} share memory, so a block would overwrite itself"));
            }
        }
        let row_bytes = parts.iter().map(|p| p.row_bytes).sum();
        Ok(Arc::new(Self { parts, num_rows, row_bytes, writable, home: None, _owner: owner }))
    }

    /// A region over one writable mapping that `owner` holds, that only `home` has, and whose geometry is known to be
    /// sound.
    pub(super) fn of_mapping(
        part: RowPart,
        num_rows: usize,
        home: Home,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        let (parts, home) = (vec![part], Some(home));
        Arc::new(Self { parts, num_rows, row_bytes: part.row_bytes, writable: true, home, _owner: owner })
    }

    /// The first `row_bytes` bytes of each row, as a region of its own.
    ///
    /// # Errors
    /// `InvalidInput` when rows have fewer bytes, or none are asked for.
    pub fn cut_to(self: &Arc<Self>, row_bytes: usize) -> Result<Arc<Self>> {
        if row_bytes == self.row_bytes {
            return Ok(Arc::clone(self));
        }
        if row_bytes == 0 || row_bytes > self.row_bytes {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("{row_bytes} bytes of each row are asked for, rows have {}", self.row_bytes),
            ));
        }
        let mut left = row_bytes;
        let parts = self
            .parts
            .iter()
            .map(|part| {
                let taken = part.row_bytes.min(left);
                left -= taken;
                RowPart { row_bytes: taken, ..*part }
            })
            .filter(|part| part.row_bytes > 0)
            .collect();
        let (num_rows, writable, home) = (self.num_rows, self.writable, self.home);
        Ok(Arc::new(Self { parts, num_rows, row_bytes, writable, home, _owner: Box::new(Arc::clone(self)) }))
    }

    /// Whether this process has the memory.
    ///
    /// # Errors
    /// `Forked` for [`HostRows`](super::HostRows) of the parent: what they held is not there in a forked child.
    pub fn check_home(&self) -> Result<()> {
        match self.home {
            Some(home) if !home.is_surely_here() => Err(process::forked("memory for rows", home)),
            _ => Ok(()),
        }
    }

    /// How many rows there are.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Bytes of one row, over all parts.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The first two of these rows that share memory.
    pub fn overlapping(rows: &[(Arc<Self>, usize)]) -> Option<(usize, usize)> {
        let segments = rows
            .iter()
            .enumerate()
            .flat_map(|(i, (region, row))| region.segments(*row).map(move |(base, len)| (base.addr().get(), len, i)));
        let mut segments: Vec<_> = segments.collect();
        segments.sort_unstable();
        let overlap = segments.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0)?;
        Some((overlap[0].2.min(overlap[1].2), overlap[0].2.max(overlap[1].2)))
    }

    /// Whether loads may write into the rows.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The pieces that the rows lie in.
    pub fn parts(&self) -> &[RowPart] {
        &self.parts
    }

    /// Whether every segment of every row begins and ends at a multiple of `align`, as direct IO wants it.
    pub fn is_aligned_to(&self, align: usize) -> bool {
        self.parts.iter().all(|p| {
            p.base.addr().get().is_multiple_of(align)
                && p.row_bytes.is_multiple_of(align)
                && (self.num_rows == 1 || p.stride.is_multiple_of(align))
        })
    }

    /// Address and length of each segment of `row`.
    pub(super) fn segments(&self, row: usize) -> impl Iterator<Item = (NonNull<u8>, usize)> + '_ {
        debug_assert!(row < self.num_rows);
        // SAFETY: row < num_rows (checked where the lease is made), so the address lies in the part's memory, which the
        // contract of `from_parts` says is mapped.
        self.parts.iter().map(move |p| (unsafe { p.base.add(row * p.stride) }, p.row_bytes))
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("num_rows", &self.num_rows)
            .field("row_bytes", &self.row_bytes)
            .field("parts", &self.parts.len())
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{HostRows, RowLease};

    #[test]
    fn rows_are_the_concatenation_of_their_parts_and_can_be_cut() -> Result<()> {
        let (a, b) = (HostRows::new(3, 4)?, HostRows::new(3, 6)?);
        let parts = vec![
            RowPart { base: a.base(), row_bytes: 4, stride: 4 },
            RowPart { base: b.base(), row_bytes: 5, stride: 6 },
        ];
        // SAFETY: both parts lie in the host rows, which the owner keeps.
        let region = unsafe { Region::from_parts(parts, 3, true, Box::new((a, b)))? };
        let mut access = RowLease::unbounded(&region, 2)?.enter()?;
        access.copy_from(b"abcdefghi")?;
        drop(access);
        let read = |region: &Arc<Region>| {
            Ok(RowLease::unbounded(region, 2)?.enter()?.segments().collect::<Vec<_>>().join(&b'|'))
        };
        assert_eq!(read(&region)?, b"abcd|efghi");
        for (offset, part, whole) in [
            (0, "", "abcd|efghi"),
            (9, "", "abcd|efghi"),
            (0, "ABCDEFGHI", "ABCD|EFGHI"),
            (3, "de", "ABCd|eFGHI"),
            (4, "E", "ABCd|EFGHI"),
            (6, "ghi", "ABCd|EFghi"),
            (1, "bc", "Abcd|EFghi"),
        ] {
            RowLease::unbounded(&region, 2)?.enter()?.copy_at(offset, part.as_bytes())?;
            assert_eq!(String::from_utf8_lossy(&read(&region)?), whole, "{part:?} at {offset}");
        }
        for (offset, part) in [(9, "x"), (10, ""), (0, "0123456789"), (usize::MAX, "x")] {
            assert!(RowLease::unbounded(&region, 2)?.enter()?.copy_at(offset, part.as_bytes()).is_err());
        }
        RowLease::unbounded(&region, 2)?.enter()?.copy_from(b"abcdefghi")?;
        assert_eq!(read(&region.cut_to(6)?)?, b"abcd|ef");
        assert_eq!(read(&region.cut_to(4)?)?, b"abcd");
        assert!(region.cut_to(10).is_err() && region.cut_to(0).is_err());
        Ok(())
    }

    #[test]
    fn parts_that_share_memory_are_refused_and_interleaved_ones_are_not() -> Result<()> {
        let rows = HostRows::new(1, 1024)?;
        let made = |num_rows: usize, parts: &[(usize, usize, usize)]| {
            let part = |&(offset, row_bytes, stride): &(usize, usize, usize)| RowPart {
                // SAFETY: all offsets below are within the 1024 bytes.
                base: unsafe { rows.base().add(offset) },
                row_bytes,
                stride,
            };
            // SAFETY: the parts lie in the host rows, which the owner keeps.
            unsafe { Region::from_parts(parts.iter().map(part).collect(), num_rows, true, Box::new(rows.clone())) }
        };
        for (num_rows, parts) in [
            (4, vec![(0, 32, 64), (32, 32, 64)]),
            (4, vec![(32, 32, 64), (0, 32, 64)]),
            (4, vec![(0, 64, 64), (256, 64, 64)]),
            (4, vec![(0, 64, 64), (255 + 1, 1, 3)]),
            (1, vec![(0, 64, 64), (64, 64, 999)]),
            // One part in the gaps of another one with half the distance between rows.
            (4, vec![(0, 16, 64), (16, 16, 128)]),
        ] {
            assert!(made(num_rows, &parts).is_ok(), "{parts:?}");
        }
        for (num_rows, parts) in [
            (4, vec![(0, 33, 64), (32, 32, 64)]),
            (4, vec![(32, 33, 64), (0, 32, 64)]),
            (4, vec![(0, 64, 64), (0, 64, 64)]),
            (4, vec![(0, 64, 64), (192, 64, 64)]),
            (1, vec![(0, 64, 64), (63, 64, 64)]),
            (4, vec![(0, 16, 64), (16, 16, 112)]),
            (4, vec![(100, 8, 8), (0, 16, 16), (64, 40, 40)]),
        ] {
            let error = made(num_rows, &parts).unwrap_err();
            assert!(error.message().contains("share memory"), "{parts:?}: {error}");
        }
        Ok(())
    }
}
