//! From an unfinished file to a block: complete or not there, and never over another one.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, openat, renameat_with, unlinkat};
use rustix::io::Errno;

use super::temporary;
use crate::error::{Error, ErrorKind, Result};

/// How files get their names when they are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Publishing {
    /// A file without a name is linked by its descriptor. A killed writer leaves nothing behind.
    LinkDescriptor,
    /// The same by way of `/proc`, where the system keeps the direct way to privileged users.
    LinkProc,
    /// A temporary file is renamed, unless the name exists.
    Rename,
    /// A temporary file is given a second name, then its first is removed.
    LinkName,
}

impl Publishing {
    /// All ways, best first.
    pub const ALL: [Self; 4] = [Self::LinkDescriptor, Self::LinkProc, Self::Rename, Self::LinkName];

    /// A short name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LinkDescriptor => "O_TMPFILE, linkat",
            Self::LinkProc => "O_TMPFILE, linkat through /proc",
            Self::Rename => "temporary file, renameat2",
            Self::LinkName => "temporary file, link",
        }
    }

    /// Whether unfinished files have no name.
    pub const fn is_unnamed(self) -> bool {
        matches!(self, Self::LinkDescriptor | Self::LinkProc)
    }

    /// Finds the best way that works in `dir`, and gives a sample file of its file system, without a name or soon
    /// without. There is no sample when the file system is full: then a way that works almost anywhere is assumed.
    ///
    /// # Errors
    /// `Config` when no way works; the system's error when files can't be made at all.
    pub(super) fn find(dir: &Arc<OwnedFd>) -> Result<(Self, Option<Arc<File>>)> {
        let mut refusal = Errno::OPNOTSUPP;
        for way in Self::ALL {
            match way.try_out(dir) {
                Ok(sample) => return Ok((way, Some(sample))),
                Err(Errno::NOSPC | Errno::DQUOT) => return Ok((Self::Rename, None)),
                Err(errno) => refusal = errno,
            }
        }
        Err(match refusal {
            Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::IO => {
                Error::from_io("making a file below the root", refusal.into())
            }
            _ => Error::new(
                ErrorKind::Config,
                format!(
                    "the file system can publish files neither by O_TMPFILE nor by renameat2 nor by link: {refusal}"
                ),
            ),
        })
    }

    fn try_out(self, dir: &Arc<OwnedFd>) -> rustix::io::Result<Arc<File>> {
        let name = format!(".trial-{}", temporary::unique_name());
        let attempt = || {
            let mut file = Unpublished::create(dir, self, OFlags::RDWR, Mode::RUSR | Mode::WUSR, Mode::RWXU)?;
            file.publish(&name)?;
            Ok(Arc::clone(file.file()))
        };
        let sample = attempt()?;
        let twice = attempt();
        unlinkat(dir, name.as_str(), AtFlags::empty())?;
        match twice {
            Err(Errno::EXIST) => Ok(sample),
            // Some file systems ignore RENAME_NOREPLACE instead of refusing it.
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

/// A file that nobody can see as a block yet. Dropped unpublished, it is gone.
#[derive(Debug)]
pub(super) struct Unpublished {
    dir: Arc<OwnedFd>,
    file: Arc<File>,
    way: Publishing,
    /// Its path below `dir`, while it has one.
    temporary: Option<String>,
}

impl Unpublished {
    /// Makes an empty file in `dir`, opened with `flags`.
    pub(super) fn create(
        dir: &Arc<OwnedFd>,
        way: Publishing,
        flags: OFlags,
        mode: Mode,
        dir_mode: Mode,
    ) -> rustix::io::Result<Self> {
        let (file, temporary) = if way.is_unnamed() {
            (openat(dir, ".", flags | OFlags::TMPFILE | OFlags::CLOEXEC, mode)?, None)
        } else {
            let (file, path) = temporary::create(dir, flags, mode, dir_mode)?;
            (file, Some(path))
        };
        Ok(Self { dir: Arc::clone(dir), file: Arc::new(file.into()), way, temporary })
    }

    /// The file, to be written.
    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Gives the file the name `path` below its directory, unless something has that name.
    ///
    /// # Errors
    /// EEXIST when something has; ENOENT when a directory of `path` is missing. Either way it can be tried again.
    pub(super) fn publish(&mut self, path: &str) -> rustix::io::Result<()> {
        match (self.way, &self.temporary) {
            (Publishing::LinkDescriptor, _) => linkat(&self.file, "", &self.dir, path, AtFlags::EMPTY_PATH),
            (Publishing::Rename, Some(temporary)) => {
                renameat_with(&self.dir, temporary.as_str(), &self.dir, path, RenameFlags::NOREPLACE)?;
                self.temporary = None;
                Ok(())
            }
            (Publishing::LinkName, Some(temporary)) => {
                // The first name goes when this is dropped.
                linkat(&self.dir, temporary.as_str(), &self.dir, path, AtFlags::empty())
            }
            _ => {
                let descriptor = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                linkat(CWD, descriptor, &self.dir, path, AtFlags::SYMLINK_FOLLOW)
            }
        }
    }
}

impl Drop for Unpublished {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // What can't be removed now is stale once this process is gone.
            let _ = unlinkat(&self.dir, temporary.as_str(), AtFlags::empty());
        }
    }
}

/// Moves a file below `dir` to a name that nothing has.
///
/// # Errors
/// EEXIST when something has the name; ENOENT when there is no file to move.
pub(super) fn move_without_replacing(dir: &OwnedFd, from: &str, to: &str) -> rustix::io::Result<()> {
    match renameat_with(dir, from, dir, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            linkat(dir, from, dir, to, AtFlags::empty())?;
            unlinkat(dir, from, AtFlags::empty())
        }
        moved => moved,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn every_way_publishes_once_and_leaves_nothing() {
        for way in Publishing::ALL {
            let place = tempfile::tempdir().unwrap();
            let dir = Arc::new(rustix::fs::open(place.path(), OFlags::PATH, Mode::empty()).unwrap());
            let create = || Unpublished::create(&dir, way, OFlags::WRONLY, Mode::RWXU, Mode::RWXU).unwrap();
            let listed = || {
                std::fs::read_dir(place.path()).unwrap().filter(|e| e.as_ref().unwrap().file_name() != ".tmp").count()
            };

            let mut first = create();
            first.file().as_ref().write_all(b"first").unwrap();
            assert_eq!(listed(), 0, "{way:?}: nothing is visible before");
            assert_eq!(first.publish("sub/block"), Err(Errno::NOENT), "{way:?}");
            std::fs::create_dir(place.path().join("sub")).unwrap();
            first.publish("sub/block").unwrap();
            drop(first);

            let mut second = create();
            second.file().as_ref().write_all(b"second").unwrap();
            assert_eq!(second.publish("sub/block"), Err(Errno::EXIST), "{way:?}");
            drop(second);
            drop(create());
            assert_eq!(std::fs::read(place.path().join("sub/block")).unwrap(), b"first", "{way:?}");
            let left = std::fs::read_dir(place.path().join(".tmp")).map_or(0, Iterator::count);
            assert_eq!((listed(), left), (1, 0), "{way:?}");
        }
    }

    #[test]
    fn moving_never_replaces() {
        let place = tempfile::tempdir().unwrap();
        let dir = rustix::fs::open(place.path(), OFlags::PATH, Mode::empty()).unwrap();
        std::fs::write(place.path().join("a"), "a").unwrap();
        std::fs::write(place.path().join("b"), "b").unwrap();
        assert_eq!(move_without_replacing(&dir, "a", "b"), Err(Errno::EXIST));
        assert_eq!(move_without_replacing(&dir, "missing", "c"), Err(Errno::NOENT));
        move_without_replacing(&dir, "a", "c").unwrap();
        assert_eq!(std::fs::read(place.path().join("c")).unwrap(), b"a");
    }
}
