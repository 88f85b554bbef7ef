//! Loading: read, verify, and look twice before calling a block bad.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, openat};
use rustix::io::{Errno, pread};

use super::heal::FileId;
use super::{Files, Route, is_file, no_file};
use crate::buffer::{IoMemory, RowLease};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::TRAILER_BYTES;
use crate::io::{Completion, Direction, Transfer, Transferred};
use crate::layout::BlockKey;
use crate::store::{Done, Loaded, check_target};

/// How many files that replaced each other under the block's name are read before the load gives up.
const MOST_FILES: usize = 4;

/// A load under way.
struct Load {
    files: Arc<Files>,
    key: BlockKey,
    /// The file that has failed already.
    suspect: Option<Opened>,
    attempts: usize,
    done: Done<Loaded>,
}

/// An open block file, or what has its name.
pub(super) struct Opened {
    file: Arc<File>,
    pub(super) id: FileId,
    pub(super) length: i64,
    /// Whether it takes direct transfers.
    direct: bool,
}

/// How one attempt ended.
enum Outcome {
    Good,
    /// The file is proven bad; the row can be filled again.
    Bad(RowLease, Error),
    /// Nothing is proven about the file.
    Failed(Error),
}

impl Files {
    pub(super) fn load(self: &Arc<Self>, key: BlockKey, row: RowLease, done: Done<Loaded>) {
        let load = Load { files: Arc::clone(self), key, suspect: None, attempts: 0, done };
        match check_target(&row, &self.config.format) {
            Ok(()) => load.attempt(row),
            Err(error) => load.end(Err(error)),
        }
    }

    fn open_block(&self, key: &BlockKey, direct: bool) -> Result<Opened> {
        let open = |flags| Opened::at(&self.root, &self.below_root(key), flags);
        match direct.then(|| open(OFlags::DIRECT)) {
            Some(Err(error)) if error.os_code() == Some(Errno::INVAL.raw_os_error()) => {
                self.direct.turn_off();
                open(OFlags::empty())
            }
            Some(opened) => Ok(Opened { direct: true, ..opened? }),
            None => open(OFlags::empty()),
        }
    }

    /// Why a file of this length is no block.
    pub(super) fn wrong_length(&self, opened: &Opened) -> Error {
        let length = u64::try_from(opened.length).unwrap_or_default();
        let last_page = length.checked_sub(TRAILER_BYTES as u64).and_then(|at| read_page(&opened.file, at));
        self.config.format.wrong_length(length, last_page.as_ref())
    }
}

impl Opened {
    /// Opens what has a block's name, for reading.
    ///
    /// # Errors
    /// `Missing`; `Foreign` for what is no file, such as a symbolic link, wherever it leads; the system's.
    pub(super) fn at(dir: impl AsFd, path: &str, flags: OFlags) -> Result<Self> {
        // A FIFO under the block's name would make a plain open wait for its writer.
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let file = openat(dir, path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR => Error::new(ErrorKind::Missing, "no block under that key"),
            Errno::LOOP => no_file(),
            _ => Error::from_io("opening the block", errno.into()),
        })?;
        let stat = fstat(&file).map_err(|e| Error::from_io("asking for the block's length", e.into()))?;
        if !is_file(&stat) {
            return Err(no_file());
        }
        Ok(Self { file: Arc::new(file.into()), id: FileId::of(&stat), length: stat.st_size, direct: false })
    }
}

impl Load {
    fn attempt(mut self, row: RowLease) {
        self.attempts += 1;
        let files = Arc::clone(&self.files);
        // What proves a block bad is read into memory that nobody else can reach: a row that is changed while it is being
        // filled, by a mistake in the engine, must not cost a good file.
        let route = files.route(&row, files.reads_into_rows && self.suspect.is_none());
        let opened = match files.open_block(&self.key, route.is_direct()) {
            Ok(opened) => opened,
            Err(error) => return self.end(Err(error)),
        };
        if opened.length != files.block_len() {
            let error = files.wrong_length(&opened);
            return self.judge(opened, Outcome::Bad(row, error));
        }
        let (memory, row) = match self.memory(route, row) {
            Ok(memory) => memory,
            Err(error) => return self.end(Err(error)),
        };
        let transfer = Transfer { file: Arc::clone(&opened.file), offset: 0, direction: Direction::Read, memory };
        let direct = opened.direct;
        let finish = move |ended| {
            let outcome = self.examine(ended, row);
            self.judge(opened, outcome);
        };
        files.submit(direct, transfer, Completion::new(finish));
    }

    /// What the transfer fills, and the row if it is filled later.
    fn memory(&self, route: Route, row: RowLease) -> Result<(IoMemory, Option<RowLease>)> {
        let format = &self.files.config.format;
        match route {
            Route::RowDirect | Route::RowBuffered => {
                let memory = IoMemory::target(row.enter()?)?;
                match format.tail_bytes() {
                    0 => Ok((memory, None)),
                    tail_bytes => Ok((memory.followed_by(self.files.tails.take()?, tail_bytes), None)),
                }
            }
            Route::ScratchDirect | Route::ScratchBuffered => {
                let block = self.files.blocks.take()?;
                Ok((IoMemory::scratch(block, format.block_bytes()), Some(row)))
            }
        }
    }

    /// Verifies what was read, and fills the row if that was not the transfer's target.
    fn examine(&self, ended: Transferred, row: Option<RowLease>) -> Outcome {
        match self.verify(ended, row) {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Failed(error),
        }
    }

    fn verify(&self, ended: Transferred, row: Option<RowLease>) -> Result<Outcome> {
        let (format, verify) = (&self.files.config.format, self.files.config.verify);
        ended.result.map_err(|e| Error::from_io("reading the block", e))?;
        let read = ended.memory.done_bytes();
        let complete = format.check_length(read as u64);
        let (access, scratch) = ended.memory.into_parts();
        let scratch = scratch.as_deref().unwrap_or_default();
        match (access, row) {
            (Some(access), _) => {
                let tail = &scratch[..format.tail_bytes()];
                let good = complete.and_then(|()| format.verify(self.key, access.segments(), tail, verify));
                let row = access.leave()?;
                Ok(good.map_or_else(|error| Outcome::Bad(row, error), |()| Outcome::Good))
            }
            (None, Some(row)) => {
                let (payload, tail) = scratch[..format.block_bytes()].split_at(format.payload_bytes());
                if let Err(error) = complete.and_then(|()| format.verify(self.key, [payload], tail, verify)) {
                    return Ok(Outcome::Bad(row, error));
                }
                let mut access = row.enter()?;
                access.copy_from(payload)?;
                access.leave()?;
                Ok(Outcome::Good)
            }
            (None, None) => Err(Error::new(ErrorKind::Internal, "a load without a row")),
        }
    }

    fn judge(mut self, opened: Opened, outcome: Outcome) {
        let bytes = self.files.config.format.payload_bytes() as u64;
        let (row, error) = match outcome {
            Outcome::Good => return self.end(Ok(Loaded { bytes })),
            Outcome::Failed(error) => return self.end(Err(error)),
            Outcome::Bad(row, error) => (row, error),
        };
        if !error.kind().is_proof_of_damage() {
            return self.end(Err(error));
        }
        // The proof must be about the file that has the name now. The suspect is held open, so an equal id means that
        // it is the same file.
        if self.suspect.as_ref().is_some_and(|suspect| suspect.id == opened.id) {
            if !self.files.config.read_only {
                self.files.remove_bad(&self.key, opened.id, error.kind());
            }
            return self.end(Err(error));
        }
        if self.attempts > MOST_FILES {
            let message = "the files under the block's name replace each other faster than they can be read";
            return self.end(Err(Error::new(ErrorKind::Missing, message)));
        }
        self.suspect = Some(opened);
        self.attempt(row);
    }

    fn end(self, answer: Result<Loaded>) {
        let Self { files, key, done, .. } = self;
        done.give(answer.map_err(|e| files.about(&key, e)));
    }
}

/// A page of a file, through the page cache; `None` when it can't be had.
fn read_page(file: &File, at: u64) -> Option<[u8; TRAILER_BYTES]> {
    fcntl_setfl(file, fcntl_getfl(file).ok()? - OFlags::DIRECT).ok()?;
    let mut page = [0; TRAILER_BYTES];
    (pread(file, &mut page, at).ok()? == page.len()).then_some(page)
}
