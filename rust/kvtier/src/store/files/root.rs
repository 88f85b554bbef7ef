//! A root directory, and what its file system can do.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, StatVfsMountFlags, fstatvfs, fsync, mkdirat, open, openat, unlinkat};
use rustix::io::{Errno, pread, pwrite};

use super::publish::{Publishing, Unpublished};
use super::{locks, temporary};
use crate::buffer::PAGE;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{DirectIo, FileSystem};

/// An existing directory, held open so that its file system stays mounted.
#[derive(Debug)]
pub struct Root {
    dir: OwnedFd,
    path: PathBuf,
    file_system: FileSystem,
}

/// What was found out about a directory by trying.
#[derive(Debug)]
pub struct Abilities {
    /// How files get their names.
    pub publishing: Publishing,
    /// Whether and how transfers can bypass the page cache.
    pub direct_io: DirectIo,
    /// Whether files can be locked, so that the owner of a temporary file can be told.
    pub locks: bool,
}

/// What a root is like, for people: `kvtier doctor`.
#[derive(Debug)]
pub struct RootReport {
    /// The root, absolute and without symbolic links.
    pub path: PathBuf,
    /// The kind of file system.
    pub file_system: FileSystem,
    /// Whether it is mounted read-only.
    pub read_only: bool,
    /// Bytes of the file system.
    pub total_bytes: u64,
    /// Bytes that this user can still write.
    pub free_bytes: u64,
    /// Files that the file system can hold; 0 where it has no such limit.
    pub total_files: u64,
    /// Files that this user can still make, where there is a limit.
    pub free_files: u64,
    /// What was found out by trying, or why nothing could be tried.
    pub abilities: Result<Abilities>,
}

impl Root {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// `Config` when it doesn't exist or is no directory, `Permission` when it can't be entered.
    pub fn open(path: &Path) -> Result<Self> {
        let refused = |errno: Errno| {
            let message = match errno {
                Errno::NOENT => "the root directory does not exist; create it first",
                Errno::NOTDIR => "the root is not a directory",
                _ => return Error::from_io("opening the root directory", errno.into()).with("path", path.display()),
            };
            Error::new(ErrorKind::Config, message).with("path", path.display())
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(path, flags, Mode::empty()).map_err(refused)?;
        let file_system = FileSystem::of(&dir)?;
        // Symbolic links are resolved for messages only; all access goes through the descriptor.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { dir, path, file_system })
    }

    /// Finds out everything about the directory at `path`; leaves it as it was.
    ///
    /// # Errors
    /// As [`Root::open`].
    pub fn inspect(path: &Path) -> Result<RootReport> {
        let root = Self::open(path)?;
        let space = fstatvfs(&root.dir).map_err(|e| root.failed("asking for free space", e))?;
        let trial = format!(".kvtier-trial-{}", temporary::unique_name());
        let abilities = root.make_dir(&trial, Mode::RWXU).and_then(|dir| {
            let dir = Arc::new(dir);
            let found = root.try_out(&dir)?;
            found.try_direct_io(&dir);
            Ok(found)
        });
        for left in [format!("{trial}/{}", temporary::DIR), trial] {
            let _ = unlinkat(&root.dir, left, AtFlags::REMOVEDIR);
        }
        Ok(RootReport {
            read_only: space.f_flag.contains(StatVfsMountFlags::RDONLY),
            total_bytes: space.f_blocks * space.f_frsize,
            free_bytes: space.f_bavail * space.f_frsize,
            total_files: space.f_files,
            free_files: space.f_favail,
            path: root.path,
            file_system: root.file_system,
            abilities,
        })
    }

    /// Finds out by trying, in a directory of this root, what its file system can do.
    ///
    /// # Errors
    /// `Config` when it has no way of publishing, `Permission` when it can't be written.
    pub(super) fn try_out(&self, dir: &Arc<OwnedFd>) -> Result<Abilities> {
        let place = || self.path.display().to_string();
        let (publishing, sample) = Publishing::find(dir)?;
        match sample {
            Some(file) => Ok(Abilities {
                publishing,
                locks: locks::supported(&file),
                direct_io: DirectIo::of(&file, self.file_system, place()),
            }),
            None => Ok(Abilities { publishing, locks: true, direct_io: self.direct_io_unasked() }),
        }
    }

    /// What can be assumed about direct IO where no file can be made to ask.
    pub fn direct_io_unasked(&self) -> DirectIo {
        DirectIo::of(&self.dir, self.file_system, self.path.display().to_string())
    }

    /// Opens the directory `name` in the root, which is made if it is missing.
    pub fn make_dir(&self, name: &str, mode: Mode) -> Result<OwnedFd> {
        match mkdirat(&self.dir, name, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(self.failed("making a directory", errno).with("name", name)),
        }
        self.open_dir(name).map_err(|errno| self.failed("opening a directory", errno).with("name", name))
    }

    /// Opens the directory `name` in the root, for use as a starting point of paths.
    pub fn open_dir(&self, name: &str) -> rustix::io::Result<OwnedFd> {
        openat(&self.dir, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Makes the names in the root durable.
    pub(super) fn flush(&self) -> rustix::io::Result<()> {
        flush_dir(&self.dir, ".")
    }

    /// Where the root is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it lies on.
    pub fn file_system(&self) -> FileSystem {
        self.file_system
    }

    fn failed(&self, what: &str, errno: Errno) -> Error {
        Error::from_io(what, errno.into()).with("path", self.path.display())
    }
}

impl Abilities {
    /// Moves a page past the page cache, as a store would: a file system that refuses what it promises is believed no
    /// more. Other failures, such as a full one, prove nothing.
    fn try_direct_io(&self, dir: &Arc<OwnedFd>) {
        let Some(align) = self.direct_io.alignment() else { return };
        let len = align.max(PAGE);
        let mut memory = vec![0; len + align];
        let start = memory.as_ptr().align_offset(align);
        let page = &mut memory[start..start + len];
        let flags = OFlags::RDWR | OFlags::DIRECT;
        let moved = Unpublished::create(dir, self.publishing, flags, Mode::RUSR | Mode::WUSR, Mode::RWXU)
            .and_then(|file| pwrite(file.file(), page, 0).and_then(|_| pread(file.file(), page, 0)));
        if moved == Err(Errno::INVAL) {
            self.direct_io.turn_off();
        }
    }
}

/// Makes the names in a directory durable.
pub(super) fn flush_dir(at: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    fsync(openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}
