//! Files stores on fresh roots, with rows to store and to fill, for benchmarks.

#![allow(clippy::unwrap_used, reason = "a benchmark that can't go on stops")]
#![allow(dead_code, unreachable_pub, reason = "shared by several benchmarks, each of which uses a part")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use kvtier::buffer::{HostRows, Region, RowLease};
use kvtier::error::Result;
use kvtier::identity::{Facts, Identity, Namespace, NamespaceKind};
use kvtier::io::ThreadEngine;
use kvtier::layout::BlockKey;
use kvtier::store::files::{FilesConfig, FilesStore};
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
        self.made += 1;
        let root = self.dir.path().join(self.made.to_string());
        std::fs::create_dir(&root).unwrap();
        let mut facts = Facts::new("bench/model", 16, "bfloat16");
        facts.row_bytes = Some(row_bytes as u64);
        let namespace = Namespace::new(&Identity::new(facts).unwrap(), kind).unwrap();
        let io = ThreadEngine::start("bench-io", threads).unwrap();
        let store = FilesStore::open(&root, &namespace, FilesConfig::new(format_of(&namespace)), io).unwrap();
        let region = HostRows::new(ROWS, row_bytes).unwrap().region();
        for row in 0..ROWS {
            let payload: Vec<u8> = (0..row_bytes).map(|i| ((i + row).wrapping_mul(0x9E37_79B9) >> 11) as u8).collect();
            RowLease::unbounded(&region, row).unwrap().enter().unwrap().copy_from(&payload).unwrap();
        }
        Bench { store: Arc::new(store), region, stored: 0 }
    }
}

/// A store and how many blocks are in it: block `n` has key `n`.
pub struct Bench {
    store: Arc<FilesStore>,
    region: Arc<Region>,
    stored: usize,
}

impl Bench {
    /// Stores `count` new blocks, as many at a time as there are threads.
    pub fn store(&mut self, count: usize) -> Duration {
        let first = self.stored;
        self.stored += count;
        self.each(first..first + count, BlockStore::store)
    }

    /// Loads `count` blocks, from the first on, and again from there.
    pub fn load(&self, count: usize) -> Duration {
        let all = self.stored;
        self.each((0..count).map(|n| n % all), BlockStore::load)
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

    fn each<T: Send + 'static>(
        &self,
        blocks: impl IntoIterator<Item = usize>,
        operation: fn(&FilesStore, BlockKey, RowLease, Done<T>),
    ) -> Duration {
        let (send, receive) = channel();
        let began = Instant::now();
        for n in blocks {
            let (store, send) = (Arc::clone(&self.store), send.clone());
            let row = RowLease::unbounded(&self.region, n % ROWS).unwrap();
            let done = Done::new(move |answer: Result<T>| send.send(answer.map(drop)).unwrap());
            self.store.spawn(Box::new(move || operation(&store, key(n), row, done)));
        }
        drop(send);
        for answer in receive {
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
