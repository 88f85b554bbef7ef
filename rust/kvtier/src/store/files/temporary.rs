//! Unfinished files, where the file system needs names for them.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, fstat, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use super::locks::{Attempt, try_lock};

/// The directory of unfinished files.
pub(super) const DIR: &str = ".tmp";

/// A name that no other process, on any host, gives at any time: short, and independent of what it is for.
pub(in crate::store) fn unique_name() -> String {
    static SEED: LazyLock<u64> = LazyLock::new(|| {
        use std::hash::BuildHasher;
        // Keyed by the system's randomness.
        std::hash::RandomState::new().hash_one(SystemTime::now())
    });
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    // The process id tells a forked child from its parent, with which it shares the seed.
    format!("{:x}-{:x}-{:x}", *SEED, std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// A path for a file to be moved aside to, below a directory that has [`DIR`] in it.
pub(super) fn unique_path() -> String {
    format!("{DIR}/{}", unique_name())
}

/// Makes a file in [`DIR`] below `dir`, locked as long as it is open, and returns its path below `dir`.
pub(super) fn create(
    dir: &OwnedFd,
    flags: OFlags,
    mode: Mode,
    dir_mode: Mode,
) -> rustix::io::Result<(OwnedFd, String)> {
    loop {
        let path = unique_path();
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = match openat(dir, path.as_str(), flags, mode) {
            Ok(file) => file,
            Err(Errno::EXIST) => continue,
            Err(Errno::NOENT) => {
                make_dir(dir, dir_mode)?;
                openat(dir, path.as_str(), flags, mode)?
            }
            Err(errno) => return Err(errno),
        };
        // Between the two calls it looks as if its writer were gone: somebody who tidies up may have it.
        let locked = try_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
        if locked != Attempt::Held && fstat(&file)?.st_nlink > 0 {
            return Ok((file, path));
        }
    }
}

/// Makes [`DIR`] below `dir`, unless it is there.
pub(super) fn make_dir(dir: &OwnedFd, mode: Mode) -> rustix::io::Result<()> {
    match mkdirat(dir, DIR, mode) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Removes the files in [`DIR`] below `dir` whose writer is gone: those that nobody has locked. Where locks don't work,
/// those older than `stale_after`, if that is given. Returns how many were removed.
pub(super) fn remove_stale(dir: &OwnedFd, stale_after: Option<Duration>) -> rustix::io::Result<usize> {
    let mut removed = 0;
    for_each(dir, |listing, name, writer| {
        let is_stale = match writer {
            Writer::Gone => true,
            Writer::Alive => false,
            Writer::Unknown { age } => stale_after.is_some_and(|limit| age > limit),
        };
        // Under the lock: a writer that has just made the file and not locked it yet sees that it is taken.
        removed += usize::from(is_stale && unlinkat(listing, name, AtFlags::empty()).is_ok());
    })?;
    Ok(removed)
}

/// Unfinished files, by what is known about their writers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unfinished {
    /// Being written.
    pub in_use: usize,
    /// Left behind by writers that are gone; the next store to open the namespace removes them.
    pub abandoned: usize,
    /// Either, where files can't be locked.
    pub undecided: usize,
}

/// Counts the files in [`DIR`] below `dir`.
pub(super) fn look(dir: &OwnedFd) -> rustix::io::Result<Unfinished> {
    let mut found = Unfinished::default();
    for_each(dir, |_, _, writer| match writer {
        Writer::Gone => found.abandoned += 1,
        Writer::Alive => found.in_use += 1,
        Writer::Unknown { .. } => found.undecided += 1,
    })?;
    Ok(found)
}

/// Who is writing an unfinished file.
enum Writer {
    Gone,
    Alive,
    /// Locks can't tell. The file was last written so long ago.
    Unknown {
        age: Duration,
    },
}

/// Calls `visit` for each unfinished file with the directory that it is in, its name there, and what is known about its
/// writer; meanwhile the file of a writer that is gone is locked. What another process takes away at the same time, and
/// what is out of reach because it is another user's, is left out.
fn for_each(dir: &OwnedFd, mut visit: impl FnMut(&OwnedFd, &CStr, Writer)) -> rustix::io::Result<()> {
    let listing = match openat(dir, DIR, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(listing) => listing,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    for entry in Dir::read_from(&listing)? {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..")
            && let Ok(file) = open_to_lock(&listing, name)
            && let Ok(writer) = writer_of(&file)
        {
            visit(&listing, name, writer);
        }
    }
    Ok(())
}

fn open_to_lock(dir: &OwnedFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    // Some network file systems lock only what is open for writing.
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::empty())
}

fn writer_of(file: &OwnedFd) -> rustix::io::Result<Writer> {
    Ok(match try_lock(file, FlockOperation::NonBlockingLockExclusive)? {
        Attempt::Locked => Writer::Gone,
        Attempt::Held => Writer::Alive,
        Attempt::Unsupported => Writer::Unknown { age: age(file) },
    })
}

fn age(file: &OwnedFd) -> Duration {
    let modified = fstat(file).ok().and_then(|stat| u64::try_from(stat.st_mtime).ok()).unwrap_or_default();
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + Duration::from_secs(modified)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODE: Mode = Mode::RWXU;

    fn scratch() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        let fd = rustix::fs::open(dir.path(), OFlags::PATH, Mode::empty()).unwrap();
        (dir, fd)
    }

    #[test]
    fn exactly_what_nobody_holds_is_stale() {
        let (dir, fd) = scratch();
        assert_eq!(remove_stale(&fd, None).unwrap(), 0, "no directory yet");
        let (held, path) = create(&fd, OFlags::WRONLY, MODE, MODE).unwrap();
        let (gone, _) = create(&fd, OFlags::WRONLY, MODE, MODE).unwrap();
        drop(gone);
        std::fs::create_dir(dir.path().join(DIR).join("a directory of somebody's")).unwrap();
        assert_eq!(look(&fd).unwrap(), Unfinished { in_use: 1, abandoned: 1, undecided: 0 });
        assert_eq!(remove_stale(&fd, None).unwrap(), 1);
        assert!(dir.path().join(&path).exists());
        drop(held);
        assert_eq!(remove_stale(&fd, None).unwrap(), 1);
        assert!(dir.path().join(DIR).join("a directory of somebody's").exists());
    }

    #[test]
    fn names_are_short_and_differ() {
        let names: std::collections::HashSet<_> = (0..1000).map(|_| unique_name()).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|n| n.len() <= 40));
    }
}
