//! Pins in packed pools: what stays when room is made, and for how long.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]

mod places;

use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use kvtier::error::{ErrorKind, Result};
use kvtier::frame::Verify;
use kvtier::identity::NamespaceKind;
use kvtier::layout::BlockKey;
use kvtier::store::Known;
use kvtier::store::packed::check;
use kvtier::store::packed::format::{Superblock, TablePage};
use places::pool::{PackedPlace, bounds, page_at};
use places::{Harness, Open, key, payload_of};

const OPEN: Open = Open {
    letter: 'p',
    kind: NamespaceKind::Kvtier,
    payload_bytes: 60 << 10,
    verify: Verify::Always,
    read_only: false,
};

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
        harness.lease(0).enter().unwrap().copy_from(&payload_of(n, OPEN.payload_bytes)).unwrap();
        harness.store_lease(key(n), harness.lease(0)).unwrap();
    }
}

fn assert_loads(harness: &Harness, blocks: Range<usize>) {
    for n in blocks {
        harness.clear(1);
        harness.load_lease(key(n), harness.lease(1)).unwrap_or_else(|e| panic!("block {n}: {e}"));
        assert!(harness.row(1) == payload_of(n, OPEN.payload_bytes), "block {n} has wrong bytes");
    }
}

fn keys(blocks: Range<usize>) -> Vec<BlockKey> {
    blocks.map(key).collect()
}

fn pin(harness: &Harness, blocks: Range<usize>) -> Result<Vec<bool>> {
    harness.raw_store().residency().unwrap().pin(&keys(blocks), None)
}

fn pin_until(harness: &Harness, blocks: Range<usize>, until: SystemTime) -> Vec<bool> {
    harness.raw_store().residency().unwrap().pin(&keys(blocks), Some(until)).unwrap()
}

fn known(harness: &Harness, blocks: Range<usize>) -> usize {
    let residency = harness.raw_store().residency().unwrap();
    blocks.filter(|n| matches!(residency.find(&key(*n)), Known::Here(_))).count()
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
    store_all(&harness, 100..100 + 20 * 8 * SLOTS);
    assert_eq!(known(&harness, 0..2 * SLOTS), 3);
    assert_loads(&harness, 5..8);
    assert!(!keys(5..8).iter().any(|key| told.lock().unwrap().contains(key)));
    // Taken back, they go like all others.
    harness.raw_store().residency().unwrap().unpin(&keys(0..7));
    store_all(&harness, 10_000..10_000 + 20 * 8 * SLOTS);
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
        let residency = harness.raw_store().residency().unwrap();
        let pinned: Vec<_> = (0..4 * SLOTS * step).step_by(step).collect();
        let named: Vec<_> = pinned.iter().map(|n| key(*n)).collect();
        assert!(residency.pin(&named, None).unwrap().iter().filter(|is_pinned| **is_pinned).count() > 3 * SLOTS);
        let there: Vec<_> = pinned.into_iter().filter(|n| known(&harness, *n..n + 1) == 1).collect();
        store_all(&harness, 1000..1000 + 10 * 8 * SLOTS);
        for n in there {
            assert_loads(&harness, n..n + 1);
        }
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
    let refused = pin(&harness, 0..most + 1).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Capacity);
    for number in [limit, (most as u64 + 1) * SLOT_BYTES] {
        assert!(refused.to_string().contains(&format!("{number} bytes")), "{refused}");
    }
    // Nothing of it is pinned; what is pinned already counts once.
    for _ in 0..2 {
        assert_eq!(pin(&harness, 10..10 + most).unwrap(), vec![true; most]);
    }
    assert!(pin(&harness, 0..1).is_err());
    harness.raw_store().residency().unwrap().unpin(&keys(10..11));
    assert_eq!(pin(&harness, 0..1).unwrap(), [true]);
}

#[test]
fn what_is_not_here_is_not_pinned() {
    let place = small(4);
    let harness = open(&place, 'p');
    store_all(&harness, 0..2);
    assert_eq!(pin(&harness, 1..4).unwrap(), [true, false, false]);
    store_all(&harness, 2..3);
    store_all(&harness, 100..100 + 20 * 4 * SLOTS);
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
    store_all(&harness, 200..200 + 20 * 4 * SLOTS);
    assert_eq!(known(&harness, 0..3), 1);
    assert_loads(&harness, 0..1);
}

#[test]
fn pins_end_with_a_reset_and_with_their_namespace() {
    let place = small(8);
    // Keeps the pool open.
    let _other = open(&place, 'o');
    let harness = open(&place, 'p');
    let push = |harness: &Harness| store_all(harness, 1000..1000 + 10 * 8 * SLOTS);
    store_all(&harness, 0..3);
    assert_eq!(pin(&harness, 0..3).unwrap(), [true; 3]);
    harness.reset().unwrap();
    store_all(&harness, 0..3);
    push(&harness);
    assert_eq!(known(&harness, 0..3), 0);
    store_all(&harness, 0..3);
    assert_eq!(pin(&harness, 0..3).unwrap(), [true; 3]);
    drop(harness);
    let harness = open(&place, 'p');
    assert_loads(&harness, 0..3);
    harness.reset().unwrap();
    store_all(&harness, 0..3);
    push(&harness);
    assert_eq!(known(&harness, 0..3), 0);
}

#[test]
fn pinned_blocks_move_when_another_namespace_takes_their_segment() {
    let place = small(8);
    let [a, b] = ['a', 'b'].map(|letter| open(&place, letter));
    // Spread over all segments: every one that is taken holds some.
    store_all(&a, 0..8 * SLOTS);
    let residency = a.raw_store().residency().unwrap();
    let pinned: Vec<_> = (0..8 * SLOTS).step_by(4).filter(|n| known(&a, *n..n + 1) == 1).collect();
    let named: Vec<_> = pinned.iter().map(|n| key(*n)).collect();
    assert!(residency.pin(&named, None).unwrap().iter().all(|is_pinned| *is_pinned));
    store_all(&b, 0..10 * 8 * SLOTS);
    for n in pinned {
        assert_loads(&a, n..n + 1);
    }
    assert!(known(&b, 0..10 * 8 * SLOTS) >= 3 * SLOTS, "{} blocks", known(&b, 0..10 * 8 * SLOTS));
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
