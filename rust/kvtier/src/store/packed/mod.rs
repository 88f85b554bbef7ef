//! Blocks in slots of preallocated segment files: a pool, bounded by construction and shared by the processes of a host.
//!
//! ```text
//! <root>/<model>_<digest>/config.json      the identity, as in the layout `files`
//! <root>/kvtier-pool/super                 what holds for the whole pool
//! <root>/kvtier-pool/changes               which segments have changed lately; a hint
//! <root>/kvtier-pool/checked           for which boot all blocks were read and found good
//! <root>/kvtier-pool/<digest>.ns           a namespace's epoch: a reset counts it up
//! <root>/kvtier-pool/<number>.seg          a segment: header, table, slots
//! ```
//! A segment holds blocks of one namespace. Its owner, the process that has it locked, appends to it; everybody reads. A
//! block is one vectored write of row and trailer into a free slot, and is there for everybody once its entry stands in the
//! table. When there is no room left, a whole segment is *reclaimed*: its generation is counted up, which makes each block
//! of an earlier one invalid wherever it still lies, and it is filled anew. Nothing is ever overwritten within a
//! generation, so a reader that finds the generation unchanged after its read has read what it was looking for.
//!
//! | file | subject |
//! |---|---|
//! | `format` | superblock, header, table, record: bytes (pure) |
//! | `catalogue`, `spots` | which blocks lie where, in memory (pure) |
//! | `policy` | which segment is reclaimed next (pure) |
//! | `pins` | which blocks stay then, whatever the policy says (pure) |
//! | `site`, `registry` | finding and making a pool; one object for it per process |
//! | `segment`, `own` | a segment's file and lock; its slots and table, for its owner |
//! | `pool`, `keeper`, `acquire` | what the tiers of a process share, and the thread that keeps it going |
//! | `keep` | blocks that stay when their segment is taken |
//! | `read`, `write` | one block |
//! | `rebuild` | tables that can't be read, from the blocks |
//! | `scrub` | after a boot: what was stored before it |
//! | `check` | going over a whole pool |
//!
//! What the bytes mean is written down in `docs/format.md`.

mod acquire;
mod catalogue;
mod check;
pub mod format;
mod hints;
mod keep;
mod keeper;
mod own;
mod pins;
pub mod policy;
mod pool;
mod read;
mod rebuild;
mod registry;
mod scrub;
mod segment;
mod site;
mod spots;
mod write;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

pub use check::{Census, SegmentCensus, check};
pub use site::{Bounds, Holds};

use self::catalogue::NamespaceId;
use self::pool::Pool;
use self::scrub::Scrub;
use super::{BlockStore, Done, Known, Loaded, Location, OnDropped, Probed, Residency, StoreInfo, Stored, files};
use crate::buffer::{RowLease, ScratchPool};
use crate::config::{self, Durability};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{BlockFormat, Verify};
use crate::identity::{Namespace, NamespaceKind};
use crate::io::{Completion, IoEngine, Task, Transfer};
use crate::layout::BlockKey;

/// How a [`PackedStore`] is opened.
#[derive(Clone, Debug)]
pub struct PackedConfig {
    /// How blocks lie: framed.
    pub format: BlockFormat,
    /// Whether checksums are compared at load.
    pub verify: Verify,
    /// What is flushed to the device before a block is published.
    pub durability: Durability,
    /// Whether transfers bypass the page cache.
    pub direct_io: config::DirectIo,
    /// Whether stores are refused and nothing in the root is changed.
    pub read_only: bool,
    /// Permission bits of files, before umask.
    pub file_mode: u32,
    /// Permission bits of directories, before umask.
    pub dir_mode: u32,
    /// What the pool may take.
    pub bounds: Bounds,
    /// Whether those who listen are told what other processes drop, too. Takes 33 bytes of memory a block.
    pub tells_all: bool,
}

impl PackedConfig {
    /// The defaults, for blocks that lie like this.
    pub fn new(format: BlockFormat, bounds: Bounds) -> Self {
        Self {
            format,
            verify: Verify::Always,
            durability: Durability::None,
            direct_io: config::DirectIo::Auto,
            read_only: false,
            file_mode: 0o666,
            dir_mode: 0o777,
            bounds,
            tells_all: false,
        }
    }
}

/// Whether there is a pool below the directory at `root`.
pub fn holds_pool(root: &Path) -> bool {
    root.join(site::DIR).is_dir()
}

/// What lies below the directory at `root`, and whether a pool could: asked under the root's lock.
///
/// # Errors
/// `Config` when it is no directory.
pub fn look_at(root: &Path) -> Result<(Holds, bool)> {
    let locked = site::Locked::take(root)?;
    Ok((locked.holds()?, locked.fits()))
}

/// The store; see the [module](self).
pub struct PackedStore {
    packed: Arc<Packed>,
    closed: AtomicBool,
}

/// What the operations of a store share; they keep it until they have ended.
struct Packed {
    pool: Arc<registry::Shared>,
    namespace: NamespaceId,
    name: String,
    config: PackedConfig,
    io: Arc<dyn IoEngine>,
    /// Padding and trailer of a block.
    tails: Arc<ScratchPool>,
    /// Whole blocks, where a row can't be the place.
    blocks: Arc<ScratchPool>,
}

/// Bytes of whole-block scratch that wait for reuse, at most.
const KEPT_SCRATCH: usize = 32 << 20;

impl PackedStore {
    /// Whether `io_engine="auto"` takes a ring of `io_uring` where there is one: rows of 64 KiB are stored at twice the rate
    /// of threads, for less than half of the processor's time.
    pub const RING_GAINS: bool = true;

    /// Opens `namespace` in the pool below the directory at `root`, which is made if it isn't there; operations run on `io`.
    ///
    /// # Errors
    /// `Config` when the root is no directory, can't have a pool, or has another one than is asked for;
    /// `UnsupportedVersion` when a newer kvtier made the pool; `IdentityMismatch` when the namespace was written under
    /// another identity.
    pub fn open(root: &Path, namespace: &Namespace, config: PackedConfig, io: Arc<dyn IoEngine>) -> Result<Self> {
        let format = &config.format;
        if namespace.kind() != NamespaceKind::Kvtier || !format.is_framed() {
            let message = "layout=\"packed\" holds kvtier's own blocks only; compat=\"vllm\" needs layout=\"files\"";
            return Err(Error::new(ErrorKind::Config, message));
        }
        if u32::try_from(format.payload_bytes()).is_err() {
            return Err(Error::new(ErrorKind::Config, "layout=\"packed\": a block has less than 4 GiB"));
        }
        let (file_mode, dir_mode) = (pool::mode_of(config.file_mode), pool::mode_of(config.dir_mode));
        let pool = registry::open(root, &config)?;
        files::settle_config(root, namespace, config.read_only, file_mode, dir_mode)?;
        let (payload_bytes, slot_bytes) = (format.payload_bytes() as u64, format.block_bytes() as u64);
        let name = namespace.blocks_dir();
        let id = pool.open_namespace(name, *namespace.sha256(), payload_bytes, slot_bytes, config.tells_all);
        let id = id.map_err(|e| e.with("root", root.display()))?;
        if config.verify == Verify::Never
            && let Err(error) = Scrub::start(pool.pool())
        {
            pool.leave(id);
            return Err(error);
        }
        let depth = io.depth();
        let packed = Packed {
            namespace: id,
            name: name.to_owned(),
            tails: ScratchPool::new(format.tail_bytes(), 2 * depth),
            blocks: ScratchPool::new(format.block_bytes(), depth.min(KEPT_SCRATCH / format.block_bytes().max(1))),
            pool,
            io,
            config,
        };
        Ok(Self { packed: Arc::new(packed), closed: AtomicBool::new(false) })
    }
}

/// Between which memory and a slot the bytes of one operation move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// The row itself.
    Row,
    /// Aligned memory of kvtier's own, with a copy from or to the row.
    Scratch,
}

impl Packed {
    fn pool(&self) -> &Arc<Pool> {
        self.pool.pool()
    }

    /// The way for `row`, and whether it passes the page cache by. All file systems that pools are on are trusted with rows
    /// for as long as a transfer takes.
    fn route(&self, row: &RowLease) -> (Route, bool) {
        match self.pool().direct.alignment() {
            None => (Route::Row, false),
            Some(align) if row.is_aligned_to(align) => (Route::Row, true),
            Some(_) => (Route::Scratch, true),
        }
    }

    /// As many operations as a ring should get at once: enough to be worth a system call, few enough that the device has
    /// the first when the last is still being made.
    fn turn(&self) -> usize {
        const TURN_BYTES: usize = 512 << 10;
        if self.io.completes_later() { (TURN_BYTES / self.config.format.block_bytes()).max(1) } else { usize::MAX }
    }

    fn submit(&self, direct: bool, transfer: Transfer, done: Completion) {
        if direct {
            self.pool().direct.submit(&self.io, transfer, done);
        } else {
            self.io.submit(transfer, done);
        }
    }

    /// Adds to an error which block it is about.
    fn about(&self, key: &BlockKey, error: Error) -> Error {
        error.with("pool", self.pool().site.path.display()).with("namespace", &self.name).with("key", key)
    }

    fn find(&self, key: &BlockKey) -> Known {
        let state = self.pool().state.lock();
        let catalogue = &state.catalogue;
        match catalogue.find(self.namespace, catalogue.name_of(key)) {
            Some(spot) => Known::Here(spot.into()),
            None if catalogue.namespaces[self.namespace].is_complete() => Known::Absent,
            None => Known::Unknown,
        }
    }
}

impl Residency for Packed {
    fn find(&self, key: &BlockKey) -> Known {
        Packed::find(self, key)
    }

    fn blocks(&self) -> usize {
        self.pool().state.lock().catalogue.namespaces[self.namespace].blocks()
    }

    fn is_complete(&self) -> bool {
        self.pool().state.lock().catalogue.namespaces[self.namespace].is_complete()
    }

    fn touch(&self, keys: &[BlockKey]) {
        let now = site::now_s();
        let catalogue = &mut self.pool().state.lock().catalogue;
        for key in keys {
            if let Some(spot) = catalogue.find(self.namespace, catalogue.name_of(key)) {
                catalogue.warm(spot, now);
            }
        }
    }

    fn pin(&self, keys: &[BlockKey], until: Option<SystemTime>) -> Result<Vec<bool>> {
        let (pool, until) = (self.pool(), until.map_or(pins::NEVER, site::ns_of));
        let superblock = pool.superblock();
        let catalogue = &mut pool.state.lock().catalogue;
        let bytes = match superblock.max_bytes {
            0 => catalogue.segments.len() as u64 * superblock.segment_bytes,
            cap => cap,
        };
        let pinned = catalogue.pin(self.namespace, keys, until, site::now_ns(), bytes / 2);
        pinned.map_err(|e| e.with("root", pool.site.path.display()))
    }

    fn unpin(&self, keys: &[BlockKey]) {
        self.pool().state.lock().catalogue.unpin(self.namespace, keys);
    }
}

impl BlockStore for PackedStore {
    fn info(&self) -> StoreInfo {
        let packed = &self.packed;
        StoreInfo {
            kind: "packed",
            place: packed.pool().site.path.join(&packed.name).display().to_string(),
            payload_bytes: packed.config.format.payload_bytes(),
            concurrency: packed.io.depth(),
            threads: packed.io.brief_threads(),
            turn: packed.turn(),
            io_engine: packed.io.name(),
            read_only: packed.config.read_only,
            exclusive: false,
            listed: false,
        }
    }

    fn spawn(&self, task: Task) {
        self.packed.io.spawn_brief(task);
    }

    fn store(&self, key: BlockKey, row: RowLease, done: Done<Stored>) {
        Packed::store(&self.packed, key, row, done);
    }

    fn load(&self, key: BlockKey, row: RowLease, done: Done<Loaded>) {
        Packed::load(&self.packed, key, row, done);
    }

    fn probe(&self, keys: Vec<BlockKey>, done: Done<Vec<Probed>>) {
        let packed = &self.packed;
        let answers = keys.iter().map(|key| match packed.find(key) {
            Known::Here(location) => Some(Probed::Present(location)),
            Known::Absent => Some(Probed::Absent),
            Known::Unknown => None,
        });
        if let Some(answers) = answers.collect() {
            return done.give(Ok(answers));
        }
        // Answered when what is damaged is rebuilt.
        let mut state = packed.pool().state.lock();
        state.stations[packed.namespace].probes.push((keys, done));
        state.alarm = true;
        packed.pool().wake.notify_all();
    }

    fn residency(&self) -> Option<Arc<dyn Residency>> {
        Some(Arc::clone(&self.packed) as Arc<dyn Residency>)
    }

    fn on_dropped(&self, listener: OnDropped) {
        let packed = &self.packed;
        packed.pool().state.lock().stations[packed.namespace].listeners.push(Arc::new(listener));
    }

    fn leases_ended(&self) {
        self.packed.pool().prune_waiters();
    }

    fn scan(&self, found: &mut dyn FnMut(BlockKey, Location) -> bool) -> Result<()> {
        self.packed.pool().scan(self.packed.namespace, found)
    }

    fn reset(&self) -> Result<()> {
        if self.packed.config.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the tier was opened read-only"));
        }
        self.packed.pool().reset(self.packed.namespace)
    }

    fn close(&self, timeout: Duration) -> usize {
        let stuck = self.packed.io.stop(timeout);
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.packed.pool.leave(self.packed.namespace);
        }
        stuck
    }

    fn abandon_in_child(&self) {
        self.packed.pool().abandon_in_child();
    }
}

impl Drop for PackedStore {
    fn drop(&mut self) {
        if self.packed.pool().home.is_surely_here() && !self.closed.swap(true, Ordering::AcqRel) {
            self.packed.pool.leave(self.packed.namespace);
        }
    }
}

impl fmt::Debug for PackedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedStore({} in {:?})", self.packed.name, self.packed.pool())
    }
}
