//! Where a namespace's blocks lie, by name: a table whose answers cost one look into memory (pure).
//!
//! A large pool's table has many megabytes, so that nearly every look into it goes all the way to memory, and a table for
//! all purposes looks twice: at what tells where entries are, then at the entry. Here entries of 16 bytes lie one behind the
//! other (linear probing) from the beginning of the cache line that their name leads to. A line has four, and there are at
//! most two and a half for each, so nearly all answers, HIT or MISS, are in the first line.

use allocator_api2::vec::Vec as VecIn;

use super::catalogue::{Name, Spot};
use crate::buffer::HugePages;

/// Entries of a cache line.
const LINE: usize = 4;
/// Of so many places, that many are taken at most.
const FULL: (usize, usize) = (16, 10);
/// Places of the smallest table.
const FEWEST: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Entry {
    name: Name,
    spot: Spot,
}

/// No block's.
const FREE: Entry = Entry { name: Name::NONE, spot: Spot { segment: u32::MAX, slot: u32::MAX } };

impl Entry {
    fn is_free(&self) -> bool {
        self.spot == FREE.spot
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Spots {
    /// None, or a power of two of them, of which some are free.
    entries: VecIn<Entry, HugePages>,
    taken: usize,
}

impl Spots {
    pub(super) fn new() -> Self {
        Self { entries: VecIn::new_in(HugePages), taken: 0 }
    }

    /// How many blocks there are.
    pub(super) fn len(&self) -> usize {
        self.taken
    }

    /// All places where blocks of that name lie.
    pub(super) fn find(&self, name: Name) -> impl Iterator<Item = Spot> + '_ {
        let from_home = self.from(self.home(name)).map(|at| self.entries[at]);
        from_home.take_while(|entry| !entry.is_free()).filter(move |entry| entry.name == name).map(|entry| entry.spot)
    }

    /// Adds a block. Several may have one name, but each has its own place.
    pub(super) fn insert(&mut self, name: Name, spot: Spot) {
        self.reserve(1);
        self.put(Entry { name, spot });
        self.taken += 1;
    }

    /// Takes a block out, if it is there.
    pub(super) fn remove(&mut self, name: Name, spot: Spot) {
        let mut found = self.from(self.home(name)).take_while(|at| !self.entries[*at].is_free());
        let is_it = |at: &usize| self.entries[*at].name == name && self.entries[*at].spot == spot;
        let Some(mut gap) = found.find(is_it) else { return };
        self.taken -= 1;
        // No gap may come between an entry and its home: those behind move up, as far as their homes allow.
        let mask = self.entries.len() - 1;
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let entry = self.entries[at];
            if entry.is_free() {
                break;
            }
            let from_home = at.wrapping_sub(self.home(entry.name)) & mask;
            let from_gap = at.wrapping_sub(gap) & mask;
            if from_home >= from_gap {
                self.entries[gap] = entry;
                gap = at;
            }
        }
        self.entries[gap] = FREE;
    }

    /// Makes room for so many more, so that adding them does not move all that are there.
    pub(super) fn reserve(&mut self, more: usize) {
        let (places, full) = FULL;
        let wanted = self.taken.saturating_add(more).saturating_mul(places).div_ceil(full);
        if wanted <= self.entries.len() {
            return;
        }
        let mut larger = VecIn::new_in(HugePages);
        larger.resize(wanted.max(FEWEST).next_power_of_two(), FREE);
        let all = std::mem::replace(&mut self.entries, larger);
        all.iter().filter(|entry| !entry.is_free()).for_each(|entry| self.put(*entry));
    }

    fn put(&mut self, entry: Entry) {
        let free = self.from(self.home(entry.name)).find(|at| self.entries[*at].is_free());
        if let Some(free) = free {
            self.entries[free] = entry;
        }
    }

    /// Where entries of that name begin.
    fn home(&self, name: Name) -> usize {
        name.bits() as usize & self.entries.len().wrapping_sub(1) & !(LINE - 1)
    }

    /// Each place once, from `first` on, round the end.
    fn from(&self, first: usize) -> impl Iterator<Item = usize> + use<> {
        let places = self.entries.len();
        (first.min(places)..places).chain(0..first.min(places))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn spot(n: u32) -> Spot {
        Spot { segment: n >> 8, slot: n & 0xFF }
    }

    proptest! {
        #[test]
        fn a_table_has_what_was_put_into_it_and_not_taken_out(
            // Few homes, also those at the end, so that entries stand in each other's way.
            steps in prop::collection::vec((any::<bool>(), prop_oneof![0..6_u64, 56..70_u64, any::<u64>()], 0..40_u32), 0..400)
        ) {
            let (mut table, mut known) = (Spots::new(), HashSet::new());
            for (adds, bits, n) in steps {
                let name = Name::from_bits(bits);
                match adds {
                    true if known.insert((bits, n)) => table.insert(name, spot(n)),
                    true => {}
                    false => {
                        known.remove(&(bits, n));
                        table.remove(name, spot(n));
                    }
                }
                prop_assert_eq!(table.len(), known.len());
                for (bits, n) in &known {
                    prop_assert!(table.find(Name::from_bits(*bits)).any(|found| found == spot(*n)));
                }
                prop_assert_eq!(table.find(name).count(), known.iter().filter(|(known, _)| *known == bits).count());
            }
        }
    }

    #[test]
    fn a_table_without_entries_has_none() {
        let mut table = Spots::new();
        assert_eq!((table.find(Name::from_bits(7)).count(), table.len()), (0, 0));
        table.remove(Name::from_bits(7), spot(1));
        table.reserve(1_000_000);
        assert_eq!((table.find(Name::from_bits(7)).count(), table.len()), (0, 0));
        assert!(table.entries.len() >= 1_600_000 && size_of::<Entry>() == 16);
    }
}
