//! Rows that kvtier allocates itself.
//!
//! Their pages are kept from forked children. Were they shared with a child until somebody writes, as is usual, the
//! parent's next write to a page would move it to a fresh one, while a read past the page cache goes on filling the old
//! one, which the device was told; so a load that was under way at a fork could be lost. A child finds zeros instead,
//! and a region over them says there whose it is.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::region::{Region, RowPart};
use crate::error::{Error, ErrorKind, Result};
use crate::process::{self, Home};

/// From this size on, huge pages are asked for: below, rounding up to them would waste more than it saves.
const HUGE_PAGES_FROM: usize = 8 << 20;

/// Page-aligned, zeroed rows owned by kvtier, back to back; huge pages where the system gives them. In a forked child
/// the memory is there, and zero.
#[derive(Clone)]
pub struct HostRows {
    memory: Arc<Mapping>,
    num_rows: usize,
    row_bytes: usize,
}

struct Mapping {
    base: NonNull<u8>,
    len: usize,
    home: Home,
}

// SAFETY: anonymous memory without thread affinity; who may touch which row is the gates' business.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl HostRows {
    /// Maps `num_rows` rows of `row_bytes` bytes.
    ///
    /// # Errors
    /// `InvalidInput` when either is zero or the product overflows, `Unavailable` when memory is exhausted.
    pub fn new(num_rows: usize, row_bytes: usize) -> Result<Self> {
        let len = num_rows.checked_mul(row_bytes).filter(|n| *n > 0 && isize::try_from(*n).is_ok()).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "host rows: {num_rows} rows of {row_bytes} bytes; both must be positive and their product fit memory"
                ),
            )
        })?;
        // SAFETY: a fresh anonymous private mapping, placed by the kernel, aliases nothing.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
                .map_err(|e| {
                    Error::new(
                        ErrorKind::Unavailable,
                        format!("host rows: no memory for {num_rows} rows of {row_bytes} bytes"),
                    )
                    .with_source(std::io::Error::from(e))
                })?;
        if len >= HUGE_PAGES_FROM {
            // SAFETY: advice about the mapping just made. Not being followed costs speed only, so errors don't matter.
            let _ = unsafe { madvise(base, len, Advice::LinuxHugepage) };
        }
        let start = NonNull::new(base.cast()).ok_or_else(|| Error::new(ErrorKind::Internal, "mmap returned null"))?;
        let memory = Mapping { base: start, len, home: Home::here() };
        // SAFETY: advice about the mapping just made, which no child has yet.
        unsafe { madvise(base, len, Advice::LinuxWipeOnFork) }
            .map_err(|e| Error::from_io("host rows: keeping them from forked children", e.into()))?;
        Ok(Self { memory: Arc::new(memory), num_rows, row_bytes })
    }

    /// How many rows there are.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Bytes of one row, which is also the distance between rows.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Whether this process has the rows.
    ///
    /// # Errors
    /// `Forked` in a child of the process that made them.
    pub fn check_home(&self) -> Result<()> {
        let home = self.memory.home;
        if home.is_surely_here() { Ok(()) } else { Err(process::forked("memory for rows", home)) }
    }

    /// Where row 0 begins; the memory lives as long as this value, its clones and the regions made from it.
    pub fn base(&self) -> NonNull<u8> {
        self.memory.base
    }

    /// Bytes of all rows together.
    pub fn total_bytes(&self) -> usize {
        self.memory.len
    }

    /// The rows as a tier takes them.
    pub fn region(&self) -> Arc<Region> {
        let part = RowPart { base: self.memory.base, row_bytes: self.row_bytes, stride: self.row_bytes };
        Region::of_mapping(part, self.num_rows, self.memory.home, Box::new(self.clone()))
    }
}

impl fmt::Debug for HostRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostRows({} rows of {} bytes)", self.num_rows, self.row_bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `HostRows::new` with this length and unmapped only here, by the last owner.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
