//! Pools after a boot: blocks that lost bytes with the power, and tiers that don't compare checksums.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]

mod places;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use kvtier::error::ErrorKind;
use kvtier::frame::{TRAILER_BYTES, Verify};
use kvtier::store::packed::check;
use places::pool::{PackedPlace, bounds, slot_of};
use places::{Harness, Open, key, until};

const OPEN: Open = Open { letter: 'p', payload_bytes: 60 << 10, verify: Verify::Never, ..Open::DEFAULT };

/// Slots of a segment of a MiB.
const SLOTS: usize = 15;

/// Blocks of a pool of three segments, those whose payload is lost, and those whose trailer is.
const BLOCKS: usize = 3 * SLOTS - 2;
const WITHOUT_PAYLOAD: [usize; 3] = [0, 7, SLOTS + 1];
const WITHOUT_TRAILER: [usize; 2] = [3, 2 * SLOTS];

fn small() -> PackedPlace {
    PackedPlace::new(|config| config.bounds = bounds(4))
}

fn open(place: &PackedPlace) -> Harness {
    Harness::open(place, &OPEN, 4)
}

fn is_lost(n: usize) -> bool {
    WITHOUT_PAYLOAD.contains(&n) || WITHOUT_TRAILER.contains(&n)
}

fn mark(place: &PackedPlace) -> PathBuf {
    place.root().join("kvtier-pool/checked")
}

/// A pool with blocks.
fn filled() -> PackedPlace {
    let place = small();
    let harness = open(&place);
    for n in 0..BLOCKS {
        harness.store_by(0, n).unwrap();
    }
    place
}

/// What a power failure may do: pages of some blocks never reached the device.
fn lose_pages(place: &PackedPlace) {
    let zero = |n: usize, at: fn(u64) -> u64, bytes: usize| {
        let slot = slot_of(place.root(), OPEN.namespace().blocks_dir(), &key(n)).unwrap();
        let file = File::options().write(true).open(slot.path).unwrap();
        file.write_all_at(&vec![0; bytes], slot.offset + at(slot.bytes)).unwrap();
    };
    for n in WITHOUT_PAYLOAD {
        zero(n, |_| 8192, 4096);
    }
    for n in WITHOUT_TRAILER {
        zero(n, |bytes| bytes - TRAILER_BYTES as u64, TRAILER_BYTES);
    }
}

fn boot(place: &PackedPlace) -> String {
    let before = fs::read_to_string(mark(place)).unwrap();
    fs::write(mark(place), before.replace(|c: char| c.is_ascii_hexdigit(), "0")).unwrap();
    before
}

#[test]
fn what_lost_bytes_in_a_power_failure_is_found_and_buried() {
    let place = filled();
    lose_pages(&place);
    let this_boot = boot(&place);
    let harness = open(&place);
    // Nothing wrong comes out meanwhile.
    for n in (0..BLOCKS).rev() {
        match harness.load_by(1, n) {
            Ok(is_right) => assert!(is_right && !is_lost(n), "block {n}"),
            Err(error) => {
                assert!(is_lost(n), "block {n}: {error}");
                assert!(error.kind().is_proof_of_damage() || error.kind() == ErrorKind::Missing, "{error}");
            }
        }
    }
    until("all is checked", || fs::read_to_string(mark(&place)).unwrap() == this_boot);
    drop(harness);
    // Nobody finds them any more, and all others are there.
    let harness = open(&place);
    for n in 0..BLOCKS {
        assert_eq!(harness.is_known(n), !is_lost(n), "block {n}");
        assert!(is_lost(n) || harness.load_by(1, n).unwrap());
    }
    let census = check(place.root(), true).unwrap();
    assert!(census.segments.iter().all(|segment| segment.wrong.is_empty()));
    let dead: u32 = census.segments.iter().map(|segment| segment.dead).sum();
    assert_eq!(dead as usize, WITHOUT_PAYLOAD.len() + WITHOUT_TRAILER.len());
}

#[test]
fn blocks_that_nobody_loads_and_other_namespaces_are_checked_too() {
    let place = filled();
    lose_pages(&place);
    let this_boot = boot(&place);
    let other = Harness::open(&place, &Open { letter: 'o', ..OPEN }, 4);
    until("all is checked", || fs::read_to_string(mark(&place)).unwrap() == this_boot);
    drop(other);
    let harness = Harness::open(&place, &Open { verify: Verify::Always, ..OPEN }, 4);
    assert!((0..BLOCKS).all(|n| harness.is_known(n) != is_lost(n)));
}

#[test]
fn within_a_boot_nothing_is_checked_twice() {
    let place = filled();
    assert!(!fs::read_to_string(mark(&place)).unwrap().is_empty(), "an empty pool needs no check");
    lose_pages(&place);
    let harness = open(&place);
    std::thread::sleep(Duration::from_millis(200));
    assert!((0..BLOCKS).all(|n| harness.is_known(n)));
    // The trailer is looked at all the same.
    assert!(harness.load_by(1, WITHOUT_TRAILER[0]).is_err());
    // Whoever compares checksums doesn't need it, and says nothing.
    drop(harness);
    boot(&place);
    let zeros = fs::read_to_string(mark(&place)).unwrap();
    let harness = Harness::open(&place, &Open { verify: Verify::Always, ..OPEN }, 4);
    assert_eq!(harness.load_by(1, WITHOUT_PAYLOAD[0]).unwrap_err().kind(), ErrorKind::Checksum);
    assert_eq!(fs::read_to_string(mark(&place)).unwrap(), zeros);
}

#[test]
fn whoever_only_reads_compares_checksums_and_changes_nothing() {
    let place = filled();
    lose_pages(&place);
    boot(&place);
    let zeros = fs::read_to_string(mark(&place)).unwrap();
    let harness = Harness::open(&place, &Open { read_only: true, ..OPEN }, 4);
    for n in 0..BLOCKS {
        assert_eq!(harness.load_by(1, n).is_ok(), !is_lost(n), "block {n}");
    }
    assert_eq!(fs::read_to_string(mark(&place)).unwrap(), zeros);
    let dead: u32 = check(place.root(), false).unwrap().segments.iter().map(|segment| segment.dead).sum();
    assert_eq!(dead, 0);
}

#[test]
fn a_copy_is_checked_and_what_is_torn_or_lost_counts_as_unchecked() {
    let place = filled();
    let this_boot = fs::read_to_string(mark(&place)).unwrap();
    for text in [None, Some(""), Some(&this_boot[..20])] {
        match text {
            None => fs::remove_file(mark(&place)).unwrap(),
            Some(text) => fs::write(mark(&place), text).unwrap(),
        }
        drop(open(&place));
        let harness = open(&place);
        until("all is checked", || fs::read_to_string(mark(&place)).unwrap() == this_boot);
        assert!(harness.load_by(1, 1).unwrap());
    }
    let copy = small();
    fs::create_dir(copy.root().join("kvtier-pool")).unwrap();
    for entry in fs::read_dir(place.root().join("kvtier-pool")).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, copy.root().join("kvtier-pool").join(from.file_name().unwrap())).unwrap();
    }
    for entry in fs::read_dir(place.root()).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && entry.join("config.json").exists() {
            let to = copy.root().join(entry.file_name().unwrap());
            fs::create_dir(&to).unwrap();
            fs::copy(entry.join("config.json"), to.join("config.json")).unwrap();
        }
    }
    let harness = open(&copy);
    until("the copy is checked", || fs::read_to_string(mark(&copy)).unwrap() != this_boot);
    assert!((0..BLOCKS).all(|n| harness.load_by(1, n).unwrap()));
}
