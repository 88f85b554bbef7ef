//! kvtier's own aligned memory, recycled through a bounded pool.
//!
//! Unlike [`HostRows`](super::HostRows) it need not be kept from forked children: a buffer is a number of whole pages of
//! its own, and nobody writes to them while a transfer has them, so a fork gives the parent no reason to move one.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::PAGE;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

/// Page-aligned scratch buffers of one size, kept for reuse up to a number.
///
/// Allocation is lazy: a pool whose buffers nobody takes costs nothing.
#[derive(Debug)]
pub struct ScratchPool {
    bytes: usize,
    keep: usize,
    free: Mutex<Vec<Aligned>>,
}

impl ScratchPool {
    /// A pool of buffers of `bytes` bytes (rounded up to whole pages), of which at most `keep` wait for reuse.
    pub fn new(bytes: usize, keep: usize) -> Arc<Self> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        Arc::new(Self { bytes, keep, free: Mutex::new(Vec::new()) })
    }

    /// A buffer; its content is whatever its last user left there.
    ///
    /// # Errors
    /// `Unavailable` when memory is exhausted.
    pub fn take(self: &Arc<Self>) -> Result<Scratch> {
        let reused = self.free.lock().pop();
        let memory = match reused {
            Some(memory) => memory,
            None => Aligned::new(self.bytes)?,
        };
        Ok(Scratch { memory: Some(memory), pool: Arc::downgrade(self) })
    }

    fn give_back(&self, memory: Aligned) {
        let mut free = self.free.lock();
        if free.len() < self.keep {
            free.push(memory);
        }
    }
}

/// A page-aligned buffer that goes back to its pool when dropped.
pub struct Scratch {
    /// `None` only while dropping.
    memory: Option<Aligned>,
    pool: Weak<ScratchPool>,
}

impl Scratch {
    pub(super) fn base(&self) -> NonNull<u8> {
        self.memory.as_ref().map_or(NonNull::dangling(), |m| m.base)
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `memory` owns that many initialised bytes (zeroed at allocation) and lives as long as `self`.
        self.memory.as_ref().map_or(&[], |m| unsafe { std::slice::from_raw_parts(m.base.as_ptr(), m.layout.size()) })
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Some(m) = &mut self.memory else { return &mut [] };
        // SAFETY: as in `deref`; `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(m.base.as_ptr(), m.layout.size()) }
    }
}

impl AsRef<[u8]> for Scratch {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let (Some(memory), Some(pool)) = (self.memory.take(), self.pool.upgrade()) {
            pool.give_back(memory);
        }
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scratch({} bytes)", self.len())
    }
}

/// Zero-initialised memory aligned to a page.
#[derive(Debug)]
struct Aligned {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory without thread affinity, owned by this value alone.
unsafe impl Send for Aligned {}
// SAFETY: shared references only read the fields.
unsafe impl Sync for Aligned {}

impl Aligned {
    fn new(bytes: usize) -> Result<Self> {
        let exhausted =
            || Error::new(ErrorKind::Unavailable, format!("no memory for a scratch buffer of {bytes} bytes"));
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| exhausted())?;
        // SAFETY: the layout has a size above zero (`ScratchPool::new` rounds up to a page).
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(exhausted)?;
        Ok(Self { base, layout })
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed only here.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_rounded_and_reused() -> Result<()> {
        let pool = ScratchPool::new(5000, 1);
        let mut a = pool.take()?;
        assert_eq!(a.len(), 8192);
        assert!(a.base().addr().get().is_multiple_of(PAGE));
        a[0] = 7;
        let base = a.base();
        drop(a);
        let b = pool.take()?;
        assert_eq!((b.base(), b[0]), (base, 7), "the kept buffer comes back as it was left");
        let c = pool.take()?;
        drop((b, c));
        assert_eq!(pool.free.lock().len(), 1, "one is kept, the other freed");
        Ok(())
    }
}
