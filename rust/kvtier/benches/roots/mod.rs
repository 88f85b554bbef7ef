//! Stores on fresh roots, of files or packed, with rows to store and to fill, for benchmarks.

#![allow(clippy::unwrap_used, reason = "a benchmark that can't go on stops")]
#![allow(dead_code, unreachable_pub, reason = "shared by several benchmarks, each of which uses a part")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use kvtier::buffer::{HostRows, Region, RowLease};
use kvtier::config::IoEngineChoice;
use kvtier::error::Result;
use kvtier::identity::{Facts, Identity, Namespace, NamespaceKind};
use kvtier::io::{ThreadEngine, engine_for};
use kvtier::layout::BlockKey;
use kvtier::store::files::{FilesConfig, FilesStore};
use kvtier::store::packed::{Bounds, PackedConfig, PackedStore};
use kvtier::store::url::format_of;
use kvtier::store::{BlockStore, Done, Probed};

/// Rows that blocks are stored from and loaded into, over and over.
pub const ROWS: usize = 64;

/// Where benchmarks put their roots. None is deleted before the last has run: ext4 makes every creation after a mass
/// deletion slow for half a minute.
pub struct Roots {
    dir: tempfile::TempDir,
    made: usize,
}

impl Roots {
    /// Below `KVTIER_BENCH_DIR`, or where cargo builds.
    ///
    /// # Panics
    /// With less than `bytes` of free space there: a benchmark must not fill a disk.
    pub fn new(bytes: u64) -> Self {
        let place =
            std::env::var_os("KVTIER_BENCH_DIR").map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
        let space = rustix::fs::statvfs(&place).unwrap();
        let free = space.f_bavail * space.f_frsize;
        assert!(
            free > bytes,
            "{} has {free} bytes left, and {bytes} are needed; set KVTIER_BENCH_DIR",
            place.display()
        );
        Self { dir: tempfile::Builder::new().prefix("kvtier-bench-").tempdir_in(place).unwrap(), made: 0 }
    }

    /// A store of its own on a fresh root.
    pub fn open(&mut self, kind: NamespaceKind, row_bytes: usize, threads: usize) -> Bench {
        let (root, namespace) = self.place(kind, row_bytes);
        let io = ThreadEngine::start("bench-io", threads).unwrap();
        let store = FilesStore::open(&root, &namespace, FilesConfig::new(format_of(&namespace)), io).unwrap();
        Bench::over(Arc::new(store), row_bytes)
    }

    /// A pool of its own on a fresh root.
    pub fn open_packed(&mut self, row_bytes: usize, engine: IoEngineChoice, threads: usize) -> Bench {
        let (root, namespace) = self.place(NamespaceKind::Kvtier, row_bytes);
        let bounds = Bounds { max_bytes: Some(1 << 30), segment_bytes: Some(64 << 20), ..Bounds::default() };
        let io = engine_for(engine, true, threads).unwrap();
        let store = PackedStore::open(&root, &namespace, PackedConfig::new(format_of(&namespace), bounds), io).unwrap();
        Bench::over(Arc::new(store), row_bytes)
    }

    fn place(&mut self, kind: NamespaceKind, row_bytes: usize) -> (PathBuf, Namespace) {
        self.made += 1;
        let root = self.dir.path().join(self.made.to_string());
        std::fs::create_dir(&root).unwrap();
        let mut facts = Facts::new("bench/model", 16, "bfloat16");
        facts.row_bytes = Some(row_bytes as u64);
        (root, Namespace::new(&Identity::new(facts).unwrap(), kind).unwrap())
    }
}

/// A store and how many blocks are in it: block `n` has key `n`.
pub struct Bench {
    store: Arc<dyn BlockStore>,
    region: Arc<Region>,
    stored: usize,
}

impl Bench {
    fn over(store: Arc<dyn BlockStore>, row_bytes: usize) -> Self {
        let region = HostRows::new(ROWS, row_bytes).unwrap().region();
        for row in 0..ROWS {
            let payload: Vec<u8> = (0..row_bytes).map(|i| ((i + row).wrapping_mul(0x9E37_79B9) >> 11) as u8).collect();
            RowLease::unbounded(&region, row).unwrap().enter().unwrap().copy_from(&payload).unwrap();
        }
        Self { store, region, stored: 0 }
    }

    /// Stores `count` new blocks, as many at a time as there are rows.
    pub fn store(&mut self, count: usize) -> Duration {
        let first = self.stored;
        self.stored += count;
        self.each(first..first + count, <dyn BlockStore>::store)
    }

    /// Loads `count` blocks, from the first on, and again from there.
    pub fn load(&self, count: usize) -> Duration {
        self.load_last(self.stored, count)
    }

    /// The same among the `last` that were stored, which a pool still has.
    pub fn load_last(&self, last: usize, count: usize) -> Duration {
        let first = self.stored - last;
        self.each((0..count).map(|n| first + n % last), <dyn BlockStore>::load)
    }

    /// Looks for `count` blocks that are there, or for as many that are not, in one batch.
    pub fn probe(&self, count: usize, there: bool) -> Duration {
        let first = if there { 0 } else { self.stored };
        let keys = (first..first + count).map(key).collect();
        let (send, receive) = channel();
        let done = Done::new(move |probed: Result<Vec<Probed>>| send.send(probed).unwrap());
        let began = Instant::now();
        self.store.probe(keys, done);
        let probed = receive.recv().unwrap().unwrap();
        let took = began.elapsed();
        assert!(probed.iter().all(|p| matches!(p, Probed::Present(_)) == there));
        took
    }

    /// Each row has one operation at a time.
    fn each<T: Send + 'static>(
        &self,
        blocks: impl IntoIterator<Item = usize>,
        operation: fn(&dyn BlockStore, BlockKey, RowLease, Done<T>),
    ) -> Duration {
        let (give_back, free) = channel();
        (0..ROWS).for_each(|row| give_back.send(Ok(row)).unwrap());
        let began = Instant::now();
        for n in blocks {
            let row: usize = free.recv().unwrap().unwrap();
            let (store, give_back) = (Arc::clone(&self.store), give_back.clone());
            let lease = RowLease::unbounded(&self.region, row).unwrap();
            let done = Done::new(move |answer: Result<T>| give_back.send(answer.map(|_| row)).unwrap());
            self.store.spawn(Box::new(move || operation(&*store, key(n), lease, done)));
        }
        drop(give_back);
        for answer in free {
            answer.unwrap();
        }
        began.elapsed()
    }
}

fn key(n: usize) -> BlockKey {
    let hash = (1..=4_u64).flat_map(|i| (n as u64 + i).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    BlockKey::from_parts(&hash.collect::<Vec<_>>(), 0).unwrap()
}

/// CPU time of all threads of this process, in seconds.
pub fn cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap(), u32::try_from(now.tv_nsec).unwrap()).as_secs_f64()
}
