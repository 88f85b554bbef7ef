//! One file per block below a root directory, on a local disk or a shared file system.
//!
//! ```text
//! <root>/<model>_<digest>/config.json               the identity, shared by all ranks
//! <root>/<model>_<digest>/lock_r<rank>              locked by those who have the namespace open
//! <root>/<model>_<digest>_r<rank>/hhh/hh_g0/….bin   the blocks
//! <root>/<model>_<digest>_r<rank>/.tmp              unfinished files, where they need names
//! <root>/<model>_<digest>_r<rank>/.quarantine       blocks that failed verification, with the option
//! <root>/.kvtier-trash                              namespaces that were reset
//! ```
//! What stores of several processes and hosts may expect of each other is written down in `docs/format.md`.

mod config_json;
mod heal;
mod locks;
mod open;
mod publish;
mod read;
mod reset;
mod root;
mod scan;
mod survey;
mod temporary;
mod write;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, Stat, statat};
use rustix::io::Errno;

pub(super) use open::settle_config;
pub use publish::Publishing;
pub use root::{Abilities, Root, RootReport};
pub(super) use scan::{entries, name_of};
pub use survey::{Contents, FoundBlocks, FoundNamespace, Survey};
pub use temporary::Unfinished;
pub(super) use temporary::unique_name;

use self::locks::Claim;
use self::reset::Sweep;
use super::{BlockStore, Done, Loaded, Location, Probed, StoreInfo, Stored};
use crate::buffer::{PAGE, RowLease, ScratchPool};
use crate::config::{self, Durability};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{BlockFormat, Verify};
use crate::io::{Completion, DirectIo, IoEngine, Task, Transfer};
use crate::layout::BlockKey;
use crate::recurring::Recurring;

/// Makes the seed of unique names; see [`crate::engine::warm_up`].
pub(crate) fn warm_up() {
    unique_name();
}

/// How a [`FilesStore`] is opened.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct FilesConfig {
    /// How blocks lie.
    pub format: BlockFormat,
    /// Whether checksums are compared at load.
    pub verify: Verify,
    /// What is flushed to the device before a block is published.
    pub durability: Durability,
    /// Whether transfers bypass the page cache.
    pub direct_io: config::DirectIo,
    /// Whether stores are refused and nothing in the root is changed.
    pub read_only: bool,
    /// Whether nobody else may have the namespace open for storing.
    pub exclusive: bool,
    /// Whether blocks that are proven bad are kept aside instead of removed.
    pub quarantine: bool,
    /// Permission bits of files, before umask.
    pub file_mode: u32,
    /// Permission bits of directories, before umask.
    pub dir_mode: u32,
    /// Whether loads may read straight into the engine's rows, whose results then wait for such a read to end; `None` for
    /// what is known about the kind of file system.
    pub reads_into_rows: Option<bool>,
    /// Unfinished files older than this go when a store opens, where locks can't tell whether their writer is gone.
    pub stale_after: Option<Duration>,
    /// How files are published; `None` for the best way that works.
    pub publishing: Option<Publishing>,
}

impl FilesConfig {
    /// The defaults, for blocks that lie like this.
    pub fn new(format: BlockFormat) -> Self {
        Self {
            format,
            verify: Verify::Always,
            durability: Durability::None,
            direct_io: config::DirectIo::Auto,
            read_only: false,
            exclusive: false,
            quarantine: false,
            file_mode: 0o666,
            dir_mode: 0o777,
            reads_into_rows: None,
            stale_after: None,
            publishing: None,
        }
    }
}

/// The store; see the [module](self).
pub struct FilesStore {
    files: Arc<Files>,
    sweep: Sweep,
}

impl FilesStore {
    /// Whether `io_engine="auto"` takes a ring of `io_uring`. Making and linking a file is most of what a block costs,
    /// and writes that make a file longer are handed to the kernel's own threads by the ring.
    pub const RING_GAINS: bool = false;
}

/// What the operations of a store share; they keep it until they have ended.
struct Files {
    root: Root,
    /// Name of the namespace's directory in the root.
    blocks_dir: String,
    config: FilesConfig,
    publishing: Publishing,
    direct: Arc<DirectIo>,
    io: Arc<dyn IoEngine>,
    reads_into_rows: bool,
    /// Whether others who could add blocks are excluded.
    exclusive: bool,
    claim: Claim,
    removals: Recurring,
    failed_removals: Recurring,
    /// Padding and trailer of a block.
    tails: Arc<ScratchPool>,
    /// Whole blocks, where a row can't be the place.
    blocks: Arc<ScratchPool>,
}

/// Between which memory and a file the bytes of one operation move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// The row itself, past the page cache.
    RowDirect,
    /// The row itself, through the page cache.
    RowBuffered,
    /// Aligned memory of kvtier's own, past the page cache, with a copy from or to the row: cheaper than the page cache,
    /// which copies too.
    ScratchDirect,
    /// Memory of kvtier's own, through the page cache.
    ScratchBuffered,
}

impl Route {
    fn is_direct(self) -> bool {
        matches!(self, Self::RowDirect | Self::ScratchDirect)
    }
}

impl Files {
    /// The way for `row`; `touch_row` says whether the file system is trusted with it for as long as a transfer takes.
    fn route(&self, row: &RowLease, touch_row: bool) -> Route {
        // A tail is a whole number of pages, or none.
        let align = self.direct.alignment().filter(|align| *align <= PAGE);
        let row_fits = align.is_some_and(|align| row.is_aligned_to(align));
        let block_fits = align.is_some_and(|align| self.config.format.block_bytes().is_multiple_of(align));
        match (touch_row, row_fits, block_fits) {
            (true, true, _) => Route::RowDirect,
            (_, _, true) => Route::ScratchDirect,
            (true, ..) => Route::RowBuffered,
            (false, ..) => Route::ScratchBuffered,
        }
    }

    fn submit(&self, direct: bool, transfer: Transfer, done: Completion) {
        if direct {
            self.direct.submit(&self.io, transfer, done);
        } else {
            self.io.submit(transfer, done);
        }
    }

    /// Opens the namespace's directory as it is now. All paths of one operation start there, so an operation that began
    /// before a reset ends before it, too: what it publishes goes away with the rest.
    fn open_blocks_dir(&self) -> rustix::io::Result<OwnedFd> {
        self.root.open_dir(&self.blocks_dir)
    }

    /// The length of the file under a block's name, if it's a regular one.
    fn probe_one(&self, key: &BlockKey) -> Probed {
        match statat(&self.root, self.below_root(key), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if is_file(&stat) && stat.st_size == self.block_len() => Probed::Present(Location::default()),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Probed::Absent,
            Err(errno) => Probed::Unknown(self.failed("looking for a block", key, errno)),
        }
    }

    fn block_len(&self) -> i64 {
        i64::try_from(self.config.format.block_bytes()).unwrap_or(i64::MAX)
    }

    fn below_root(&self, key: &BlockKey) -> String {
        [self.blocks_dir.as_str(), key.path().as_str()].join("/")
    }

    fn full_path(&self, key: &BlockKey) -> PathBuf {
        self.root.path().join(self.below_root(key))
    }

    fn failed(&self, what: &str, key: &BlockKey, errno: Errno) -> Error {
        self.about(key, Error::from_io(what, errno.into()))
    }

    /// Adds to an error which block it is about.
    fn about(&self, key: &BlockKey, error: Error) -> Error {
        error.with("path", self.full_path(key).display()).with("key", key)
    }

    fn file_mode(&self) -> Mode {
        Mode::from_raw_mode(self.config.file_mode)
    }

    fn dir_mode(&self) -> Mode {
        Mode::from_raw_mode(self.config.dir_mode)
    }
}

fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

fn no_file() -> Error {
    Error::new(ErrorKind::Foreign, "something that is no file has the block's name")
}

impl BlockStore for FilesStore {
    fn info(&self) -> StoreInfo {
        let files = &self.files;
        StoreInfo {
            kind: "files",
            place: files.root.path().join(&files.blocks_dir).display().to_string(),
            payload_bytes: files.config.format.payload_bytes(),
            concurrency: files.io.depth(),
            threads: files.io.threads(),
            turn: usize::MAX,
            io_engine: files.io.name(),
            read_only: files.config.read_only,
            exclusive: files.exclusive,
            listed: false,
        }
    }

    fn spawn(&self, task: Task) {
        self.files.io.spawn(task);
    }

    fn store(&self, key: BlockKey, row: RowLease, done: Done<Stored>) {
        Files::store(&self.files, key, row, done);
    }

    fn load(&self, key: BlockKey, row: RowLease, done: Done<Loaded>) {
        Files::load(&self.files, key, row, done);
    }

    fn probe(&self, keys: Vec<BlockKey>, done: Done<Vec<Probed>>) {
        done.give(Ok(keys.iter().map(|key| self.files.probe_one(key)).collect()));
    }

    fn scan(&self, found: &mut dyn FnMut(BlockKey, Location) -> bool) -> Result<()> {
        self.files.scan(found)
    }

    fn reset(&self) -> Result<()> {
        self.files.set_aside()?;
        self.sweep.start(&self.files.root);
        Ok(())
    }

    fn close(&self, timeout: Duration) -> usize {
        self.sweep.stop();
        let stuck = self.files.io.stop(timeout);
        if stuck == 0 {
            // Otherwise an operation may still publish; the claim ends with the last of them.
            self.files.claim.release();
        }
        stuck
    }

    fn abandon_in_child(&self) {
        self.files.claim.abandon();
    }
}

impl fmt::Debug for FilesStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = &self.files;
        write!(f, "FilesStore({} in {}, {:?})", files.blocks_dir, files.root.path().display(), files.publishing)
    }
}
