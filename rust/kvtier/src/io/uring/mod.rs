//! An IO engine whose transfers go through a ring of `io_uring`: one thread keeps many of them under way.
//!
//! ```text
//! submit ──▶ mailbox ──▶ ring thread ──▶ kernel ──▶ ring thread ──▶ task threads ──▶ completion
//!              (eventfd wakes it)     submit_and_wait
//! ```
//! The ring is made, used and closed by its own thread, which waits in the kernel for whatever comes first: an end of a
//! transfer, or the eventfd by which new ones are announced. Completions may block, and verify checksums, so they run on
//! the threads of a [`ThreadEngine`], as tasks do.
//!
//! A transfer's memory belongs to the ring thread's table from the moment that the kernel knows its address until the
//! kernel says that it is done. Nothing takes it out earlier: not an error, not a stop, not the end of the thread, which
//! would rather leak it. Rows are not registered with the kernel: that would pin them, far beyond the usual limit of
//! locked memory (8 MiB), and scratch memory is a page per transfer beside a row, or costs a copy anyway.

mod probe;
mod ring;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::ring::{Mailbox, Posted};
use super::{Completion, IoEngine, Task, ThreadEngine, Transfer};
use crate::buffer::Region;
use crate::error::Result;
use crate::process::Home;

pub use probe::availability;

/// One ring for transfers, and threads for everything else. See the [module](self).
pub struct UringEngine {
    tasks: Arc<ThreadEngine>,
    mailbox: Arc<Mailbox>,
    depth: usize,
    /// In a forked child there is no ring thread, and its lock may be held for ever.
    home: Home,
}

impl UringEngine {
    /// Transfers under way at the same time, by default: more than devices need to be busy, and as many as an engine
    /// hands out by default twice over.
    pub const DEPTH: usize = 128;

    /// Starts a ring for `depth` transfers (at least one), on a thread of that name; tasks and completions run on
    /// `tasks`, which end with this engine.
    ///
    /// # Errors
    /// `Unavailable` when a ring can't be had, with what is in the way.
    pub fn start(name: &str, tasks: Arc<ThreadEngine>, depth: usize) -> Result<Arc<Self>> {
        let depth = depth.clamp(1, ring::MOST_DEPTH);
        let mailbox = ring::start(name, &tasks, depth)?;
        Ok(Arc::new(Self { tasks, mailbox, depth, home: Home::here() }))
    }
}

impl IoEngine for UringEngine {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn threads(&self) -> usize {
        self.tasks.threads()
    }

    fn spawn(&self, task: Task) {
        self.tasks.spawn(task);
    }

    fn submit(&self, transfer: Transfer, done: Completion) {
        match self.mailbox.post(transfer, done) {
            Posted::Taken => {}
            Posted::Stopped(transfer, done) => done(transfer.cancelled()),
            // The ring is gone, and said so in the log.
            Posted::NoRing(transfer, done) => self.tasks.submit(transfer, done),
        }
    }

    fn register(&self, _rows: &Arc<Region>) -> Result<()> {
        Ok(())
    }

    fn stop(&self, timeout: Duration) -> usize {
        let until = Instant::now().checked_add(timeout);
        for (transfer, done) in self.mailbox.close() {
            done(transfer.cancelled());
        }
        // Waiting tasks are dropped; what the ring still ends is completed on its own thread from here on.
        self.tasks.stop(Duration::ZERO);
        let ring = usize::from(!self.mailbox.wait_for_end(until));
        let left = until.map_or(timeout, |until| until.saturating_duration_since(Instant::now()));
        ring + self.tasks.stop(left)
    }
}

impl Drop for UringEngine {
    fn drop(&mut self) {
        if self.home.is_surely_here() {
            self.stop(Duration::ZERO);
        }
    }
}

impl fmt::Debug for UringEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UringEngine({} transfers, {} threads)", self.depth, self.tasks.threads())
    }
}
