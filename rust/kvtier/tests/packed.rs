//! Packed pools in one process: opening, bounds, reclaim, damage, what survives what.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]

mod places;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier::buffer::HostRows;
use kvtier::error::{Error, ErrorKind};
use kvtier::layout::BlockKey;
use kvtier::store::packed::format::{Header, Superblock};
use kvtier::store::packed::{Bounds, Census, check};
use kvtier::store::{Known, Residency};
use places::pool::{PackedPlace, bounds, page_at, segments};
use places::{Harness, Open, Place, key, payload_of, until};

const OPEN: Open = Open { letter: 'p', payload_bytes: 60 << 10, ..Open::DEFAULT };

fn small(segments: u64) -> PackedPlace {
    PackedPlace::new(move |config| config.bounds = bounds(segments))
}

fn open(place: &PackedPlace) -> Harness {
    Harness::open(place, &OPEN, 4)
}

/// Stores block `n` by way of row 0.
fn store(harness: &Harness, n: usize) -> kvtier::error::Result<u64> {
    harness.store_by(0, n).map(|stored| stored.bytes)
}

fn store_all(harness: &Harness, blocks: std::ops::Range<usize>) {
    for n in blocks {
        store(harness, n).unwrap();
    }
}

/// Loads block `n` by way of row 1, and sees that it is right.
fn load(harness: &Harness, n: usize) -> kvtier::error::Result<()> {
    assert!(harness.load_by(1, n)?, "block {n} has wrong bytes");
    Ok(())
}

fn residency(harness: &Harness) -> Arc<dyn Residency> {
    harness.raw_store().residency().unwrap()
}

fn is_known(harness: &Harness, n: usize) -> bool {
    harness.is_known(n)
}

fn census(place: &PackedPlace) -> Census {
    let census = check(place.root(), true).unwrap();
    for segment in &census.segments {
        assert!(segment.wrong.is_empty(), "segment {}: {:?}", segment.id, segment.wrong);
        if let Ok(header) = &segment.header {
            let slots = segment.blocks + segment.dead + segment.free + 63 * segment.damaged_pages;
            assert!(slots >= header.slots, "segment {} has lost slots", segment.id);
        }
    }
    census
}

/// Slots of a segment of a MiB.
const SLOTS: usize = 15;

#[test]
fn what_is_stored_beyond_the_cap_takes_the_place_of_the_oldest() {
    let place = small(4);
    let harness = open(&place);
    for n in 0..20 * SLOTS {
        assert!(store(&harness, n).unwrap() > 0);
        load(&harness, n).unwrap();
    }
    let found: Vec<_> = (0..20 * SLOTS).filter(|n| is_known(&harness, *n)).collect();
    assert!(found.len() >= 3 * SLOTS, "{} of {} slots are in use", found.len(), 4 * SLOTS);
    for n in &found {
        load(&harness, *n).unwrap();
    }
    let census = census(&place);
    assert_eq!(census.segments.len(), 4);
    assert_eq!(census.blocks(), found.len() as u64);
    assert!(census.used_bytes <= Superblock::cap_for(4, 1 << 20), "{} bytes", census.used_bytes);
    // A restart finds the same.
    drop(harness);
    let harness = open(&place);
    for n in 0..20 * SLOTS {
        assert_eq!(is_known(&harness, n), found.contains(&n), "block {n}");
    }
}

#[test]
fn hot_blocks_stay_when_their_segment_is_reclaimed() {
    let place = small(4);
    let harness = open(&place);
    store(&harness, 0).unwrap();
    for n in 1..20 * SLOTS {
        store(&harness, n).unwrap();
        residency(&harness).touch(&[key(0)]);
    }
    load(&harness, 0).unwrap();
    assert!(!is_known(&harness, 1));
    census(&place);
}

#[test]
fn what_is_dropped_is_told() {
    let place = small(4);
    let harness = open(&place);
    let told: Arc<std::sync::Mutex<Vec<BlockKey>>> = Arc::default();
    let listener = Arc::clone(&told);
    harness.raw_store().on_dropped(Box::new(move |keys| listener.lock().unwrap().extend(keys)));
    for n in 0..10 * SLOTS {
        store(&harness, n).unwrap();
    }
    for n in 0..10 * SLOTS {
        assert_ne!(told.lock().unwrap().contains(&key(n)), is_known(&harness, n), "block {n}");
    }
}

#[test]
fn a_segment_without_an_owner_is_filled_up_by_the_next() {
    let place = small(4);
    for n in 0..SLOTS {
        let harness = open(&place);
        store(&harness, n).unwrap();
    }
    assert_eq!(census(&place).segments.len(), 1);
    let harness = open(&place);
    (0..SLOTS).for_each(|n| load(&harness, n).unwrap());
    store(&harness, SLOTS).unwrap();
    assert_eq!(census(&place).segments.len(), 2);
}

#[test]
fn two_namespaces_share_one_pool_in_one_process() {
    let place = small(8);
    let [a, b] = ['a', 'b'].map(|letter| Harness::open(&place, &Open { letter, ..OPEN }, 4));
    for n in 0..2 * SLOTS {
        store(&a, n).unwrap();
        store(&b, n).unwrap();
    }
    a.reset().unwrap();
    for n in 0..2 * SLOTS {
        assert!(!is_known(&a, n));
        load(&b, n).unwrap();
    }
    // The room of what was reset is anybody's.
    for n in 2 * SLOTS..6 * SLOTS {
        store(&b, n).unwrap();
    }
    let found = (0..6 * SLOTS).filter(|n| is_known(&b, *n)).count();
    assert!(found > 5 * SLOTS, "{found}");
    census(&place);
}

#[test]
fn a_reset_survives_a_restart_and_damaged_tables() {
    let place = small(8);
    let harness = open(&place);
    store_all(&harness, 0..2 * SLOTS);
    harness.reset().unwrap();
    store(&harness, 1000).unwrap();
    drop(harness);
    destroy_tables(&place);
    let harness = open(&place);
    until("the tables are rebuilt", || residency(&harness).is_complete());
    (0..2 * SLOTS).for_each(|n| assert!(!is_known(&harness, n), "block {n} is back"));
    load(&harness, 1000).unwrap();
}

fn destroy_tables(place: &PackedPlace) {
    for path in segments(place.root()) {
        let file = File::options().read(true).write(true).open(path).unwrap();
        file.write_all_at(&[0xA5; 4096], 4096).unwrap();
    }
}

#[test]
fn damaged_tables_are_rebuilt_from_the_blocks() {
    let place = small(8);
    let harness = open(&place);
    store_all(&harness, 0..4 * SLOTS);
    drop(harness);
    destroy_tables(&place);
    for read_only in [true, false] {
        let harness = Harness::open(&place, &Open { read_only, ..OPEN }, 4);
        // Whatever is said meanwhile, nothing there is called absent, and a probe waits for the truth.
        assert!((0..4 * SLOTS).all(|n| residency(&harness).find(&key(n)) != Known::Absent));
        assert!(matches!(harness.probe(3), kvtier::store::Probed::Present(_)));
        assert!(residency(&harness).is_complete());
        (0..4 * SLOTS).for_each(|n| load(&harness, n).unwrap());
        assert_eq!(residency(&harness).find(&key(9999)), Known::Absent);
    }
    assert_eq!(census(&place).blocks(), 4 * SLOTS as u64);
}

#[test]
fn a_damaged_header_costs_its_segment_and_nothing_else() {
    let place = small(3);
    let harness = open(&place);
    store_all(&harness, 0..3 * SLOTS);
    drop(harness);
    let file = File::options().write(true).open(&segments(place.root())[1]).unwrap();
    file.write_all_at(&[7], 100).unwrap();
    let harness = open(&place);
    let found: Vec<_> = (0..3 * SLOTS).filter(|n| is_known(&harness, *n)).collect();
    assert_eq!(found.len(), 2 * SLOTS);
    for n in &found {
        load(&harness, *n).unwrap();
    }
    // Its room is used again, and nothing of before comes back.
    store(&harness, 1000).unwrap();
    load(&harness, 1000).unwrap();
    assert_eq!((0..3 * SLOTS).filter(|n| is_known(&harness, *n)).count(), 2 * SLOTS);
    drop(harness);
    let headers = segments(place.root())
        .iter()
        .filter(|path| Header::decode(&page_at(&File::open(path).unwrap(), 0)).is_ok())
        .count();
    assert_eq!(headers, 3);
}

#[test]
fn a_bad_block_is_dead_for_everybody() {
    let place = small(4);
    let harness = open(&place);
    store_all(&harness, 0..3);
    let mut block = place.read(&OPEN, &key(1)).unwrap();
    block[77] ^= 1;
    place.write(&OPEN, &key(1), Some(&block));
    assert_eq!(load(&harness, 1).unwrap_err().kind(), ErrorKind::Checksum);
    assert_eq!(load(&harness, 1).unwrap_err().kind(), ErrorKind::Missing);
    drop(harness);
    let harness = open(&place);
    assert!(!is_known(&harness, 1) && is_known(&harness, 2), "also after a restart");
    let dead: u32 = census(&place).segments.iter().map(|segment| segment.dead).sum();
    assert_eq!(dead, 1);
}

fn refusal(place: &PackedPlace) -> Error {
    place.try_open(&OPEN).map(drop).unwrap_err()
}

#[test]
fn bounds_are_the_same_for_all_who_have_it_open() {
    let place = small(4);
    let harness = open(&place);
    store(&harness, 0).unwrap();
    let other = |bounds: Bounds| {
        let mut config =
            kvtier::store::packed::PackedConfig::new(kvtier::store::url::format_of(&OPEN.namespace()), bounds);
        config.file_mode = 0o600;
        let io = places::io(2);
        kvtier::store::packed::PackedStore::open(place.root(), &OPEN.namespace(), config, io)
    };
    let refused = other(bounds(5)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(refused.to_string().contains("max_bytes="), "{refused}");
    drop(other(Bounds::default()).unwrap());
    drop(harness);
    // Alone, it may be changed; what is beyond a lower cap is given back.
    drop(other(bounds(8)).unwrap());
    let refused = other(Bounds { segment_bytes: Some(2 << 20), ..Bounds::default() }).unwrap_err();
    assert!(refused.to_string().contains("segment_bytes=2097152"), "{refused}");
}

#[test]
fn a_lowered_cap_is_drained() {
    let place = small(8);
    let harness = open(&place);
    // The last one has room: no place for more, once it is beyond the cap.
    store_all(&harness, 0..8 * SLOTS - 3);
    drop(harness);
    assert_eq!(segments(place.root()).len(), 8);
    let lower = PackedPlace::new(|config| config.bounds = bounds(3));
    fs::rename(place.root().join("kvtier-pool"), lower.root().join("kvtier-pool")).unwrap();
    let harness = open(&lower);
    store(&harness, 1000).unwrap();
    until("segments beyond the cap are gone", || segments(lower.root()).len() == 3);
    let found: Vec<_> = (0..8 * SLOTS).filter(|n| is_known(&harness, *n)).collect();
    assert!(!found.is_empty());
    for n in &found {
        load(&harness, *n).unwrap();
    }
    store_all(&harness, 100..100 + 6 * SLOTS);
    assert!(census(&lower).used_bytes <= Superblock::cap_for(3, 1 << 20));
}

#[test]
fn what_is_no_pool_is_refused_and_left_alone() {
    // Without a bound.
    let unbounded = PackedPlace::new(|config| config.bounds = Bounds::default());
    assert!(refusal(&unbounded).to_string().contains("max_bytes"));
    // Too small.
    let tiny = PackedPlace::new(|config| config.bounds = bounds(1));
    assert!(refusal(&tiny).to_string().contains("needs at least"));
    // Another program's.
    let place = small(4);
    let pool = place.root().join("kvtier-pool");
    fs::create_dir(&pool).unwrap();
    fs::write(pool.join("data.db"), "x").unwrap();
    let refused = refusal(&place);
    assert!(refused.kind() == ErrorKind::Config && refused.to_string().contains("data.db"), "{refused}");
    fs::remove_file(pool.join("data.db")).unwrap();
    // Half made.
    fs::write(pool.join("super.new"), "half").unwrap();
    drop(open(&place));
    // Damaged.
    let superblock = fs::read(pool.join("super")).unwrap();
    let mut damaged = superblock.clone();
    damaged[40] ^= 1;
    fs::write(pool.join("super"), &damaged).unwrap();
    let refused = refusal(&place);
    assert!(refused.kind() == ErrorKind::Config && refused.to_string().contains("damaged"), "{refused}");
    // Newer.
    let mut newer = superblock.clone();
    newer[8] = 2;
    newer[4092..].fill(0);
    let crc = crc_fast::crc32_iscsi(&newer);
    newer[4092..].copy_from_slice(&crc.to_le_bytes());
    fs::write(pool.join("super"), &newer).unwrap();
    assert_eq!(refusal(&place).kind(), ErrorKind::UnsupportedVersion);
    assert!(fs::read(pool.join("super")).unwrap() == newer);
    // Lost, with blocks.
    fs::remove_file(pool.join("super")).unwrap();
    fs::write(pool.join("00000000.seg"), "x").unwrap();
    assert!(refusal(&place).to_string().contains("no superblock"));
    // Blocks in files.
    let files = small(4);
    fs::create_dir(files.root().join("model_0123456789ab_r0")).unwrap();
    assert!(refusal(&files).to_string().contains("layout=\"files\""));
    // Read-only makes nothing.
    let empty = small(4);
    let refused = empty.try_open(&Open { read_only: true, ..OPEN }).map(drop).unwrap_err();
    assert!(refused.to_string().contains("read_only=True"), "{refused}");
    assert!(!empty.root().join("kvtier-pool").exists());
}

#[test]
fn segments_of_another_pool_or_a_newer_kvtier_are_left_alone() {
    let (place, other) = (small(4), small(4));
    for place in [&place, &other] {
        let harness = open(place);
        store_all(&harness, 0..SLOTS);
    }
    let foreign = fs::read(&segments(other.root())[0]).unwrap();
    let pool = place.root().join("kvtier-pool");
    fs::write(pool.join("00000001.seg"), &foreign).unwrap();
    let mut newer = foreign.clone();
    newer[8] = 2;
    newer[4092..4096].fill(0);
    let crc = crc_fast::crc32_iscsi(&newer[..4096]);
    newer[4092..4096].copy_from_slice(&crc.to_le_bytes());
    fs::write(pool.join("00000002.seg"), &newer).unwrap();
    let harness = open(&place);
    store_all(&harness, 0..6 * SLOTS);
    assert!(fs::read(pool.join("00000001.seg")).unwrap() == foreign);
    assert!(fs::read(pool.join("00000002.seg")).unwrap() == newer);
    assert_eq!(segments(place.root()).len(), 4);
}

#[test]
fn a_copy_of_a_live_pool_opens_and_gives_no_wrong_block() {
    let (place, copy) = (small(6), small(6));
    let harness = open(&place);
    let (stop, began) = (std::sync::atomic::AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut n = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) && began.elapsed() < Duration::from_secs(30) {
                store(&harness, n).unwrap();
                n += 1;
            }
            n
        });
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(50));
            let _ = fs::remove_dir_all(copy.root().join("kvtier-pool"));
            copy_dir(place.root(), copy.root());
            let copied = open(&copy);
            let known: Vec<_> = (0..100_000).filter(|n| is_known(&copied, *n)).collect();
            assert!(!known.is_empty());
            for n in known {
                if let Err(error) = load(&copied, n) {
                    assert_eq!(error.kind(), ErrorKind::Missing, "block {n}: {error}");
                }
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(writer.join().unwrap() > 6 * SLOTS, "nothing was reclaimed meanwhile");
    });
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn many_threads_store_and_load_while_segments_are_reclaimed() {
    let place = small(6);
    let harness = Harness::with(place.open(&OPEN), &HostRows::new(16, OPEN.payload_bytes).unwrap().region());
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let harness = &harness;
            scope.spawn(move || {
                let (source, target) = (4 * worker, 4 * worker + 1);
                for i in 0..300 {
                    let n = worker * 1000 + i;
                    harness.lease(source).enter().unwrap().copy_from(&payload_of(n, OPEN.payload_bytes)).unwrap();
                    let stored = harness.store_lease(key(n), harness.lease(source));
                    assert!(stored.unwrap().bytes > 0);
                    let n = worker * 1000 + i.saturating_sub(i % 40);
                    harness.clear(target);
                    match harness.load_lease(key(n), harness.lease(target)) {
                        Ok(_) => assert!(harness.row(target) == payload_of(n, OPEN.payload_bytes), "block {n}"),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Missing, "{error}"),
                    }
                }
            });
        }
    });
    census(&place);
}

#[test]
fn a_small_pool_has_segments_that_large_blocks_fit_into() {
    let max_bytes = Some(128 << 20);
    let place = PackedPlace::new(move |config| config.bounds = Bounds { max_bytes, ..Bounds::default() });
    let open = Open { payload_bytes: 3 << 20, ..Open::default() };
    let harness = Harness::open(&place, &open, 2);
    for n in 0..2 {
        assert_eq!(harness.store(n).unwrap().bytes, 3 << 20);
        harness.clear(n);
        harness.load(n).unwrap();
        harness.assert_row_is_block(n);
    }
}
