//! Memory for large tables that are read here and there: in huge pages, where the system has some.
//!
//! Each look into a table of many megabytes finds its page's address in no cache, and searching for that costs more than the
//! look itself.

use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator, Global, Layout};
use rustix::mm::{Advice, madvise};

/// Bytes of a huge page on the usual machines, and of the smallest table that gets some.
const HUGE_PAGE: usize = 2 << 20;

/// Memory of the global allocator; large pieces begin at a huge page's boundary.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HugePages;

fn aligned(layout: Layout) -> Layout {
    if layout.size() < HUGE_PAGE { layout } else { layout.align_to(HUGE_PAGE).unwrap_or(layout) }
}

// SAFETY: the global allocator's, which keeps a piece where it is until it is given back; both calls are made with the same
// layout, which follows from the caller's and has at least its alignment.
unsafe impl Allocator for HugePages {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let memory = Global.allocate(aligned(layout))?;
        if layout.size() >= HUGE_PAGE {
            // SAFETY: advice about memory that was allocated just now. Not being followed costs speed only.
            let _ = unsafe { madvise(memory.as_ptr().cast(), layout.size(), Advice::LinuxHugepage) };
        }
        Ok(memory)
    }

    unsafe fn deallocate(&self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's word that the memory came from `allocate` with this layout, so with the same aligned one.
        unsafe { Global.deallocate(memory, aligned(layout)) };
    }
}

#[cfg(test)]
mod tests {
    use allocator_api2::vec::Vec as VecIn;

    use super::*;

    #[test]
    fn a_table_grows_past_the_size_of_a_huge_page_and_shrinks_again() {
        let mut table = VecIn::new_in(HugePages);
        table.extend(0..500_000_u64);
        assert!((0..500_000).eq(table.iter().copied()));
        assert_eq!(table.as_ptr().addr() % HUGE_PAGE, 0);
        table.truncate(100);
        table.shrink_to_fit();
        assert!((0..100).eq(table.iter().copied()));
    }
}
