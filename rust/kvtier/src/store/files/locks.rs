//! Locks on files: who uses a namespace, and whether the writer of a temporary file still lives.
//!
//! All are `flock` locks. They belong to an open file, so they vanish with the last process that has it open, however
//! that process ends.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, ftruncate, openat};
use rustix::io::Errno;
use rustix::system::uname;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

/// What trying to lock a file came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// It is locked now.
    Locked,
    /// Somebody else has a lock that conflicts.
    Held,
    /// The file system has no locks.
    Unsupported,
}

/// Tries to lock `file` without waiting.
pub(super) fn try_lock(file: impl AsFd, operation: FlockOperation) -> rustix::io::Result<Attempt> {
    match flock(file, operation) {
        Ok(()) => Ok(Attempt::Locked),
        Err(Errno::WOULDBLOCK) => Ok(Attempt::Held),
        Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => Ok(Attempt::Unsupported),
        Err(errno) => Err(errno),
    }
}

/// Whether files such as `sample`, which nobody else knows of, can be locked.
pub(super) fn supported(sample: impl AsFd) -> bool {
    matches!(try_lock(&sample, FlockOperation::NonBlockingLockExclusive), Ok(Attempt::Locked))
        && flock(sample, FlockOperation::Unlock).is_ok()
}

/// A store's claim on a namespace: shared with others, or exclusive.
///
/// Every store that can write has one, so an exclusive claim excludes all of them. The lock file lies beside
/// `config.json`, where a reset leaves it.
#[derive(Debug, Default)]
pub(super) struct Claim(Mutex<Option<OwnedFd>>);

impl Claim {
    /// Takes the claim by locking the file `name` in `dir`.
    ///
    /// # Errors
    /// `Unavailable` when another store's claim is in the way, `Config` when an exclusive claim is wanted and the file
    /// system has no locks.
    pub(super) fn take(dir: &OwnedFd, name: &str, exclusive: bool, mode: Mode) -> Result<Self> {
        let file = open_lock_file(dir, name, mode).map_err(|e| Error::from_io("opening the lock file", e.into()))?;
        let operation =
            if exclusive { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
        match try_lock(&file, operation).map_err(|e| Error::from_io("locking the namespace", e.into()))? {
            Attempt::Locked => {
                // A note for whoever is refused; the lock is what counts.
                let note = if exclusive { this_process() } else { String::new() };
                let _ = ftruncate(&file, 0).and_then(|()| rustix::io::pwrite(&file, note.as_bytes(), 0));
                Ok(Self(Mutex::new(Some(file))))
            }
            Attempt::Held => Err(refused(file, exclusive)),
            Attempt::Unsupported if exclusive => Err(Error::new(
                ErrorKind::Config,
                "exclusive=True can't be promised here: the file system has no locks",
            )),
            Attempt::Unsupported => Ok(Self::default()),
        }
    }

    /// Gives the claim up, also for children that have inherited the lock file.
    pub(super) fn release(&self) {
        if let Some(file) = self.0.lock().take() {
            let _ = flock(file, FlockOperation::Unlock);
        }
    }

    /// In a forked child: closes the child's copy of the lock file, which would keep the parent's claim alive after the
    /// parent's end. Never waits.
    pub(super) fn abandon(&self) {
        if let Some(mut file) = self.0.try_lock() {
            drop(file.take());
        }
    }
}

fn open_lock_file(dir: &OwnedFd, name: &str, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::CLOEXEC;
    match openat(dir, name, flags | OFlags::RDWR, mode) {
        // Somebody else's file; most file systems lock through any descriptor.
        Err(Errno::ACCESS) => openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()),
        opened => opened,
    }
}

fn refused(file: OwnedFd, exclusive: bool) -> Error {
    // Shared claims leave no note, and while an exclusive one is held, no shared one can be had.
    let by_sharers = exclusive && matches!(try_lock(&file, FlockOperation::NonBlockingLockShared), Ok(Attempt::Locked));
    if by_sharers {
        let message = "exclusive=True is refused: the namespace is open in another tier";
        return Error::new(ErrorKind::Unavailable, message);
    }
    let mut note = String::new();
    let error = Error::new(ErrorKind::Unavailable, "the namespace is open exclusively in another tier");
    match File::from(file).take(1024).read_to_string(&mut note) {
        Ok(n) if n > 0 => error.with("holder", note.trim()),
        _ => error,
    }
}

fn this_process() -> String {
    format!("process {} on host {}\n", std::process::id(), uname().nodename().to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir_of(dir: &tempfile::TempDir) -> OwnedFd {
        rustix::fs::open(dir.path(), OFlags::PATH, Mode::empty()).unwrap()
    }

    fn claim(dir: &tempfile::TempDir, exclusive: bool) -> Result<Claim> {
        Claim::take(&dir_of(dir), "lock_r0", exclusive, Mode::from_raw_mode(0o600))
    }

    #[test]
    fn an_exclusive_claim_excludes_all_others_and_names_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let held = claim(&dir, true).unwrap();
        for exclusive in [true, false] {
            let refused = claim(&dir, exclusive).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
            let holder = refused.fact("holder").unwrap();
            assert!(holder.starts_with(&format!("process {} on host", std::process::id())), "{holder}");
        }
        held.release();
        claim(&dir, false).unwrap();
    }

    #[test]
    fn shared_claims_exclude_exclusive_ones_only() {
        let dir = tempfile::tempdir().unwrap();
        // A note that a killed holder has left must not be taken for the sharer's.
        drop(claim(&dir, true).unwrap());
        let (a, _b) = (claim(&dir, false).unwrap(), claim(&dir, false).unwrap());
        a.release();
        let refused = claim(&dir, true).unwrap_err();
        assert!(refused.to_string().contains("open in another tier"), "{refused}");
        assert_eq!(refused.fact("holder"), None);
    }
}
