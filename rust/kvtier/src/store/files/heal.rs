//! Taking a block that is proven bad out of the way, and nothing else.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, Stat, mkdirat, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::publish::move_without_replacing;
use super::read::Opened;
use super::{Files, temporary};
use crate::error::{ErrorKind, Result};
use crate::layout::BlockKey;

/// The directory of blocks that failed verification.
pub(super) const QUARANTINE: &str = ".quarantine";

/// Which file it is, whatever it is called. Comparable only while one of the two files is held open: the number of a
/// file that is gone is given to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(super) fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

impl Files {
    /// Takes the file that failed twice as the block of `key`, for the reason `why`, out of the way, if it still has the
    /// block's name. The caller holds that file open.
    ///
    /// Failing at that is no failure of the operation that found the block bad.
    pub(super) fn remove_bad(&self, key: &BlockKey, bad: FileId, why: ErrorKind) {
        let removed = self.open_blocks_dir().and_then(|dir| self.move_aside(&dir, key, bad, why));
        self.warn_unless_gone(key, removed);
    }

    /// The same for a file of the wrong length that stands where a block is to be stored, and that was seen once.
    ///
    /// # Errors
    /// Why the file has to stay: its length is a newer format's, or it can't be looked at.
    pub(super) fn remove_if_still_wrong_length(&self, dir: &OwnedFd, key: &BlockKey, seen: FileId) -> Result<()> {
        // Held open for as long as its number matters.
        let held = match Opened::at(dir, key.path().as_str(), OFlags::empty()) {
            Err(error) if error.kind() == ErrorKind::Missing => return Ok(()),
            held => held?,
        };
        if held.id != seen || held.length == self.block_len() {
            return Ok(());
        }
        let error = self.wrong_length(&held);
        if !error.kind().is_proof_of_damage() {
            return Err(error);
        }
        self.warn_unless_gone(key, self.move_aside(dir, key, seen, error.kind()));
        Ok(())
    }

    fn warn_unless_gone(&self, key: &BlockKey, removed: rustix::io::Result<()>) {
        match removed {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => {
                let path = self.full_path(key);
                self.failed_removals
                    .warn(module_path!(), format_args!("a bad block can't be removed: {errno}: {}", path.display()));
            }
        }
    }

    /// Renames first and looks then, so that a file that got the name meanwhile is never removed.
    fn move_aside(&self, dir: &OwnedFd, key: &BlockKey, bad: FileId, why: ErrorKind) -> rustix::io::Result<()> {
        let path = key.path();
        let aside = if self.config.quarantine {
            make_dir(dir, QUARANTINE, self.dir_mode())?;
            format!("{QUARANTINE}/{}.{why}.{}", path.as_str().replace('/', "_"), temporary::unique_name())
        } else {
            make_dir(dir, temporary::DIR, self.dir_mode())?;
            temporary::unique_path()
        };
        match renameat(dir, path.as_str(), dir, aside.as_str()) {
            Err(Errno::NOENT) => return Ok(()),
            moved => moved?,
        }
        let is_bad = FileId::of(&statat(dir, aside.as_str(), AtFlags::SYMLINK_NOFOLLOW)?) == bad;
        if is_bad {
            let path = self.full_path(key);
            self.removals.warn(
                module_path!(),
                format_args!("removed a block that failed verification ({why}): {}", path.display()),
            );
        } else {
            match move_without_replacing(dir, &aside, path.as_str()) {
                // Yet another file has the name by now: this one is superseded.
                Err(Errno::EXIST) => {}
                moved => return moved,
            }
        }
        if is_bad && self.config.quarantine {
            return Ok(());
        }
        unlinkat(dir, aside.as_str(), AtFlags::empty())
    }
}

fn make_dir(dir: &OwnedFd, name: &str, mode: Mode) -> rustix::io::Result<()> {
    match mkdirat(dir, name, mode) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}
