//! Where blocks live: one trait, and a file for each kind of place.
//!
//! A store keeps blocks under keys. It knows nothing of jobs, deadlines or requests: it gets one operation with a row
//! lease, and answers by a [`Done`] that cannot be lost. What it knows about a place of its own (a file, a slot, an
//! object) it hands out as an opaque [`Location`].

pub mod faulty;
pub mod files;
pub mod memory;
pub mod object;
pub mod packed;
pub mod url;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::buffer::RowLease;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::BlockFormat;
use crate::io::Task;
use crate::layout::BlockKey;

/// Where a block lies, in terms that only its store understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location(pub u64);

/// A block that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Where it lies.
    pub location: Location,
    /// Payload bytes that moved; 0 when the block was there already.
    pub bytes: u64,
}

/// A block that was loaded and, where the format can, verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Payload bytes that moved.
    pub bytes: u64,
}

/// What a probe found for one key.
#[derive(Debug)]
pub enum Probed {
    /// A block of the right length is there.
    Present(Location),
    /// Nothing is there, or something that is not a block of this tier.
    Absent,
    /// The storage did not say.
    Unknown(Error),
}

/// What is known about a block without asking storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It is there.
    Here(Location),
    /// It is not.
    Absent,
    /// What would tell is damaged and being rebuilt; a probe is answered when that is done.
    Unknown,
}

/// The index of a store that knows all of its blocks at any time. Nothing here does IO or waits for any.
pub trait Residency: Send + Sync {
    /// Whether a block is there.
    fn find(&self, key: &BlockKey) -> Known;

    /// How many blocks are there.
    fn blocks(&self) -> usize;

    /// Whether nothing is [`Known::Unknown`].
    fn is_complete(&self) -> bool;

    /// These blocks were used just now.
    fn touch(&self, keys: &[BlockKey]);

    /// The blocks that are here are not dropped for want of room by this process, until a moment or for good; says for each
    /// whether it is pinned.
    ///
    /// # Errors
    /// `Capacity` when the store does not promise so much; nothing is pinned then.
    fn pin(&self, keys: &[BlockKey], until: Option<SystemTime>) -> Result<Vec<bool>>;

    /// These blocks may be dropped again.
    fn unpin(&self, keys: &[BlockKey]);
}

/// What a store tells about blocks that it has dropped for want of room.
pub type OnDropped = Box<dyn Fn(&[BlockKey]) + Send + Sync>;

/// What a store says about itself.
#[derive(Clone, Debug)]
pub struct StoreInfo {
    /// `"files"`, `"memory"`, …
    pub kind: &'static str,
    /// The place, as a person would name it: a path or a URL without secrets.
    pub place: String,
    /// Payload bytes of every block.
    pub payload_bytes: usize,
    /// How many operations the store works on at the same time; more wait in the engine's queues.
    pub concurrency: usize,
    /// Threads that begin operations. A store that works on an operation until it is done wants as many as it has; one
    /// that returns at once and answers later wants few.
    pub threads: usize,
    /// How many operations such a thread begins before it lets others go on, for a store that gives what it has begun to
    /// the device only between two turns; `usize::MAX` where that makes no difference.
    pub turn: usize,
    /// How bytes move: the [`IoEngine`](crate::io::IoEngine)'s name, or `"network"`.
    pub io_engine: &'static str,
    /// Whether stores are refused.
    pub read_only: bool,
    /// Whether nobody else can add blocks while this store is open, so that its own knowledge is complete.
    pub exclusive: bool,
    /// Whether the blocks that are there at the start shall be listed, so that finding them takes no probes.
    pub listed: bool,
}

/// A place for blocks.
///
/// `store`, `load` and `probe` are called on a thread of [`BlockStore::spawn`] and may work on it until they are done or
/// return at once and answer later; in either case the answer is given through the [`Done`].
pub trait BlockStore: Send + Sync + 'static {
    /// What this store is.
    fn info(&self) -> StoreInfo;

    /// Runs `task` on one of the store's threads. After [`BlockStore::close`] it is dropped unrun.
    fn spawn(&self, task: Task);

    /// Writes the row under `key` and publishes it, unless the block is there already or the lease has ended by then.
    fn store(&self, key: BlockKey, row: RowLease, done: Done<Stored>);

    /// Reads the block under `key` into the row and verifies it. A block that is proven bad is removed (see
    /// [`ErrorKind::is_proof_of_damage`]).
    fn load(&self, key: BlockKey, row: RowLease, done: Done<Loaded>);

    /// Looks for blocks without reading them; the answer has one entry per key, in order.
    fn probe(&self, keys: Vec<BlockKey>, done: Done<Vec<Probed>>);

    /// The store's own index, if that is complete at any time.
    fn residency(&self) -> Option<Arc<dyn Residency>> {
        None
    }

    /// Blocks that the store drops for want of room are reported to `listener` from now on.
    fn on_dropped(&self, listener: OnDropped) {
        drop(listener);
    }

    /// The leases of some operations have ended from outside (a deadline, a reset, a shutdown): the store should stop
    /// working on those that are under way, and let go of their rows. Never waits.
    fn leases_ended(&self) {}

    /// Calls `found` with each block that is there, until it returns false. Blocks the calling thread.
    ///
    /// # Errors
    /// When the listing could not be completed.
    fn scan(&self, found: &mut dyn FnMut(BlockKey, Location) -> bool) -> Result<()>;

    /// Takes all blocks away, at once for every process; their space may be freed later. Blocks the calling thread.
    ///
    /// # Errors
    /// When the blocks are still there.
    fn reset(&self) -> Result<()>;

    /// Ends the store's threads; waits for running operations until `timeout`. Returns how many are still stuck.
    fn close(&self, timeout: Duration) -> usize;

    /// In a forked child: gives up what is shared with the parent (locks held through inherited descriptors), without
    /// taking any lock.
    fn abandon_in_child(&self) {}
}

/// The answer to one operation: given once, and never lost. Dropping it unanswered (a panic, a store that was closed)
/// answers with [`ErrorKind::Internal`].
pub struct Done<T>(Option<Box<dyn FnOnce(Result<T>) + Send>>);

impl<T> Done<T> {
    /// An answer that goes to `receiver`.
    pub fn new(receiver: impl FnOnce(Result<T>) + Send + 'static) -> Self {
        Self(Some(Box::new(receiver)))
    }

    /// Gives the answer.
    pub fn give(mut self, answer: Result<T>) {
        if let Some(receiver) = self.0.take() {
            receiver(answer);
        }
    }
}

impl<T> Drop for Done<T> {
    fn drop(&mut self) {
        if let Some(receiver) = self.0.take() {
            receiver(Err(Error::new(ErrorKind::Internal, "the store gave no answer")));
        }
    }
}

impl<T> fmt::Debug for Done<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}

/// Whether a block of this format can be stored from a row: the engine cuts rows to the length of a payload.
fn check_source(row: &RowLease, format: &BlockFormat) -> Result<()> {
    let (found, expected) = (row.row_bytes(), format.payload_bytes());
    if found == expected {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, format!("a row of {found} bytes for blocks of {expected}")))
}

/// Whether one can be loaded into it.
fn check_target(row: &RowLease, format: &BlockFormat) -> Result<()> {
    check_source(row, format)?;
    if row.is_writable() { Ok(()) } else { Err(Error::new(ErrorKind::ReadOnly, "the rows are read-only memory")) }
}
