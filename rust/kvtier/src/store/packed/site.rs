//! A root that holds a pool: finding it, making it, and refusing what is none.
//!
//! All of it happens under a lock on the root directory, so that two processes never decide differently.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, Mode, OFlags, fdatasync, flock, fsync, mkdirat, openat, renameat};
use rustix::io::{Errno, pread};

use super::format::{Page, PoolId, Superblock};
use super::segment;
use crate::buffer::PAGE;
use crate::error::{Error, ErrorKind, Result};
use crate::io::FileSystem;
use crate::store::files::{entries, name_of, unique_name};

/// The directory of a pool below its root.
pub(super) const DIR: &str = "kvtier-pool";
const SUPERBLOCK: &str = "super";
const NEW_SUPERBLOCK: &str = "super.new";
/// Which segments have changed lately; see [`super::hints`].
pub(super) const HINTS: &str = "changes";
/// For which boot all blocks were compared with their checksums; see [`super::scrub`].
pub(super) const CHECKED: &str = "checked";
/// End of the name of a namespace's record.
pub(super) const RECORD: &str = ".ns";

/// For how long somebody else may be opening the pool.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(5);

/// File systems that reserve room for a file for good, and lock it.
const FITTING: [&str; 3] = ["ext4", "xfs", "tmpfs"];

/// What lies below a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A pool, finished or not.
    Pool,
    /// Blocks in files of their own.
    Files,
    /// Neither.
    Nothing,
}

/// What is asked of a pool by whoever opens it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// What all of its files may take; `None` for what the pool has, or no cap.
    pub max_bytes: Option<u64>,
    /// What is left free on its file system; `None` for what the pool has, or nothing.
    pub min_free_bytes: Option<u64>,
    /// Bytes of a segment; `None` for what the pool has, or what suits the cap.
    pub segment_bytes: Option<u64>,
}

/// A pool that is open.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) path: PathBuf,
    pub(super) dir: OwnedFd,
    pub(super) file_system: FileSystem,
    pub(super) superblock: Superblock,
    /// Whether the superblock was made or changed just now.
    pub(super) changed: bool,
    /// Locked shared by everybody who has the pool open.
    in_use: Option<File>,
}

/// A root directory under its lock.
pub(super) struct Locked {
    root: OwnedFd,
    pub(super) path: PathBuf,
    file_system: FileSystem,
}

impl Locked {
    /// Locks the directory at `path`.
    ///
    /// # Errors
    /// `Config` when it is no directory; `Unavailable` when somebody else keeps it locked.
    pub(super) fn take(path: &Path) -> Result<Self> {
        let refused = |errno: Errno| {
            let message = match errno {
                Errno::NOENT => "the root directory does not exist; create it first",
                Errno::NOTDIR => "the root is not a directory",
                _ => return Error::from_io("opening the root directory", errno.into()).with("path", path.display()),
            };
            Error::new(ErrorKind::Config, message).with("path", path.display())
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(refused)?;
        let give_up = Instant::now() + PATIENCE;
        loop {
            match flock(&root, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if Instant::now() < give_up => std::thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => {
                    let message = "another process has been opening the pool for long; see whether it hangs";
                    return Err(Error::new(ErrorKind::Unavailable, message).with("root", path.display()));
                }
                Err(errno) => return Err(Error::from_io("locking the root", errno.into()).with("root", path.display())),
            }
        }
        let file_system = FileSystem::of(&root)?;
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { root, path, file_system })
    }

    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Whether a pool can be here.
    pub(super) fn fits(&self) -> bool {
        FITTING.contains(&self.file_system.name())
    }

    /// What lies here.
    pub(super) fn holds(&self) -> Result<Holds> {
        let mut holds = Holds::Nothing;
        for entry in self.names(&self.root)? {
            if entry == DIR {
                return Ok(Holds::Pool);
            }
            let is_rank = entry.rsplit_once("_r").is_some_and(|(_, rank)| rank.parse::<u32>().is_ok());
            if is_rank && !entry.starts_with('.') {
                holds = Holds::Files;
            }
        }
        Ok(holds)
    }

    /// Opens the pool, which is made or finished where it isn't there and `make` allows it.
    ///
    /// # Errors
    /// `Config` when a pool can't be here, or isn't and can't be made, or what is here is not this one; `UnsupportedVersion`
    /// when a newer kvtier made it.
    pub(super) fn open(
        &self,
        bounds: Bounds,
        block_bytes: u64,
        read_only: bool,
        dir_mode: Mode,
        file_mode: Mode,
    ) -> Result<Site> {
        if !self.fits() {
            let message = format!(
                "layout=\"packed\" needs a file system that reserves room and locks files ({}); this is {}: give \
                 layout=\"files\"",
                FITTING.join(", "),
                self.file_system
            );
            return Err(Error::new(ErrorKind::Config, message));
        }
        match self.holds()? {
            Holds::Pool => {}
            Holds::Files => {
                let message = "the root holds blocks in files of their own; give layout=\"files\", or another root for \
                               the pool";
                return Err(Error::new(ErrorKind::Config, message));
            }
            Holds::Nothing if read_only => {
                return Err(Error::new(ErrorKind::Config, "the root holds no pool, and read_only=True makes none"));
            }
            Holds::Nothing => match mkdirat(&self.root, DIR, dir_mode) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(Error::from_io("making the pool's directory", errno.into())),
            },
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let dir = openat(&self.root, DIR, flags, Mode::empty())
            .map_err(|e| Error::from_io("opening the pool's directory", e.into()))?;
        let (superblock, changed) = match read_superblock(&dir)? {
            Some(superblock) => (superblock, false),
            None if read_only => {
                return Err(Error::new(ErrorKind::Config, "the pool is not finished yet; it has no superblock"));
            }
            None => {
                self.check_unfinished(&dir)?;
                let superblock = new_superblock(bounds, block_bytes)?;
                write_superblock(&dir, &superblock, file_mode)?;
                (superblock, true)
            }
        };
        let (path, file_system) = (self.path.clone(), self.file_system);
        let mut site = Site { path, dir, file_system, superblock, changed, in_use: None };
        Self::agree(&mut site, bounds, read_only, file_mode)?;
        Ok(site)
    }

    /// Takes part in the use of the pool, on its terms or, where nobody else has it open, on new ones.
    fn agree(site: &mut Site, bounds: Bounds, read_only: bool, file_mode: Mode) -> Result<()> {
        let known = site.superblock;
        if let Some(bytes) = bounds.segment_bytes.filter(|bytes| *bytes != known.segment_bytes) {
            let message = format!(
                "segment_bytes={bytes}: the pool has segments of {} bytes, and that can't change; leave the option out",
                known.segment_bytes
            );
            return Err(Error::new(ErrorKind::Config, message));
        }
        let wanted = Superblock {
            max_bytes: bounds.max_bytes.unwrap_or(known.max_bytes),
            min_free_bytes: bounds.min_free_bytes.unwrap_or(known.min_free_bytes),
            ..known
        };
        if wanted != known && !read_only {
            let file = open_superblock(&site.dir)?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                let message = format!(
                    "the pool is open in other processes with max_bytes={} and min_free_bytes={}, here it is {} and {}: \
                     give all of them the same, or open it when nobody else has it open",
                    known.max_bytes, known.min_free_bytes, wanted.max_bytes, wanted.min_free_bytes
                );
                return Err(Error::new(ErrorKind::Config, message));
            }
            check_bounds(&wanted)?;
            write_superblock(&site.dir, &wanted, file_mode)?;
            site.superblock = wanted;
            site.changed = true;
        }
        let file = open_superblock(&site.dir)?;
        flock(&file, FlockOperation::NonBlockingLockShared)
            .map_err(|e| Error::from_io("locking the pool's superblock", e.into()))?;
        site.in_use = Some(file);
        Ok(())
    }

    /// A directory without a superblock is a pool that somebody began to make, if nothing else is in it.
    fn check_unfinished(&self, dir: &OwnedFd) -> Result<()> {
        let expected = |name: &String| name == NEW_SUPERBLOCK || name == HINTS;
        if let Some(strange) = self.names(dir)?.into_iter().find(|name| !expected(name)) {
            let message = format!(
                "the directory {DIR} has no superblock but holds {strange:?}: it is another program's, or a damaged pool; \
                 move it away to start anew"
            );
            return Err(Error::new(ErrorKind::Config, message));
        }
        Ok(())
    }

    fn names(&self, dir: &OwnedFd) -> Result<Vec<String>> {
        names_in(dir).map_err(|e| Error::from_io("listing the root", e.into()).with("root", self.path.display()))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Said, not left to the closing: a child that was forked meanwhile has the description, too.
        let _ = flock(&self.root, FlockOperation::Unlock);
    }
}

impl Site {
    /// The segments that have files.
    pub(super) fn segments(&self) -> Result<Vec<u32>> {
        let listed = names_in(&self.dir).map_err(|e| Error::from_io("listing the pool", e.into()))?;
        Ok(listed.iter().filter_map(|name| segment::id_of(name)).collect())
    }

    /// What carries the note that the pool is in use.
    pub(super) fn in_use(&self) -> Option<&File> {
        self.in_use.as_ref()
    }

    /// The pool is not in use here any more.
    pub(super) fn leave(&self) {
        if let Some(file) = &self.in_use {
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

/// Names in a directory, but for the two that each has.
pub(super) fn names_in(dir: &OwnedFd) -> rustix::io::Result<Vec<String>> {
    // A description of its own, so that nobody else's position moves.
    let listing = openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in entries(&listing)? {
        let entry = entry?;
        let name = name_of(&entry).map_or_else(|| entry.file_name().to_string_lossy().into_owned(), str::to_owned);
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

fn open_superblock(dir: &OwnedFd) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = openat(dir, SUPERBLOCK, flags, Mode::empty());
    opened.map(File::from).map_err(|e| Error::from_io("opening the pool's superblock", e.into()))
}

/// The superblock, if there is one.
pub(super) fn read_superblock(dir: &OwnedFd) -> Result<Option<Superblock>> {
    let file = match open_superblock(dir) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::Missing => return Ok(None),
        Err(error) => return Err(error),
    };
    let page = read_page(file.as_fd()).map_err(|e| Error::from_io("reading the pool's superblock", e.into()))?;
    match Superblock::decode(&page) {
        Ok(superblock) => Ok(Some(superblock)),
        Err(error) if error.kind() == ErrorKind::UnsupportedVersion => Err(error),
        Err(error) => {
            let message = format!("{}; move the directory {DIR} away to start anew", error.message());
            Err(Error::new(ErrorKind::Config, message).with_source(error))
        }
    }
}

pub(super) fn read_page(file: impl AsFd) -> rustix::io::Result<Page> {
    let mut page = [0; PAGE];
    let mut done = 0;
    while done < PAGE {
        match pread(&file, &mut page[done..], done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(page)
}

/// Complete or not at all: written beside, then renamed.
fn write_superblock(dir: &OwnedFd, superblock: &Superblock, mode: Mode) -> Result<()> {
    let write = || {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(dir, NEW_SUPERBLOCK, flags, mode)?;
        let page = superblock.encode();
        if rustix::io::pwrite(&file, &page, 0)? != page.len() {
            return Err(Errno::IO);
        }
        fdatasync(&file)?;
        renameat(dir, NEW_SUPERBLOCK, dir, SUPERBLOCK)?;
        fsync(dir)
    };
    write().map_err(|e| Error::from_io("writing the pool's superblock", e.into()))
}

fn new_superblock(bounds: Bounds, block_bytes: u64) -> Result<Superblock> {
    let (max_bytes, min_free_bytes) = (bounds.max_bytes.unwrap_or(0), bounds.min_free_bytes.unwrap_or(0));
    if max_bytes == 0 && min_free_bytes == 0 {
        let message =
            "a new pool needs a bound: give max_bytes (what it may take) or min_free_bytes (what it leaves free)";
        return Err(Error::new(ErrorKind::Config, message));
    }
    let superblock = Superblock {
        pool: PoolId(random()),
        segment_bytes: bounds.segment_bytes.unwrap_or_else(|| suitable_segment(max_bytes, block_bytes)),
        max_bytes,
        min_free_bytes,
        created_unix_ns: now_ns(),
    };
    check_bounds(&superblock)?;
    Ok(superblock)
}

/// Fewest segments of a pool: one to store into, and others to take room from.
const FEWEST_SEGMENTS: u64 = 2;

fn check_bounds(superblock: &Superblock) -> Result<()> {
    if u64::from(superblock.most_segments()) < FEWEST_SEGMENTS {
        let needed = Superblock::cap_for(FEWEST_SEGMENTS, superblock.segment_bytes);
        let message = format!(
            "max_bytes={}: a pool with segments of {} bytes needs at least {needed}; give more, or smaller segments by \
             segment_bytes",
            superblock.max_bytes, superblock.segment_bytes
        );
        return Err(Error::new(ErrorKind::Config, message));
    }
    Ok(())
}

/// Up to a 16th of the cap: small enough that what is dropped at once is little, large enough that files are few, and that
/// what it costs to begin one is little beside filling it. But room for some blocks of whoever makes the pool.
fn suitable_segment(max_bytes: u64, block_bytes: u64) -> u64 {
    const SMALLEST: u64 = 1 << 20;
    const LARGEST: u64 = 256 << 20;
    const FEWEST_BLOCKS: u64 = 4;
    let share = match max_bytes {
        // Without a cap.
        0 => LARGEST,
        cap => (cap / 32 + 1).next_power_of_two().clamp(SMALLEST, LARGEST),
    };
    share.max((FEWEST_BLOCKS * block_bytes).next_power_of_two())
}

/// Bytes that nobody else has.
pub(super) fn random() -> [u8; 16] {
    use std::hash::BuildHasher;
    // Keyed by the system's randomness, and by what is unique to the process and the moment.
    let seed = |n: u64| std::hash::RandomState::new().hash_one((n, unique_name(), now_ns())).to_le_bytes();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&seed(0));
    bytes[8..].copy_from_slice(&seed(1));
    bytes
}

/// Nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    ns_of(SystemTime::now())
}

/// A moment in nanoseconds since 1970.
pub(super) fn ns_of(moment: SystemTime) -> u64 {
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Seconds since 1970.
pub(super) fn now_s() -> u64 {
    now_ns() / 1_000_000_000
}
