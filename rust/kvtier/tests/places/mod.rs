//! Where the suites run, and what they do there by hand.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]
#![allow(dead_code, unreachable_pub, unused_imports, reason = "shared by several tests, each of which uses a part")]

pub mod bucket;
pub mod pool;
pub mod stub;
pub mod weed;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use kvtier::buffer::{HostRows, Region, RowLease};
use kvtier::config::IoEngineChoice;
use kvtier::error::Result;
use kvtier::frame::Verify;
use kvtier::identity::{Facts, Identity, Namespace, NamespaceKind};
use kvtier::io::{IoEngine, ThreadEngine, engine_for};
use kvtier::layout::BlockKey;
use kvtier::store::faulty::{Faults, FaultyStore};
use kvtier::store::files::{FilesConfig, FilesStore};
use kvtier::store::memory::{MemoryConfig, MemoryStore};
use kvtier::store::url::format_of;
use kvtier::store::{BlockStore, Done, Known, Loaded, Probed, StoreInfo, Stored};

/// How a store is opened.
#[derive(Clone, Copy)]
pub struct Open {
    /// Stands for the identity: another letter, another one.
    pub letter: char,
    pub kind: NamespaceKind,
    pub payload_bytes: usize,
    pub verify: Verify,
    pub read_only: bool,
}

impl Default for Open {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Open {
    pub const DEFAULT: Self = Self {
        letter: 'a',
        kind: NamespaceKind::Kvtier,
        payload_bytes: 8192,
        verify: Verify::Always,
        read_only: false,
    };

    pub fn namespace(&self) -> Namespace {
        let mut facts = Facts::new(format!("model-{}", self.letter), 16, "bfloat16");
        facts.row_bytes = Some(self.payload_bytes as u64);
        Namespace::new(&Identity::new(facts).unwrap(), self.kind).unwrap()
    }
}

/// The IO engine of a test's store: threads, or what `KVTIER_TEST_IO_ENGINE` says (`make test` says `uring` once).
pub fn io(threads: usize) -> Arc<dyn IoEngine> {
    match std::env::var("KVTIER_TEST_IO_ENGINE").as_deref() {
        Ok("uring") => ring(threads),
        _ => ThreadEngine::start("test-io", threads).unwrap(),
    }
}

/// A ring; threads where it can't be had.
pub fn ring(threads: usize) -> Arc<dyn IoEngine> {
    engine_for(IoEngineChoice::Uring, true, threads).unwrap()
}

/// Somewhere that stores can be opened at, again and again.
pub trait Place {
    fn open(&self, open: &Open) -> Arc<dyn BlockStore>;
    /// The stored bytes of a block.
    fn read(&self, open: &Open, key: &BlockKey) -> Option<Vec<u8>>;
    /// Replaces the stored bytes behind the store's back; `None` removes them.
    fn write(&self, open: &Open, key: &BlockKey, bytes: Option<&[u8]>);
    /// Which file a block is, where it is one.
    fn inode(&self, open: &Open, key: &BlockKey) -> Option<u64>;
    /// Leaves things among the blocks that are none.
    fn litter(&self, open: &Open);
    /// How many unfinished files there are.
    fn unfinished(&self, open: &Open) -> usize;
    /// Whether blocks lie in slots: framed ones only, which can't have another length, and can't be removed by hand.
    fn in_slots(&self) -> bool {
        false
    }
}

pub fn key(n: usize) -> BlockKey {
    let hash: Vec<u8> =
        (1..=4_u64).flat_map(|i| (n as u64 + i).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()).collect();
    BlockKey::from_parts(&hash, 3).unwrap()
}

/// The payload of block `n`.
pub fn payload_of(n: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + i / 251 + n * 7 + 1) as u8).collect()
}

/// A directory of a test's own, which goes with it.
pub fn test_root() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Waits for something that comes soon.
pub fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while !reached() {
        assert!(Instant::now() < give_up, "waited for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A store at a place, and rows whose number is that of their block.
pub struct Harness {
    store: Arc<dyn BlockStore>,
    region: Arc<Region>,
}

impl Harness {
    pub fn open(place: &dyn Place, open: &Open, rows: usize) -> Self {
        Self::over(place, open, &HostRows::new(rows, open.payload_bytes).unwrap().region())
    }

    pub fn over(place: &dyn Place, open: &Open, region: &Arc<Region>) -> Self {
        Self::with(place.open(open), region)
    }

    /// Rows that are filled with their blocks.
    pub fn with(store: Arc<dyn BlockStore>, region: &Arc<Region>) -> Self {
        let harness = Self { store, region: Arc::clone(region) };
        (0..region.num_rows()).for_each(|n| harness.fill(n));
        harness
    }

    pub fn raw_store(&self) -> &Arc<dyn BlockStore> {
        &self.store
    }

    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub fn info(&self) -> StoreInfo {
        self.store.info()
    }

    pub fn lease(&self, row: usize) -> RowLease {
        RowLease::unbounded(&self.region, row).unwrap()
    }

    pub fn fill(&self, row: usize) {
        self.set(row, &payload_of(row, self.region.row_bytes()));
    }

    pub fn clear(&self, row: usize) {
        self.set(row, &vec![0; self.region.row_bytes()]);
    }

    fn set(&self, row: usize, payload: &[u8]) {
        self.lease(row).enter().unwrap().copy_from(payload).unwrap();
    }

    pub fn row(&self, row: usize) -> Vec<u8> {
        let mut payload = vec![0; self.region.row_bytes()];
        self.lease(row).enter().unwrap().copy_to(&mut payload).unwrap();
        payload
    }

    pub fn assert_row_is_block(&self, n: usize) {
        assert!(self.row(n) == payload_of(n, self.region.row_bytes()), "row {n} is not block {n}");
    }

    pub fn store(&self, n: usize) -> Result<Stored> {
        self.store_lease(key(n), self.lease(n))
    }

    /// Stores block `n`, whatever its number, by way of a row.
    pub fn store_by(&self, row: usize, n: usize) -> Result<Stored> {
        self.set(row, &payload_of(n, self.region.row_bytes()));
        self.store_lease(key(n), self.lease(row))
    }

    /// Loads block `n`, whatever its number, by way of a row; says whether what came is right.
    pub fn load_by(&self, row: usize, n: usize) -> Result<bool> {
        self.clear(row);
        self.load_lease(key(n), self.lease(row))?;
        Ok(self.row(row) == payload_of(n, self.region.row_bytes()))
    }

    /// Whether the store knows by itself that block `n` is there.
    pub fn is_known(&self, n: usize) -> bool {
        matches!(self.store.residency().unwrap().find(&key(n)), Known::Here(_))
    }

    pub fn store_lease(&self, key: BlockKey, lease: RowLease) -> Result<Stored> {
        let (send, receive) = channel();
        self.spawn_store(key, lease, move |stored| send.send(stored).unwrap());
        receive.recv().unwrap()
    }

    pub fn spawn_store(&self, key: BlockKey, lease: RowLease, then: impl FnOnce(Result<Stored>) + Send + 'static) {
        let (store, done) = (Arc::clone(&self.store), Done::new(then));
        self.store.spawn(Box::new(move || store.store(key, lease, done)));
    }

    pub fn load(&self, n: usize) -> Result<Loaded> {
        self.load_lease(key(n), self.lease(n))
    }

    pub fn load_lease(&self, key: BlockKey, lease: RowLease) -> Result<Loaded> {
        let (send, receive) = channel();
        let (store, done) = (Arc::clone(&self.store), Done::new(move |loaded| send.send(loaded).unwrap()));
        self.store.spawn(Box::new(move || store.load(key, lease, done)));
        receive.recv().unwrap()
    }

    pub fn probe(&self, n: usize) -> Probed {
        let (send, receive) = channel();
        let (store, done) = (Arc::clone(&self.store), Done::new(move |probed| send.send(probed).unwrap()));
        self.store.spawn(Box::new(move || store.probe(vec![key(n)], done)));
        receive.recv().unwrap().unwrap().remove(0)
    }

    pub fn scan(&self) -> Vec<BlockKey> {
        let mut keys = Vec::new();
        self.store
            .scan(&mut |key, _| {
                keys.push(key);
                true
            })
            .unwrap();
        keys
    }

    pub fn reset(&self) -> Result<()> {
        self.store.reset()
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.store.close(Duration::from_secs(20));
    }
}

/// Named memory.
pub struct MemoryPlace {
    name: String,
    faulty: bool,
}

impl MemoryPlace {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("conformance-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        Self { name, faulty: false }
    }

    /// The same behind a store that could misbehave, and doesn't.
    pub fn faulty() -> Self {
        Self { faulty: true, ..Self::new() }
    }

    fn open_plain(&self, open: &Open) -> MemoryStore {
        let namespace = open.namespace();
        let config = MemoryConfig {
            name: Some(self.name.clone()),
            namespace: namespace.blocks_dir().to_owned(),
            format: format_of(&namespace),
            verify: open.verify,
            read_only: open.read_only,
        };
        MemoryStore::open(config, ThreadEngine::start("test-io", 4).unwrap())
    }
}

impl Place for MemoryPlace {
    fn open(&self, open: &Open) -> Arc<dyn BlockStore> {
        let store: Arc<dyn BlockStore> = Arc::new(self.open_plain(open));
        if self.faulty { Arc::new(FaultyStore::new(store, Arc::new(Faults::default()))) } else { store }
    }

    fn read(&self, open: &Open, key: &BlockKey) -> Option<Vec<u8>> {
        self.open_plain(open).stored_bytes(*key).map(|bytes| bytes.to_vec())
    }

    fn write(&self, open: &Open, key: &BlockKey, bytes: Option<&[u8]>) {
        self.open_plain(open).replace_bytes(*key, bytes.map(<[u8]>::to_vec));
    }

    fn inode(&self, _: &Open, _: &BlockKey) -> Option<u64> {
        None
    }

    fn litter(&self, _: &Open) {}

    fn unfinished(&self, _: &Open) -> usize {
        0
    }
}

type Configure = Box<dyn Fn(&mut FilesConfig)>;

/// A directory of its own, which goes with it.
pub struct FilesPlace {
    root: tempfile::TempDir,
    configure: Configure,
    io: fn(usize) -> Arc<dyn IoEngine>,
}

impl FilesPlace {
    pub fn new(configure: impl Fn(&mut FilesConfig) + 'static) -> Self {
        let root = test_root();
        Self { root, configure: Box::new(configure), io }
    }

    /// Whose transfers go through a ring of `io_uring`.
    pub fn on_a_ring(configure: impl Fn(&mut FilesConfig) + 'static) -> Self {
        Self { io: ring, ..Self::new(configure) }
    }

    /// On a file system in memory, where there is one.
    pub fn on_tmpfs() -> Self {
        let place = Self::new(|_| {});
        match tempfile::tempdir_in("/dev/shm") {
            Ok(root) => Self { root, ..place },
            Err(_) => place,
        }
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn blocks_dir(&self, open: &Open) -> PathBuf {
        self.root().join(open.namespace().blocks_dir())
    }

    pub fn path(&self, open: &Open, key: &BlockKey) -> PathBuf {
        self.blocks_dir(open).join(key.path())
    }
}

impl Place for FilesPlace {
    fn open(&self, open: &Open) -> Arc<dyn BlockStore> {
        let namespace = open.namespace();
        let mut config = FilesConfig::new(format_of(&namespace));
        config.verify = open.verify;
        config.read_only = open.read_only;
        (self.configure)(&mut config);
        Arc::new(FilesStore::open(self.root(), &namespace, config, (self.io)(4)).unwrap())
    }

    fn read(&self, open: &Open, key: &BlockKey) -> Option<Vec<u8>> {
        fs::read(self.path(open, key)).ok()
    }

    fn write(&self, open: &Open, key: &BlockKey, bytes: Option<&[u8]>) {
        let path = self.path(open, key);
        let _ = fs::remove_file(&path);
        if let Some(bytes) = bytes {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }

    fn inode(&self, open: &Open, key: &BlockKey) -> Option<u64> {
        Some(fs::metadata(self.path(open, key)).unwrap().ino())
    }

    fn litter(&self, open: &Open) {
        let block = self.path(open, &key(0));
        let leaf = block.parent().unwrap();
        let name = block.file_name().unwrap().to_str().unwrap();
        for stray in ["README", ".hidden.bin", "00.bin", &name.to_uppercase(), &format!("{name}.tmp"), "ab\u{301}.bin"]
        {
            fs::write(leaf.join(stray), "x").unwrap();
        }
        fs::create_dir(leaf.join(format!("{}.bin", "ff".repeat(32)))).unwrap();
        // A block's file in a directory that is not its own.
        let elsewhere = self.blocks_dir(open).join("zzz/zz_g3");
        fs::create_dir_all(&elsewhere).unwrap();
        fs::write(elsewhere.join(name), "x").unwrap();
        for hidden in [".tmp", ".quarantine"] {
            let dir = self.blocks_dir(open).join(hidden).join("ab_g0");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(name), "x").unwrap();
        }
        fs::write(self.blocks_dir(open).join("abc"), "a file where a directory would be").unwrap();
    }

    fn unfinished(&self, open: &Open) -> usize {
        fs::read_dir(self.blocks_dir(open).join(".tmp")).map_or(0, Iterator::count)
    }
}
