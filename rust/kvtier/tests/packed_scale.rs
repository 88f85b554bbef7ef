//! Pools with many blocks: opening, looking up, rebuilding. The segments are made by the format's own code, with holes for
//! blocks where nobody reads them, so that a million cost little.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]
#![allow(clippy::print_stderr, reason = "says how long it took; nothing is judged by it")]

mod places;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use kvtier::frame::{ChecksumAlgorithm, TRAILER_BYTES, Trailer};
use kvtier::layout::BlockKey;
use kvtier::store::packed::format::{
    ENTRIES_PER_PAGE, Entry, Geometry, Header, KeyName, NamespaceRecord, SlotState, Superblock, TablePage,
};
use kvtier::store::packed::{Bounds, PackedConfig, PackedStore};
use kvtier::store::url::format_of;
use kvtier::store::{BlockStore, Known};
use places::{Open, key};

const SEGMENT_BYTES: u64 = 64 << 20;

/// How many blocks: `make bench-scale` says a million.
fn blocks() -> usize {
    std::env::var("KVTIER_TEST_BLOCKS").map_or(50_000, |text| text.parse().unwrap())
}

fn open(root: &Path) -> PackedStore {
    let namespace = Open::default().namespace();
    let max_bytes = Some(Superblock::cap_for(2000, SEGMENT_BYTES));
    let bounds = Bounds { max_bytes, segment_bytes: Some(SEGMENT_BYTES), min_free_bytes: None };
    PackedStore::open(root, &namespace, PackedConfig::new(format_of(&namespace), bounds), places::io(4)).unwrap()
}

/// Fills a pool with entries, and with blocks where they are wanted.
fn fill(root: &Path, blocks: usize, whole: bool) {
    open(root).close(Duration::from_secs(10));
    let pool = root.join("kvtier-pool");
    let page = |path: &Path| -> [u8; 4096] { places::pool::page_at(&File::open(path).unwrap(), 0) };
    let superblock = Superblock::decode(&page(&pool.join("super"))).unwrap();
    let records = fs::read_dir(&pool).unwrap().map(|entry| entry.unwrap().path());
    let record = records.filter(|path| path.extension().is_some_and(|e| e == "ns")).map(|path| page(&path)).next();
    let record = NamespaceRecord::decode(&record.unwrap()).unwrap();
    let namespace = Open::default().namespace();
    let format = format_of(&namespace);
    let geometry = Geometry::of(SEGMENT_BYTES, format.block_bytes() as u64).unwrap();
    let mut next = 0..blocks;
    for segment in 0.. {
        if next.is_empty() {
            break;
        }
        let header = Header {
            pool: superblock.pool,
            segment,
            slots: geometry.slots,
            slot_bytes: geometry.slot_bytes,
            payload_bytes: format.payload_bytes() as u64,
            generation: 1000 + u64::from(segment),
            epoch: record.epoch,
            born_unix_ns: 1_700_000_000_000_000_000,
            owner: [7; 16],
            identity: record.identity,
            namespace: record.name.clone(),
        };
        let file = File::create(pool.join(format!("{segment:08x}.seg"))).unwrap();
        file.set_len(SEGMENT_BYTES).unwrap();
        file.write_all_at(&header.encode(), 0).unwrap();
        for number in 0..geometry.table_pages() {
            let mut table = TablePage::empty(superblock.pool, segment, number as u32, header.generation);
            table.sequence = 1;
            for (slot, entry) in geometry.slots_of(number).zip(&mut table.entries) {
                let Some(n) = next.next() else { break };
                *entry = Some(entry_of(&header, &key(n)));
                if whole {
                    let mut block = vec![0x11; geometry.slot_bytes as usize];
                    *block.last_chunk_mut().unwrap() = trailer_of(&header, key(n));
                    file.write_all_at(&block, geometry.slot_offset(slot)).unwrap();
                }
            }
            file.write_all_at(&table.encode(), geometry.page_offset(number)).unwrap();
        }
        if whole {
            file.sync_data().unwrap();
        }
    }
}

fn entry_of(header: &Header, key: &BlockKey) -> Entry {
    Entry {
        state: SlotState::Block,
        name: KeyName::of(key),
        payload_bytes: header.payload_bytes as u32,
        generation: header.generation,
        created_unix_ns: 1,
    }
}

fn trailer_of(header: &Header, key: BlockKey) -> [u8; TRAILER_BYTES] {
    let mut page = [0; TRAILER_BYTES];
    Trailer {
        algorithm: ChecksumAlgorithm::Xxh3,
        payload_bytes: header.payload_bytes,
        payload_checksum: 0,
        key,
        identity: header.identity,
        created_unix_ns: 1,
        placement: header.generation,
        writer: [0; 16],
    }
    .encode(&mut page);
    page
}

fn test_root() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn is_here(store: &PackedStore, n: usize) -> bool {
    matches!(store.residency().unwrap().find(&key(n)), Known::Here(_))
}

#[test]
fn all_of_many_blocks_are_known_when_the_pool_is_open() {
    let (root, blocks) = (test_root(), blocks());
    fill(root.path(), blocks, false);
    let began = Instant::now();
    let store = open(root.path());
    assert!(is_here(&store, blocks - 1));
    let opened = began.elapsed();
    let residency = store.residency().unwrap();
    let keys: Vec<_> = (0..blocks).map(key).collect();
    let began = Instant::now();
    assert!(keys.iter().all(|key| matches!(residency.find(key), Known::Here(_))));
    let each = began.elapsed() / blocks as u32;
    eprintln!("{blocks} blocks: open to the first answer {opened:?}, then {each:?} each");
    assert_eq!(residency.blocks(), blocks);
    assert_eq!(residency.find(&key(blocks)), Known::Absent);
    store.close(Duration::from_secs(10));
}

#[test]
fn all_tables_of_many_blocks_are_rebuilt() {
    // Each block takes its room on the disk.
    let (root, blocks) = (test_root(), blocks() / 5);
    fill(root.path(), blocks, true);
    destroy_tables(root.path());
    let began = Instant::now();
    let store = open(root.path());
    let residency = store.residency().unwrap();
    assert_ne!(residency.find(&key(0)), Known::Absent, "nothing that may be there is called absent");
    while !residency.is_complete() {
        assert!(began.elapsed() < Duration::from_secs(300), "the tables are not rebuilt");
        std::thread::sleep(Duration::from_millis(5));
    }
    eprintln!("{blocks} blocks: all tables rebuilt after {:?}", began.elapsed());
    assert!((0..blocks).all(|n| is_here(&store, n)));
    assert_eq!(residency.find(&key(blocks)), Known::Absent);
    // What was reset does not come back, whatever is rebuilt.
    store.reset().unwrap();
    store.close(Duration::from_secs(10));
    destroy_tables(root.path());
    let store = open(root.path());
    let residency = store.residency().unwrap();
    assert!(residency.is_complete(), "of another epoch, nothing is there to rebuild");
    assert_eq!((0..blocks).filter(|n| is_here(&store, *n)).count(), 0);
    store.close(Duration::from_secs(10));
}

#[test]
fn closing_a_pool_ends_the_rebuilding_of_its_tables() {
    let (root, blocks) = (test_root(), blocks() / 10);
    fill(root.path(), blocks, true);
    // The machine may be busy with everything else until all is rebuilt, but not each time.
    let is_ended = (0..20).any(|_| {
        destroy_tables(root.path());
        let store = open(root.path());
        while !is_rebuilding() && !store.residency().unwrap().is_complete() {
            std::thread::yield_now();
        }
        store.close(Duration::from_secs(10));
        places::pool::segments(root.path()).iter().any(|path| {
            let file = File::open(path).unwrap();
            (0..table_pages(&file)).any(|number| places::pool::page_at(&file, 4096 * (1 + number)) == DESTROYED)
        })
    });
    assert!(is_ended, "whoever closes the pool waits until all tables are rebuilt");
    let store = open(root.path());
    let residency = store.residency().unwrap();
    while !residency.is_complete() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!((0..blocks).all(|n| is_here(&store, n)), "what was left half done is done");
    store.close(Duration::from_secs(10));
}

/// Whether this process has a thread that rebuilds tables.
fn is_rebuilding() -> bool {
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
    let mut names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.any(|name| name.trim_end() == "kvtier-rebuild")
}

const DESTROYED: [u8; 4096] = [0x5A; 4096];

fn destroy_tables(root: &Path) {
    for path in places::pool::segments(root) {
        let file = File::options().read(true).write(true).open(path).unwrap();
        for number in 0..table_pages(&file) {
            file.write_all_at(&DESTROYED, 4096 * (1 + number)).unwrap();
        }
    }
}

fn table_pages(file: &File) -> u64 {
    let header = Header::decode(&places::pool::page_at(file, 0)).unwrap();
    u64::from(header.slots).div_ceil(ENTRIES_PER_PAGE as u64)
}

/// Does nothing in a run of the tests; makes the pool that `benches/pool_scale.py` measures.
#[test]
fn a_pool_for_another_program() {
    if let Some(root) = std::env::var_os("KVTIER_TEST_POOL") {
        fill(Path::new(&root), blocks(), false);
    }
}
