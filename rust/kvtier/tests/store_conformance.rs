//! One suite for every store: what is stored comes back, what is damaged does not, and each block fails alone.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]

mod places;

use std::sync::Arc;
use std::sync::mpsc::channel;

use kvtier::buffer::{Gate, HostRows, Region, RowLease, RowPart};
use kvtier::config::{DirectIo, UploadChecksum};
use kvtier::error::ErrorKind;
use kvtier::frame::Verify;
use kvtier::identity::NamespaceKind;
use kvtier::store::Probed;
use kvtier::store::files::Publishing;
use places::bucket::BucketPlace;
use places::pool::PackedPlace;
use places::weed::Weed;
use places::{FilesPlace, Harness, MemoryPlace, Open, Place, key, payload_of};

fn published(way: Publishing) -> FilesPlace {
    FilesPlace::new(move |config| config.publishing = Some(way))
}

fn buffered() -> FilesPlace {
    FilesPlace::new(|config| config.direct_io = DirectIo::Off)
}

fn buffered_on_a_ring() -> FilesPlace {
    FilesPlace::on_a_ring(|config| config.direct_io = DirectIo::Off)
}

/// As on a network file system.
fn through_scratch() -> FilesPlace {
    FilesPlace::new(|config| {
        config.direct_io = DirectIo::Off;
        config.reads_into_rows = Some(false);
    })
}

/// Blocks of more than a page move in parts.
fn in_parts() -> BucketPlace {
    BucketPlace::stub().with(|config| config.part_bytes = 4096)
}

/// On a server that can't be asked not to overwrite.
fn without_conditions() -> BucketPlace {
    let place = BucketPlace::stub();
    place.server().bucket().conditions = false;
    place
}

/// One test for the whole suite: starting the server takes longer than all of it.
#[test]
#[ignore = "slow: starts a real S3 server"]
fn on_a_real_s3_server() {
    let Some(server) = Weed::start() else { return };
    for test in SUITE {
        test(&BucketPlace::at(&server));
        test(&BucketPlace::at(&server).with(|config| config.upload_checksum = UploadChecksum::Crc64Nvme));
    }
}

/// Makes one `#[test]` per place out of each function of the suite.
macro_rules! conformance {
    ($($test:ident),+ $(,)?) => {
        const SUITE: &[fn(&dyn Place)] = &[$($test),+];

        mod memory { $(#[test] fn $test() { super::$test(&super::MemoryPlace::new()); })+ }
        mod behind_the_faulty_store { $(#[test] fn $test() { super::$test(&super::MemoryPlace::faulty()); })+ }
        mod files { $(#[test] fn $test() { super::$test(&super::FilesPlace::new(|_| {})); })+ }
        mod files_linked_through_proc { $(#[test] fn $test() { super::$test(&super::published(Publishing::LinkProc)); })+
            use super::Publishing; }
        mod files_renamed { $(#[test] fn $test() { super::$test(&super::published(Publishing::Rename)); })+
            use super::Publishing; }
        mod files_linked_by_name { $(#[test] fn $test() { super::$test(&super::published(Publishing::LinkName)); })+
            use super::Publishing; }
        mod files_through_the_page_cache { $(#[test] fn $test() { super::$test(&super::buffered()); })+ }
        mod files_through_scratch { $(#[test] fn $test() { super::$test(&super::through_scratch()); })+ }
        mod files_on_a_ring { $(#[test] fn $test() { super::$test(&super::FilesPlace::on_a_ring(|_| {})); })+ }
        mod files_on_a_ring_through_the_page_cache { $(#[test] fn $test() { super::$test(&super::buffered_on_a_ring()); })+ }
        mod bucket { $(#[test] fn $test() { super::$test(&super::BucketPlace::stub()); })+ }
        mod bucket_in_parts { $(#[test] fn $test() { super::$test(&super::in_parts()); })+ }
        mod bucket_without_conditions { $(#[test] fn $test() { super::$test(&super::without_conditions()); })+ }
        mod bucket_of_google { $(#[test] fn $test() { super::$test(&super::BucketPlace::gcs_stub()); })+ }
        mod bucket_of_azure { $(#[test] fn $test() { super::$test(&super::BucketPlace::azure_stub()); })+ }
        mod packed { $(#[test] fn $test() { super::$test(&super::PackedPlace::new(|_| {})); })+ }
        mod packed_through_the_page_cache { $(#[test] fn $test() { super::$test(&super::PackedPlace::buffered()); })+ }
        mod packed_on_a_ring { $(#[test] fn $test() { super::$test(&super::PackedPlace::on_a_ring()); })+ }
        mod packed_in_memory { $(#[test] fn $test() { super::$test(&super::PackedPlace::on_tmpfs()); })+ }
        mod files_in_memory { $(#[test] fn $test() { super::$test(&super::FilesPlace::on_tmpfs()); })+ }
    };
}

conformance!(
    what_is_stored_comes_back,
    blocks_of_any_length_and_alignment_come_back,
    scattered_rows_come_back,
    raw_blocks_are_the_payload_and_nothing_else,
    what_is_there_is_not_written_again,
    a_key_that_was_never_stored_is_missing,
    damaged_blocks_fail_alone_with_their_kind_and_are_healed,
    damaged_raw_blocks_are_told_by_their_length,
    a_block_of_a_newer_format_is_left_alone,
    a_file_of_the_wrong_length_makes_room,
    unverified_loads_still_compare_keys_and_lengths,
    identities_never_see_each_other,
    nothing_is_published_or_filled_after_its_time,
    a_read_only_store_changes_nothing,
    rows_that_do_not_fit_are_refused,
    a_scan_lists_exactly_the_blocks,
    a_reset_takes_everything_away_and_nothing_else,
    many_stores_of_one_block_succeed,
    a_closed_store_runs_nothing,
);

fn what_is_stored_comes_back(place: &dyn Place) {
    let harness = Harness::open(place, &Open::default(), 8);
    for n in 0..8 {
        assert!(matches!(harness.probe(n), Probed::Absent));
        assert_eq!(harness.store(n).unwrap().bytes, Open::default().payload_bytes as u64);
        assert!(matches!(harness.probe(n), Probed::Present(_)));
    }
    drop(harness);
    // A restart: other rows, another store.
    let harness = Harness::open(place, &Open::default(), 8);
    for n in 0..8 {
        harness.clear(n);
        assert_eq!(harness.load(n).unwrap().bytes, Open::default().payload_bytes as u64);
        harness.assert_row_is_block(n);
    }
}

fn blocks_of_any_length_and_alignment_come_back(place: &dyn Place) {
    for (letter, payload_bytes) in ('a'..).zip([1, 511, 4095, 4096, 4097, 5000, 65_536, 98_816]) {
        for kind in [NamespaceKind::Kvtier, NamespaceKind::Vllm] {
            if place.in_slots() && kind == NamespaceKind::Vllm {
                continue;
            }
            let open = Open { letter, kind, payload_bytes, ..Open::default() };
            let harness = Harness::open(place, &open, 3);
            for n in 0..3 {
                harness.store(n).unwrap();
            }
            for n in 0..3 {
                harness.clear(n);
                harness.load(n).unwrap();
                harness.assert_row_is_block(n);
            }
        }
    }
}

fn scattered_rows_come_back(place: &dyn Place) {
    // Three layers: one aligned, one not, one with gaps between rows.
    let (a, b, c) = (HostRows::new(4, 8192).unwrap(), HostRows::new(4, 100).unwrap(), HostRows::new(4, 8192).unwrap());
    let parts = vec![
        RowPart { base: a.base(), row_bytes: 8192, stride: 8192 },
        RowPart { base: b.base(), row_bytes: 100, stride: 100 },
        RowPart { base: c.base(), row_bytes: 5000, stride: 8192 },
    ];
    // SAFETY: the parts lie in the host rows, which the owner keeps mapped, and only leases touch them.
    let region = unsafe { Region::from_parts(parts, 4, true, Box::new((a, b, c))) }.unwrap();
    let open = Open { payload_bytes: 8192 + 100 + 5000, ..Open::default() };
    let harness = Harness::over(place, &open, &region);
    for n in 0..4 {
        harness.store(n).unwrap();
        harness.clear(n);
        harness.load(n).unwrap();
        harness.assert_row_is_block(n);
    }
}

fn raw_blocks_are_the_payload_and_nothing_else(place: &dyn Place) {
    if place.in_slots() {
        return;
    }
    let open = Open { kind: NamespaceKind::Vllm, payload_bytes: 5000, ..Open::default() };
    let harness = Harness::open(place, &open, 1);
    harness.store(0).unwrap();
    assert!(place.read(&open, &key(0)).unwrap() == payload_of(0, 5000));
}

fn what_is_there_is_not_written_again(place: &dyn Place) {
    let harness = Harness::open(place, &Open::default(), 2);
    harness.store(0).unwrap();
    let before = (place.read(&Open::default(), &key(0)), place.inode(&Open::default(), &key(0)));
    assert_eq!(harness.store(0).unwrap().bytes, 0);
    let harness = Harness::open(place, &Open::default(), 2);
    assert_eq!(harness.store(0).unwrap().bytes, 0, "after a restart, too");
    assert!(before == (place.read(&Open::default(), &key(0)), place.inode(&Open::default(), &key(0))));
}

fn a_key_that_was_never_stored_is_missing(place: &dyn Place) {
    let harness = Harness::open(place, &Open::default(), 1);
    let error = harness.load(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    harness.store(0).unwrap();
    harness.load(0).unwrap();
}

fn damaged_blocks_fail_alone_with_their_kind_and_are_healed(place: &dyn Place) {
    let open = Open { payload_bytes: 5000, ..Open::default() };
    let harness = Harness::open(place, &open, 8);
    (0..8).for_each(|n| assert!(harness.store(n).is_ok()));
    let good = place.read(&open, &key(3)).unwrap();
    let others = Open { letter: 'o', ..open };
    Harness::open(place, &others, 8).store(3).unwrap();
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let tail = good.len() - 4096;
    for (what, damaged, kind) in [
        ("removed", None, ErrorKind::Missing),
        ("short by one byte", Some(good[..good.len() - 1].to_vec()), ErrorKind::Short),
        ("short by a page", Some(good[..tail].to_vec()), ErrorKind::Short),
        ("empty", Some(Vec::new()), ErrorKind::Short),
        ("long by one byte", Some([good.as_slice(), &[0]].concat()), ErrorKind::Long),
        ("first byte flipped", Some(flipped(0)), ErrorKind::Checksum),
        ("middle byte flipped", Some(flipped(2500)), ErrorKind::Checksum),
        ("last byte of the payload flipped", Some(flipped(4999)), ErrorKind::Checksum),
        ("padding flipped", Some(flipped(5000)), ErrorKind::Foreign),
        ("magic flipped", Some(flipped(tail)), ErrorKind::Foreign),
        ("version flipped", Some(flipped(tail + 8)), ErrorKind::Foreign),
        ("last byte flipped", Some(flipped(good.len() - 1)), ErrorKind::Foreign),
        ("zeros", Some(vec![0; good.len()]), ErrorKind::Foreign),
        ("another key's", place.read(&open, &key(4)), ErrorKind::WrongKey),
        ("another identity's", place.read(&others, &key(3)), ErrorKind::WrongIdentity),
    ] {
        if place.in_slots() && damaged.as_ref().is_none_or(|damaged| damaged.len() != good.len()) {
            continue;
        }
        place.write(&open, &key(3), damaged.as_deref());
        for n in 0..8 {
            harness.clear(n);
            let loaded = harness.load(n);
            if n == 3 {
                assert_eq!(loaded.unwrap_err().kind(), kind, "{what}");
            } else {
                loaded.unwrap();
                harness.assert_row_is_block(n);
            }
        }
        assert!(matches!(harness.probe(3), Probed::Absent), "{what}: gone after the failure");
        assert_eq!(harness.load(3).unwrap_err().kind(), ErrorKind::Missing, "{what}");
        harness.fill(3);
        assert!(harness.store(3).unwrap().bytes > 0, "{what}: healed by the next store");
        harness.clear(3);
        harness.load(3).unwrap();
        harness.assert_row_is_block(3);
    }
}

fn damaged_raw_blocks_are_told_by_their_length(place: &dyn Place) {
    if place.in_slots() {
        return;
    }
    let open = Open { kind: NamespaceKind::Vllm, ..Open::default() };
    let harness = Harness::open(place, &open, 2);
    (0..2).for_each(|n| assert!(harness.store(n).is_ok()));
    let good = place.read(&open, &key(0)).unwrap();
    for (damaged, kind) in [
        (good[1..].to_vec(), ErrorKind::Short),
        (Vec::new(), ErrorKind::Short),
        ([good.as_slice(), &[0]].concat(), ErrorKind::Long),
        // What another row size would have left under the same name: never a prefix of it.
        ([good.as_slice(), &good].concat(), ErrorKind::Long),
    ] {
        place.write(&open, &key(0), Some(&damaged));
        assert_eq!(harness.load(0).unwrap_err().kind(), kind);
        harness.load(1).unwrap();
        assert!(place.read(&open, &key(0)).is_none());
    }
}

fn a_block_of_a_newer_format_is_left_alone(place: &dyn Place) {
    let open = Open::default();
    let harness = Harness::open(place, &open, 1);
    harness.store(0).unwrap();
    let mut newer = place.read(&open, &key(0)).unwrap();
    let page = newer.len() - 4096;
    newer[page + 8] = 2;
    let end = newer.len();
    newer[end - 4..].fill(0);
    let crc = crc_fast::crc32_iscsi(&newer[page..]);
    newer[end - 4..].copy_from_slice(&crc.to_le_bytes());
    let longer = [&newer[..page], &[7; 4096], &newer[page..]].concat();
    for newer in [newer, longer] {
        if place.in_slots() && newer.len() != end {
            continue;
        }
        place.write(&open, &key(0), Some(&newer));
        assert_eq!(harness.load(0).unwrap_err().kind(), ErrorKind::UnsupportedVersion);
        assert!(place.read(&open, &key(0)).unwrap() == newer);
        // A store may find it there already, or say why it can't be; it doesn't make room.
        if let Err(error) = harness.store(0) {
            assert_eq!(error.kind(), ErrorKind::UnsupportedVersion);
        }
        assert!(place.read(&open, &key(0)).unwrap() == newer);
    }
}

fn a_file_of_the_wrong_length_makes_room(place: &dyn Place) {
    if place.in_slots() {
        return;
    }
    let open = Open::default();
    let harness = Harness::open(place, &open, 1);
    for bytes in [&[][..], &[1; 100], &vec![1; 1 << 20]] {
        place.write(&open, &key(0), Some(bytes));
        assert!(matches!(harness.probe(0), Probed::Absent));
        harness.fill(0);
        assert!(harness.store(0).unwrap().bytes > 0);
        harness.clear(0);
        harness.load(0).unwrap();
        harness.assert_row_is_block(0);
    }
}

fn unverified_loads_still_compare_keys_and_lengths(place: &dyn Place) {
    let open = Open { verify: Verify::Never, ..Open::default() };
    let harness = Harness::open(place, &open, 2);
    (0..2).for_each(|n| assert!(harness.store(n).is_ok()));
    let mut block = place.read(&open, &key(0)).unwrap();
    block[17] ^= 1;
    place.write(&open, &key(0), Some(&block));
    harness.load(0).unwrap();
    place.write(&open, &key(0), place.read(&open, &key(1)).as_deref());
    assert_eq!(harness.load(0).unwrap_err().kind(), ErrorKind::WrongKey);
    harness.load(1).unwrap();
}

fn identities_never_see_each_other(place: &dyn Place) {
    let [a, b] = ['a', 'b'].map(|letter| Harness::open(place, &Open { letter, ..Open::default() }, 2));
    a.store(0).unwrap();
    assert!(matches!(b.probe(0), Probed::Absent));
    assert_eq!(b.load(0).unwrap_err().kind(), ErrorKind::Missing);
    b.store(1).unwrap();
    assert_eq!(a.scan(), [key(0)]);
    assert_eq!(b.scan(), [key(1)]);
}

fn nothing_is_published_or_filled_after_its_time(place: &dyn Place) {
    let harness = Harness::open(place, &Open::default(), 2);
    harness.store(1).unwrap();
    let expired = |row| {
        let gates: Arc<[Gate]> = Arc::new([Gate::default()]);
        let lease = RowLease::new(Arc::clone(harness.region()), row, Arc::clone(&gates), 0).unwrap();
        gates[0].expire();
        lease
    };
    assert_eq!(harness.store_lease(key(0), expired(0)).unwrap_err().kind(), ErrorKind::Timeout);
    assert!(matches!(harness.probe(0), Probed::Absent));
    harness.clear(1);
    assert_eq!(harness.load_lease(key(1), expired(1)).unwrap_err().kind(), ErrorKind::Timeout);
    assert!(harness.row(1).iter().all(|b| *b == 0));
    harness.load(1).unwrap();
}

fn a_read_only_store_changes_nothing(place: &dyn Place) {
    let open = Open::default();
    let writer = Harness::open(place, &open, 3);
    (0..2).for_each(|n| assert!(writer.store(n).is_ok()));
    let mut damaged = place.read(&open, &key(1)).unwrap();
    damaged[0] ^= 1;
    place.write(&open, &key(1), Some(&damaged));

    let reader = Harness::open(place, &Open { read_only: true, ..open }, 3);
    assert!(reader.info().read_only);
    assert_eq!(reader.store(2).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(reader.reset().unwrap_err().kind(), ErrorKind::ReadOnly);
    reader.clear(0);
    reader.load(0).unwrap();
    reader.assert_row_is_block(0);
    assert_eq!(reader.load(1).unwrap_err().kind(), ErrorKind::Checksum);
    assert!(place.read(&open, &key(1)).unwrap() == damaged, "left for somebody who may remove it");
    assert_eq!(reader.scan().len(), 2);
}

fn rows_that_do_not_fit_are_refused(place: &dyn Place) {
    let harness = Harness::open(place, &Open::default(), 1);
    harness.store(0).unwrap();
    let small = HostRows::new(1, 100).unwrap().region();
    let lease = || RowLease::unbounded(&small, 0).unwrap();
    assert_eq!(harness.store_lease(key(1), lease()).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(harness.load_lease(key(0), lease()).unwrap_err().kind(), ErrorKind::InvalidInput);

    let rows = HostRows::new(1, Open::default().payload_bytes).unwrap();
    let part = RowPart { base: rows.base(), row_bytes: rows.row_bytes(), stride: rows.row_bytes() };
    // SAFETY: the rows are kept by their clone, and nobody writes to them.
    let frozen = unsafe { Region::from_parts(vec![part], 1, false, Box::new(rows)) }.unwrap();
    let lease = || RowLease::unbounded(&frozen, 0).unwrap();
    assert_eq!(harness.load_lease(key(0), lease()).unwrap_err().kind(), ErrorKind::ReadOnly);
    harness.store_lease(key(1), lease()).unwrap();
}

fn a_scan_lists_exactly_the_blocks(place: &dyn Place) {
    let open = Open::default();
    let harness = Harness::open(place, &open, 50);
    assert_eq!(harness.scan(), []);
    (0..50).for_each(|n| assert!(harness.store(n).is_ok()));
    place.litter(&open);
    let mut found = harness.scan();
    found.sort_by_key(|k| k.as_bytes().to_vec());
    let mut expected: Vec<_> = (0..50).map(key).collect();
    expected.sort_by_key(|k| k.as_bytes().to_vec());
    assert_eq!(found, expected);
    let mut seen = 0;
    harness
        .raw_store()
        .scan(&mut |_, _| {
            seen += 1;
            seen < 10
        })
        .unwrap();
    assert_eq!(seen, 10, "a scan stops when it is told to");
}

fn a_reset_takes_everything_away_and_nothing_else(place: &dyn Place) {
    let open = Open::default();
    let [a, also_a] = [0, 0].map(|_| Harness::open(place, &open, 3));
    let b = Harness::open(place, &Open { letter: 'b', ..open }, 3);
    (0..3).for_each(|n| assert!(a.store(n).is_ok() && b.store(n).is_ok()));
    a.reset().unwrap();
    for n in 0..3 {
        assert!(matches!(also_a.probe(n), Probed::Absent), "another tier sees it, too");
        assert_eq!(also_a.load(n).unwrap_err().kind(), ErrorKind::Missing);
        b.clear(n);
        b.load(n).unwrap();
        b.assert_row_is_block(n);
    }
    assert_eq!(a.scan(), []);
    a.reset().unwrap();
    also_a.store(1).unwrap();
    a.clear(1);
    a.load(1).unwrap();
    a.assert_row_is_block(1);
    assert_eq!(a.scan(), [key(1)]);
}

fn many_stores_of_one_block_succeed(place: &dyn Place) {
    let open = Open::default();
    let harness = Harness::open(place, &open, 1);
    let (send, receive) = channel();
    for _ in 0..64 {
        let send = send.clone();
        harness.spawn_store(key(0), harness.lease(0), move |stored| send.send(stored.map(|s| s.bytes)).unwrap());
    }
    drop(send);
    let moved: Vec<_> = receive.iter().map(Result::unwrap).collect();
    assert_eq!(moved.len(), 64);
    assert!(moved.iter().any(|bytes| *bytes > 0));
    assert_eq!(place.unfinished(&open), 0);
    harness.clear(0);
    harness.load(0).unwrap();
    harness.assert_row_is_block(0);
}

fn a_closed_store_runs_nothing(place: &dyn Place) {
    let harness = Harness::open(place, &Open::default(), 1);
    assert_eq!(harness.raw_store().close(std::time::Duration::from_secs(20)), 0);
    let (send, receive) = channel();
    harness.spawn_store(key(0), harness.lease(0), move |stored| send.send(stored).unwrap());
    let answer = receive.recv().unwrap();
    assert!(answer.is_err(), "an operation that comes too late is answered");
}
