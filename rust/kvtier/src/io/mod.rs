//! How bytes move: one completion-based trait, so that threads with `preadv`/`pwritev` and `io_uring` are the same to a
//! store.
//!
//! An [`IoEngine`] runs two kinds of work: transfers ([`IoEngine::submit`]), and tasks that may block in system calls
//! which have no asynchronous form, such as opening and linking files ([`IoEngine::spawn`]). Work that never blocks is
//! *brief*, and said to be: an engine that waits for many transfers on one thread does it there, which spares handing it
//! to another thread and waking that. An engine never sees a key.

mod choice;
mod direct;
mod filesystem;
mod inherited;
mod runtime;
#[cfg(test)]
mod tests;
mod threads;
pub mod uring;

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::buffer::{IoMemory, Region};
use crate::error::Result;

pub use choice::engine_for;
pub use direct::DirectIo;
pub use filesystem::FileSystem;
pub(crate) use inherited::let_go_in_child;
pub use runtime::Runtime;
pub use threads::ThreadEngine;
pub use uring::UringEngine;

/// Work for a thread of an engine.
pub type Task = Box<dyn FnOnce() + Send>;

/// What happens when a transfer has ended: gets the memory back, and how many bytes moved.
pub struct Completion {
    run: Box<dyn FnOnce(Transferred) + Send>,
    is_brief: bool,
}

impl Completion {
    /// One that may block in system calls.
    pub fn new(run: impl FnOnce(Transferred) + Send + 'static) -> Self {
        Self { run: Box::new(run), is_brief: false }
    }

    /// One that is brief: it computes and takes locks that nobody holds across IO, so that an engine may call it where it
    /// waits for other transfers.
    pub fn brief(run: impl FnOnce(Transferred) + Send + 'static) -> Self {
        Self { run: Box::new(run), is_brief: true }
    }

    /// Calls it.
    pub fn call(self, ended: Transferred) {
        (self.run)(ended);
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file into memory.
    Read,
    /// From memory into the file.
    Write,
}

/// One vectored transfer at a position of a file.
#[derive(Debug)]
pub struct Transfer {
    /// The file, open until the transfer has ended.
    pub file: Arc<File>,
    /// Where in the file the first byte lies.
    pub offset: u64,
    /// Which way.
    pub direction: Direction,
    /// What to fill or to write.
    pub memory: IoMemory,
}

impl Transfer {
    /// The end of a transfer that was not begun, or not finished, before the engine was stopped.
    fn cancelled(self) -> Transferred {
        Transferred { memory: self.memory, result: Err(Errno::CANCELED.into()) }
    }
}

/// A transfer that has ended.
#[derive(Debug)]
pub struct Transferred {
    /// The transfer's memory. `memory.done_bytes()` is how much moved: all of it, or less at the end of the file.
    pub memory: IoMemory,
    /// The error that ended the transfer early. Short transfers and interruptions are no errors: engines go on.
    pub result: io::Result<()>,
}

/// Moves bytes between files and memory.
pub trait IoEngine: Send + Sync + 'static {
    /// `"threads"` or `"uring"`.
    fn name(&self) -> &'static str;

    /// How many transfers make progress at the same time.
    fn depth(&self) -> usize;

    /// How many threads run tasks and completions.
    fn threads(&self) -> usize {
        self.depth()
    }

    /// How many threads run brief work.
    fn brief_threads(&self) -> usize {
        self.threads()
    }

    /// Whether [`IoEngine::submit`] always returns before the transfer has ended.
    fn completes_later(&self) -> bool {
        false
    }

    /// Runs `task`, which may block, on a thread of the engine, as soon as one is free. After [`IoEngine::stop`] it is
    /// dropped unrun.
    fn spawn(&self, task: Task);

    /// As [`IoEngine::spawn`], for a task that is as brief as [`Completion::brief`]. Spawned by such work it runs soon
    /// after it, on the same thread unless that has more of it.
    fn spawn_brief(&self, task: Task) {
        self.spawn(task);
    }

    /// Starts a transfer; `done` is called exactly once, on a thread of the engine. Called from such a thread, the
    /// transfer may be made at once, so that `done` has been called when this returns. A transfer that waits or comes
    /// when the engine is stopped ends with ECANCELED, on the thread that stops or submits.
    fn submit(&self, transfer: Transfer, done: Completion);

    /// Announces rows that transfers will use, for engines that can make use of it.
    ///
    /// # Errors
    /// `Unavailable` when the system refuses; transfers work all the same.
    fn register(&self, rows: &Arc<Region>) -> Result<()>;

    /// Ends the engine: waiting tasks are dropped, running ones are waited for until `timeout`. Returns how many threads
    /// are still stuck in a system call; they end by themselves when it returns.
    fn stop(&self, timeout: Duration) -> usize;
}
