//! Storing: check, frame, write, publish.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{AtFlags, OFlags, fdatasync, mkdirat, statat};
use rustix::io::Errno;

use super::heal::FileId;
use super::publish::Unpublished;
use super::root::flush_dir;
use super::{Files, Route, is_file, no_file};
use crate::buffer::{IoMemory, RowLease};
use crate::config::Durability;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Completion, Direction, Transfer, Transferred};
use crate::layout::{BlockKey, BlockPath};
use crate::store::{Done, Location, Stored, check_source};

/// How often publishing goes on after finding a file of the wrong length under the block's name.
const MOST_REPLACED: usize = 3;

/// A block on its way into a file.
struct Write {
    key: BlockKey,
    path: BlockPath,
    /// The namespace's directory, as it was when the operation began.
    dir: Arc<OwnedFd>,
    file: Unpublished,
    /// The row, where the transfer doesn't hold it: it was copied.
    row: Option<RowLease>,
}

impl Files {
    pub(super) fn store(self: &Arc<Self>, key: BlockKey, row: RowLease, done: Done<Stored>) {
        match self.begin(key, row) {
            Err(error) => done.give(Err(self.about(&key, error))),
            Ok(None) => done.give(Ok(Stored { location: Location::default(), bytes: 0 })),
            Ok(Some((write, memory, direct))) => {
                let file = Arc::clone(write.file.file());
                let this = Arc::clone(self);
                let transfer = Transfer { file, offset: 0, direction: Direction::Write, memory };
                let finish = move |ended| {
                    let stored = this.finish(write, ended).map_err(|e| this.about(&key, e));
                    done.give(stored.map(|bytes| Stored { location: Location::default(), bytes }));
                };
                self.submit(direct, transfer, Completion::new(finish));
            }
        }
    }

    /// Everything before the transfer, and whether it is direct; `None` when the block is there already.
    fn begin(&self, key: BlockKey, row: RowLease) -> Result<Option<(Write, IoMemory, bool)>> {
        if self.config.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the tier was opened read-only"));
        }
        check_source(&row, &self.config.format)?;
        let dir = Arc::new(self.open_or_make_blocks_dir()?);
        if self.is_stored(&dir, &key)? {
            return Ok(None);
        }
        let route = self.route(&row, true);
        let (memory, row) = match route {
            Route::RowDirect | Route::RowBuffered => (self.sealed_row(key, row)?, None),
            Route::ScratchDirect | Route::ScratchBuffered => {
                let (memory, row) = self.sealed_copy(key, row)?;
                (memory, Some(row))
            }
        };
        let (file, direct) = self.create(&dir, route.is_direct())?;
        Ok(Some((Write { key, path: key.path(), dir, file, row }, memory, direct)))
    }

    /// An unpublished file, and whether it takes direct transfers.
    fn create(&self, dir: &Arc<OwnedFd>, direct: bool) -> Result<(Unpublished, bool)> {
        let create = |flags| {
            let flags = flags | OFlags::WRONLY;
            Unpublished::create(dir, self.publishing, flags, self.file_mode(), self.dir_mode())
        };
        let created = match direct.then(|| create(OFlags::DIRECT)) {
            Some(Err(Errno::INVAL)) => {
                self.direct.turn_off();
                create(OFlags::empty()).map(|file| (file, false))
            }
            Some(created) => created.map(|file| (file, true)),
            None => create(OFlags::empty()).map(|file| (file, false)),
        };
        created.map_err(|e| failed("making a file", e))
    }

    /// Everything after the transfer. Returns the bytes of payload that moved.
    fn finish(&self, write: Write, ended: Transferred) -> Result<u64> {
        ended.result.map_err(|e| Error::from_io("writing the block", e))?;
        if ended.memory.left_bytes() > 0 {
            let (done, all) = (ended.memory.done_bytes(), ended.memory.total_bytes());
            return Err(Error::new(ErrorKind::Io, format!("only {done} of {all} bytes could be written")));
        }
        if self.config.durability != Durability::None {
            fdatasync(write.file.file()).map_err(|e| failed("flushing the block", e))?;
        }
        // Open still, so the engine had not reused the row when its last byte was read.
        if !write.row.as_ref().or(ended.memory.source_lease()).is_some_and(RowLease::is_open) {
            return Err(Error::new(ErrorKind::Timeout, "the operation was over before the block was complete"));
        }
        self.publish(write)
    }

    fn publish(&self, mut write: Write) -> Result<u64> {
        for _ in 0..MOST_REPLACED {
            match self.publish_making_dirs(&mut write) {
                Ok(made_dirs) => {
                    if self.config.durability == Durability::Full {
                        flush_dirs(&write, made_dirs).map_err(|e| failed("flushing the block's directory", e))?;
                    }
                    return Ok(self.config.format.payload_bytes() as u64);
                }
                Err(Errno::EXIST) if self.is_stored(&write.dir, &write.key)? => return Ok(0),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed("publishing the block", errno)),
            }
        }
        Err(Error::new(ErrorKind::Io, "files of the wrong length keep appearing under the block's name"))
    }

    /// Returns whether directories had to be made.
    fn publish_making_dirs(&self, write: &mut Write) -> rustix::io::Result<bool> {
        match write.file.publish(write.path.as_str()) {
            Err(Errno::NOENT) => {}
            published => return published.map(|()| false),
        }
        for dir in parents(&write.path) {
            match mkdirat(&write.dir, dir, self.dir_mode()) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        write.file.publish(write.path.as_str()).map(|()| true)
    }

    /// Whether the block is there. A file of the wrong length under its name is none, and makes room, unless it is a
    /// newer format's.
    fn is_stored(&self, dir: &OwnedFd, key: &BlockKey) -> Result<bool> {
        let found = match statat(dir, key.path().as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
            Err(errno) => return Err(failed("looking for the block", errno)),
        };
        if !is_file(&found) {
            return Err(no_file());
        }
        if found.st_size == self.block_len() {
            return Ok(true);
        }
        self.remove_if_still_wrong_length(dir, key, FileId::of(&found))?;
        Ok(false)
    }

    fn open_or_make_blocks_dir(&self) -> Result<OwnedFd> {
        let opened = match self.open_blocks_dir() {
            Err(Errno::NOENT) => match mkdirat(&self.root, self.blocks_dir.as_str(), self.dir_mode()) {
                Ok(()) if self.config.durability == Durability::Full => {
                    self.root.flush().and_then(|()| self.open_blocks_dir())
                }
                Ok(()) | Err(Errno::EXIST) => self.open_blocks_dir(),
                Err(errno) => Err(errno),
            },
            opened => opened,
        };
        opened.map_err(|errno| match errno {
            Errno::NOENT => Error::new(ErrorKind::Unavailable, "the root directory was removed"),
            _ => failed("opening the namespace", errno),
        })
    }

    /// The row, followed by its tail.
    fn sealed_row(&self, key: BlockKey, row: RowLease) -> Result<IoMemory> {
        let format = &self.config.format;
        let access = row.enter()?;
        if format.tail_bytes() == 0 {
            return Ok(IoMemory::source(access.leave()?));
        }
        let mut tail = self.tails.take()?;
        format.seal(key, access.segments(), SystemTime::now(), &mut tail[..format.tail_bytes()]);
        Ok(IoMemory::source(access.leave()?).followed_by(tail, format.tail_bytes()))
    }

    /// A copy of the row with its tail, and the row.
    fn sealed_copy(&self, key: BlockKey, row: RowLease) -> Result<(IoMemory, RowLease)> {
        let format = &self.config.format;
        let mut block = self.blocks.take()?;
        let (payload, tail) = block[..format.block_bytes()].split_at_mut(format.payload_bytes());
        let access = row.enter()?;
        access.copy_to(payload)?;
        let row = access.leave()?;
        format.seal(key, [&*payload], SystemTime::now(), tail);
        Ok((IoMemory::scratch(block, format.block_bytes()), row))
    }
}

fn failed(what: &str, errno: Errno) -> Error {
    match errno {
        Errno::NOENT => Error::new(ErrorKind::Reset, "the namespace was reset or removed while the block was stored"),
        _ => Error::from_io(what, errno.into()),
    }
}

/// Makes the block's name durable: in its directory, and where that is new, in those above.
fn flush_dirs(write: &Write, made_dirs: bool) -> rustix::io::Result<()> {
    let [outer, inner] = parents(&write.path);
    let dirs = if made_dirs { &[inner, outer, "."][..] } else { &[inner] };
    dirs.iter().try_for_each(|dir| flush_dir(&write.dir, dir))
}

/// The two directories of a block's path, the outer one first.
fn parents(path: &BlockPath) -> [&str; 2] {
    let inner = path.split().0;
    [inner.split('/').next().unwrap_or(inner), inner]
}
