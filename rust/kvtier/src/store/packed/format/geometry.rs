//! Where in a segment everything lies.

use super::header::Header;
use super::table::ENTRIES_PER_PAGE;
use crate::buffer::PAGE;

/// How a segment is divided: `header | table pages | slots`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// How many slots there are.
    pub slots: u32,
    /// Bytes of a slot, a multiple of a page.
    pub slot_bytes: u64,
}

impl Geometry {
    /// As many slots of `slot_bytes` as a segment of `segment_bytes` has room for; `None` when that is none.
    pub fn of(segment_bytes: u64, slot_bytes: u64) -> Option<Self> {
        let page = PAGE as u64;
        if slot_bytes == 0 || !slot_bytes.is_multiple_of(page) {
            return None;
        }
        let room = segment_bytes.checked_sub(page)?;
        let mut slots = u32::try_from(room / slot_bytes).unwrap_or(u32::MAX);
        while slots > 0 && (Self { slots, slot_bytes }).end() > segment_bytes {
            slots -= 1;
        }
        (slots > 0).then_some(Self { slots, slot_bytes })
    }

    /// The geometry that a header states, if a segment of `segment_bytes` can have it.
    pub fn stated(header: &Header, segment_bytes: u64) -> Option<Self> {
        let found = Self { slots: header.slots, slot_bytes: header.slot_bytes };
        (Self::of(segment_bytes, header.slot_bytes) == Some(found)).then_some(found)
    }

    /// How many table pages there are.
    pub fn table_pages(&self) -> usize {
        (self.slots as usize).div_ceil(ENTRIES_PER_PAGE)
    }

    /// Where a table page lies.
    pub fn page_offset(&self, page: usize) -> u64 {
        ((1 + page) * PAGE) as u64
    }

    /// Which table page a slot's entry is on, and which entry of it.
    pub fn entry_of(&self, slot: u32) -> (usize, usize) {
        (slot as usize / ENTRIES_PER_PAGE, slot as usize % ENTRIES_PER_PAGE)
    }

    /// The slots whose entries a table page has.
    pub fn slots_of(&self, page: usize) -> std::ops::Range<u32> {
        let first = (page * ENTRIES_PER_PAGE) as u32;
        first..self.slots.min(first + ENTRIES_PER_PAGE as u32)
    }

    /// Where a slot's block begins.
    pub fn slot_offset(&self, slot: u32) -> u64 {
        self.page_offset(self.table_pages()) + u64::from(slot) * self.slot_bytes
    }

    /// Where the last slot ends.
    fn end(&self) -> u64 {
        self.slot_offset(self.slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_fits_and_nothing_overlaps() {
        for segment_bytes in [12_288, 1 << 20, 64 << 20, 1 << 30] {
            for slot_bytes in [4096, 8192, 69_632, 266_240, 2_101_248] {
                let Some(geometry) = Geometry::of(segment_bytes, slot_bytes) else {
                    assert!(segment_bytes < slot_bytes + 2 * 4096);
                    continue;
                };
                assert!(geometry.end() <= segment_bytes);
                let more = Geometry { slots: geometry.slots + 1, ..geometry };
                assert!(more.end() > segment_bytes, "room for one more slot is left");
                assert_eq!(geometry.slot_offset(0), geometry.page_offset(geometry.table_pages()));
                let covered: u32 = (0..geometry.table_pages()).map(|page| geometry.slots_of(page).len() as u32).sum();
                assert_eq!(covered, geometry.slots);
            }
        }
        assert_eq!(Geometry::of(8192, 4096), None);
        assert_eq!(Geometry::of(1 << 20, 5000), None);
        assert_eq!(Geometry::of(100, 4096), None);
    }
}
