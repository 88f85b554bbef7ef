//! Pins in packed pools: what stays when room is made, and for how long.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]

mod places;

use std::fs::{self, File};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use kvtier::error::{ErrorKind, Result};
use kvtier::layout::BlockKey;
use kvtier::store::packed::format::{Superblock, TablePage};
use kvtier::store::packed::{Bounds, check};
use places::pool::{PackedPlace, bounds, page_at, segments};
use places::{Harness, Open, key, until};
use rustix::fs::{FlockOperation, flock};

const OPEN: Open = Open { letter: 'p', payload_bytes: 60 << 10, ..Open::DEFAULT };

/// Slots of a segment of a MiB, and the bytes of one.
const SLOTS: usize = 15;
const SLOT_BYTES: u64 = 64 << 10;

fn small(segments: u64) -> PackedPlace {
    PackedPlace::new(move |config| config.bounds = bounds(segments))
}

fn open(place: &PackedPlace, letter: char) -> Harness {
    Harness::open(place, &Open { letter, ..OPEN }, 4)
}

fn store_all(harness: &Harness, blocks: Range<usize>) {
    for n in blocks {
        harness.store_by(0, n).unwrap();
    }
}

/// Takes every segment of a small pool again and again: what stays then stays for a reason.
fn turn_over(harness: &Harness, segments: usize) {
    store_all(harness, 1000..1000 + 10 * segments * SLOTS);
}

fn assert_loads(harness: &Harness, blocks: impl IntoIterator<Item = usize>) {
    for n in blocks {
        assert!(harness.load_by(1, n).unwrap_or_else(|e| panic!("block {n}: {e}")), "block {n} has wrong bytes");
    }
}

fn keys(blocks: impl IntoIterator<Item = usize>) -> Vec<BlockKey> {
    blocks.into_iter().map(key).collect()
}

fn pin(harness: &Harness, blocks: impl IntoIterator<Item = usize>) -> Result<Vec<bool>> {
    harness.raw_store().residency().unwrap().pin(&keys(blocks), None)
}

fn unpin(harness: &Harness, blocks: impl IntoIterator<Item = usize>) {
    harness.raw_store().residency().unwrap().unpin(&keys(blocks));
}

fn pin_until(harness: &Harness, blocks: Range<usize>, until: SystemTime) -> Vec<bool> {
    harness.raw_store().residency().unwrap().pin(&keys(blocks), Some(until)).unwrap()
}

fn known(harness: &Harness, blocks: Range<usize>) -> usize {
    blocks.filter(|n| harness.is_known(*n)).count()
}

fn assert_sound(place: &PackedPlace, segments: u64) {
    let census = check(place.root(), true).unwrap();
    assert!(census.segments.iter().all(|segment| segment.wrong.is_empty() && segment.damaged_pages == 0));
    assert!(census.used_bytes <= Superblock::cap_for(segments, 1 << 20), "{} bytes", census.used_bytes);
}

#[test]
fn pinned_blocks_stay_whatever_is_stored() {
    let place = small(8);
    let harness = open(&place, 'p');
    let told: Arc<Mutex<Vec<BlockKey>>> = Arc::default();
    let listener = Arc::clone(&told);
    harness.raw_store().on_dropped(Box::new(move |keys| listener.lock().unwrap().extend(keys)));
    store_all(&harness, 0..2 * SLOTS);
    assert_eq!(pin(&harness, 5..8).unwrap(), [true; 3]);
    turn_over(&harness, 8);
    assert_eq!(known(&harness, 0..2 * SLOTS), 3);
    assert_loads(&harness, 5..8);
    assert!(!keys(5..8).iter().any(|key| told.lock().unwrap().contains(key)));
    // Taken back, they go like all others.
    unpin(&harness, 0..7);
    turn_over(&harness, 8);
    assert_eq!(known(&harness, 0..7), 0);
    assert_loads(&harness, 7..8);
    assert_sound(&place, 8);
}

#[test]
fn half_of_a_pool_can_be_pinned_and_the_rest_is_used() {
    // All blocks of some segments, or every second one of all.
    for step in [1, 2] {
        let place = small(8);
        let harness = open(&place, 'p');
        store_all(&harness, 0..4 * SLOTS * step);
        let wanted = (0..4 * SLOTS * step).step_by(step);
        let is_pinned = pin(&harness, wanted.clone()).unwrap();
        let pinned: Vec<_> = wanted.zip(is_pinned).filter_map(|(n, is_pinned)| is_pinned.then_some(n)).collect();
        assert!(pinned.len() > 3 * SLOTS);
        turn_over(&harness, 8);
        assert_loads(&harness, pinned);
        assert_loads(&harness, 1000 + 10 * 8 * SLOTS - SLOTS..1000 + 10 * 8 * SLOTS);
        assert_sound(&place, 8);
    }
}

#[test]
fn more_than_half_of_a_pool_is_refused_as_a_whole() {
    let place = small(4);
    let harness = open(&place, 'p');
    store_all(&harness, 0..3 * SLOTS);
    let limit = Superblock::cap_for(4, 1 << 20) / 2;
    let most = (limit / SLOT_BYTES) as usize;
    let refused = pin(&harness, 0..=most).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Capacity);
    for number in [limit, (most as u64 + 1) * SLOT_BYTES] {
        assert!(refused.to_string().contains(&format!("{number} bytes")), "{refused}");
    }
    // Nothing of it is pinned; what is pinned already counts once.
    for _ in 0..2 {
        assert_eq!(pin(&harness, 10..10 + most).unwrap(), vec![true; most]);
    }
    assert!(pin(&harness, 0..1).is_err());
    unpin(&harness, 10..11);
    assert_eq!(pin(&harness, 0..1).unwrap(), [true]);
}

#[test]
fn what_is_not_here_is_not_pinned() {
    let place = small(4);
    let harness = open(&place, 'p');
    store_all(&harness, 0..2);
    assert_eq!(pin(&harness, 1..4).unwrap(), [true, false, false]);
    store_all(&harness, 2..3);
    turn_over(&harness, 4);
    assert_eq!(known(&harness, 0..4), 1);
    assert_loads(&harness, 1..2);
}

#[test]
fn a_pin_ends_with_its_time() {
    let place = small(4);
    let harness = open(&place, 'p');
    store_all(&harness, 0..3);
    let now = SystemTime::now();
    let later = now + Duration::from_secs(3600);
    assert_eq!(pin_until(&harness, 0..2, now), [false; 2], "that time is over");
    assert_eq!(pin_until(&harness, 0..2, later), [true; 2]);
    assert_eq!(pin_until(&harness, 1..3, SystemTime::now() + Duration::from_secs(2)), [true; 2]);
    while SystemTime::now() < now + Duration::from_secs(3) {
        store_all(&harness, 100..101);
        std::thread::sleep(Duration::from_millis(50));
    }
    turn_over(&harness, 4);
    assert_eq!(known(&harness, 0..3), 1);
    assert_loads(&harness, 0..1);
}

#[test]
fn pins_end_with_a_reset_and_with_their_namespace() {
    let place = small(8);
    // Keeps the pool open.
    let _other = open(&place, 'o');
    let harness = open(&place, 'p');
    let pin_three = |harness: &Harness| {
        store_all(harness, 0..3);
        assert_eq!(pin(harness, 0..3).unwrap(), [true; 3]);
    };
    let assert_none_is_pinned = |harness: &Harness| {
        harness.reset().unwrap();
        store_all(harness, 0..3);
        turn_over(harness, 8);
        assert_eq!(known(harness, 0..3), 0);
    };
    pin_three(&harness);
    assert_none_is_pinned(&harness);
    pin_three(&harness);
    drop(harness);
    let harness = open(&place, 'p');
    assert_loads(&harness, 0..3);
    assert_none_is_pinned(&harness);
}

#[test]
fn pinned_blocks_move_when_another_namespace_takes_their_segment() {
    let place = small(8);
    let [a, b] = ['a', 'b'].map(|letter| open(&place, letter));
    // Spread over all segments: every one that is taken holds some.
    store_all(&a, 0..8 * SLOTS);
    let pinned: Vec<_> = (0..8 * SLOTS).step_by(4).filter(|n| known(&a, *n..n + 1) == 1).collect();
    assert!(pin(&a, pinned.iter().copied()).unwrap().iter().all(|is_pinned| *is_pinned));
    turn_over(&b, 8);
    assert_loads(&a, pinned);
    let stored = known(&b, 1000..1000 + 10 * 8 * SLOTS);
    assert!(stored >= 3 * SLOTS, "{stored} blocks");
    assert_sound(&place, 8);
}

#[test]
fn blocks_that_stay_are_published_together() {
    let place = small(4);
    let harness = open(&place, 'p');
    store_all(&harness, 0..7);
    assert_eq!(pin(&harness, 0..7).unwrap(), [true; 7]);
    let generation = || place.slot_of(&OPEN, &key(0)).unwrap().header.generation;
    let before = generation();
    store_all(&harness, 100..100 + 4 * SLOTS);
    assert_ne!(generation(), before, "the segment was not taken");
    let slot = place.slot_of(&OPEN, &key(0)).unwrap();
    let (header, bytes) = (slot.header, page_at(&File::open(slot.path).unwrap(), slot.page_offset));
    let page = TablePage::decode(&bytes, header.pool, header.segment, 0, header.generation).unwrap();
    // A store that is waited for is a write of its own.
    let stored = page.entries.iter().flatten().count() - 7;
    assert_eq!(page.sequence, stored as u64 + 1);
    assert_loads(&harness, 0..7);
}

/// A pool that was full and is opened again with less room, some of its blocks pinned. Somebody else has all of its segments
/// locked, so that none could go so far.
struct Shrunk {
    place: PackedPlace,
    harness: Harness,
    others: Vec<Option<File>>,
    pinned: Vec<usize>,
}

impl Shrunk {
    /// From `before` segments, some of them another namespace's.
    fn open(before: usize, letters: &str, pinned: impl Iterator<Item = usize>, less: Bounds) -> Self {
        let place = small(before as u64);
        // One after the other, so that each has segments of its own.
        for (n, letter) in letters.chars().enumerate() {
            let share = before * SLOTS / letters.len();
            store_all(&open(&place, letter), n * share..(n + 1) * share);
        }
        let shrunk = PackedPlace::new(move |config| config.bounds = less);
        fs::rename(place.root().join("kvtier-pool"), shrunk.root().join("kvtier-pool")).unwrap();
        let lock = |path| {
            let file = File::open(path).unwrap();
            flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
            Some(file)
        };
        let others: Vec<_> = segments(shrunk.root()).into_iter().map(lock).collect();
        assert_eq!(others.len(), before);
        let harness = open(&shrunk, 'p');
        let pinned: Vec<_> = pinned.collect();
        assert_eq!(pin(&harness, pinned.iter().copied()).unwrap(), vec![true; pinned.len()]);
        Self { place: shrunk, harness, others, pinned }
    }

    fn let_go(&mut self, segments: Range<usize>) {
        self.others[segments].fill_with(|| None);
    }

    fn segments(&self) -> usize {
        segments(self.place.root()).len()
    }

    fn until(&self, left: usize) {
        until(&format!("{left} segments are left"), || self.segments() == left);
    }

    fn assert_pinned_load(&self) {
        assert_loads(&self.harness, self.pinned.iter().copied());
    }

    /// All that is pinned is there, in as much room as there should be in the end.
    fn assert_drained(&self, left: usize) {
        self.until(left);
        self.assert_pinned_load();
        assert_sound(&self.place, left as u64);
    }
}

/// Longer than from one attempt to give room back to the next.
const ATTEMPTS: Duration = Duration::from_millis(2500);

/// Pinned blocks in the upper half of six segments, all of one namespace, of which three are to stay.
fn beyond_a_lowered_cap() -> Shrunk {
    let mut shrunk = Shrunk::open(6, "p", (3 * SLOTS..6 * SLOTS).step_by(4), bounds(3));
    shrunk.let_go(3..6);
    std::thread::sleep(ATTEMPTS);
    // There is no room for them below, which somebody else has.
    assert_eq!(shrunk.segments(), 6);
    shrunk.assert_pinned_load();
    shrunk
}

#[test]
fn pinned_blocks_move_below_a_lowered_cap() {
    let mut shrunk = beyond_a_lowered_cap();
    shrunk.let_go(0..3);
    shrunk.assert_drained(3);
}

#[test]
fn what_has_no_room_below_a_lowered_cap_stays_while_it_is_pinned() {
    let shrunk = beyond_a_lowered_cap();
    unpin(&shrunk.harness, shrunk.pinned.iter().copied());
    shrunk.until(3);
    assert_eq!(known(&shrunk.harness, 3 * SLOTS..6 * SLOTS), 0);
    assert_sound(&shrunk.place, 3);
}

#[test]
fn pinned_blocks_beyond_a_lowered_cap_take_room_of_others() {
    let mut shrunk = Shrunk::open(6, "op", (3 * SLOTS..6 * SLOTS).step_by(4), bounds(3));
    shrunk.let_go(0..6);
    shrunk.assert_drained(3);
}

#[test]
fn pinned_blocks_are_what_is_left_where_others_need_the_disk() {
    let less = Bounds { min_free_bytes: Some(1 << 60), ..bounds(4) };
    let mut shrunk = Shrunk::open(4, "p", (0..4 * SLOTS).step_by(4), less);
    shrunk.let_go(0..4);
    shrunk.assert_drained(1);
    assert_eq!(known(&shrunk.harness, 0..4 * SLOTS), SLOTS);
}
