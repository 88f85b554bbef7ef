//! The rows of a tier, as one or several pieces of the engine's memory.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

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

/// All rows of one tier: `num_rows` rows of `row_bytes` bytes, row `i` being the concatenation of each part's row `i`.
pub struct Region {
    parts: Vec<RowPart>,
    num_rows: usize,
    row_bytes: usize,
    writable: bool,
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
    /// `InvalidInput` when there is no row or no part, a part has no bytes, or rows of a part overlap.
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
        let row_bytes = parts.iter().map(|p| p.row_bytes).sum();
        Ok(Arc::new(Self { parts, num_rows, row_bytes, writable, _owner: owner }))
    }

    /// A region over one writable mapping that `owner` holds and whose geometry is known to be sound.
    pub(super) fn of_mapping(part: RowPart, num_rows: usize, owner: Box<dyn Any + Send + Sync>) -> Arc<Self> {
        Arc::new(Self { parts: vec![part], num_rows, row_bytes: part.row_bytes, writable: true, _owner: owner })
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
        let (num_rows, writable) = (self.num_rows, self.writable);
        Ok(Arc::new(Self { parts, num_rows, row_bytes, writable, _owner: Box::new(Arc::clone(self)) }))
    }

    /// How many rows there are.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Bytes of one row, over all parts.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
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
        assert_eq!(read(&region.cut_to(6)?)?, b"abcd|ef");
        assert_eq!(read(&region.cut_to(4)?)?, b"abcd");
        assert!(region.cut_to(10).is_err() && region.cut_to(0).is_err());
        Ok(())
    }
}
