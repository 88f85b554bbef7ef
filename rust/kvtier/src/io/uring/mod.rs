//! An IO engine whose transfers go through rings of `io_uring`: a thread per ring keeps many of them under way.
//!
//! ```text
//! submit ──▶ mailbox ──▶ ring thread ◀──▶ kernel
//!              (eventfd wakes it)  │  submit_and_wait
//!                                  ├──▶ brief work: there and then
//!                                  └──▶ work that may block: task threads
//! ```
//! A ring is made, used and closed by its own thread, which waits in the kernel for whatever comes first: an end of a
//! transfer, or the eventfd by which new work is announced. Brief work (see [`Completion::brief`]) runs on that thread, and
//! what it submits goes into the same ring without another thread being woken: on a busy tier, one thread begins blocks,
//! waits for many at a time and verifies them. It sees to the ring between a few pieces of work, so that the device always
//! has something to do. Work that may block runs on the threads of a [`ThreadEngine`].
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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use self::ring::{Mail, Mailbox, Posted};
use super::threads::contained;
use super::{Completion, IoEngine, Task, ThreadEngine, Transfer};
use crate::buffer::Region;
use crate::error::Result;
use crate::process::Home;

pub use probe::availability;

/// Rings for transfers and brief work, and threads for everything else. See the [module](self).
pub struct UringEngine {
    tasks: Arc<ThreadEngine>,
    rings: Vec<Arc<Mailbox>>,
    /// Whose turn it is.
    next: AtomicUsize,
    depth: usize,
    /// In a forked child there are no ring threads, and their locks may be held for ever.
    home: Home,
}

impl UringEngine {
    /// Transfers under way at the same time, by default: more than devices need to be busy, and as many as an engine
    /// hands out by default twice over.
    pub const DEPTH: usize = 128;

    /// Rings on this machine, by default. One thread verifies more bytes than most devices deliver, and each further one
    /// has to be woken; so only many cores have more than one.
    pub fn rings() -> usize {
        thread::available_parallelism().map_or(1, |cores| (cores.get() / 4).clamp(1, 4))
    }

    /// Starts that many rings (at least one) for `depth` transfers together, on threads of that name; work that may block
    /// runs on `tasks`, which end with this engine.
    ///
    /// # Errors
    /// `Unavailable` when a ring can't be had, with what is in the way; `tasks` are as they were then.
    pub fn start(name: &str, tasks: Arc<ThreadEngine>, rings: usize, depth: usize) -> Result<Arc<Self>> {
        let depth = depth.clamp(1, ring::MOST_DEPTH);
        let count = rings.max(1);
        let mut rings: Vec<Arc<Mailbox>> = Vec::with_capacity(count);
        for number in 0..count {
            match ring::start(&format!("{name}-{number}"), &tasks, depth.div_ceil(count)) {
                Ok(ring) => rings.push(ring),
                Err(error) => {
                    // The tasks go on: whoever has none of the rings makes transfers by them.
                    for ring in &rings {
                        drop(ring.close());
                    }
                    return Err(error);
                }
            }
        }
        Ok(Arc::new(Self { tasks, rings, next: AtomicUsize::new(0), depth, home: Home::here() }))
    }

    /// The ring that is next.
    fn turn(&self) -> &Arc<Mailbox> {
        &self.rings[self.next.fetch_add(1, Ordering::Relaxed) % self.rings.len()]
    }

    fn post(&self, to: &Mailbox, mail: Mail) {
        match to.post(mail) {
            Posted::Taken => {}
            Posted::Stopped(mail) => contained(|| mail.cancel()),
            // The ring is gone, and said so in the log.
            Posted::NoRing(Mail::Transfer(transfer, done)) => self.tasks.submit(transfer, done),
            Posted::NoRing(Mail::Task(task)) => self.tasks.spawn(task),
        }
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

    fn brief_threads(&self) -> usize {
        self.rings.len()
    }

    fn completes_later(&self) -> bool {
        true
    }

    fn spawn(&self, task: Task) {
        self.tasks.spawn(task);
    }

    fn spawn_brief(&self, task: Task) {
        let own = self.rings.iter().find(|ring| ring.has_time_here());
        self.post(own.unwrap_or_else(|| self.turn()), Mail::Task(task));
    }

    fn submit(&self, transfer: Transfer, done: Completion) {
        let own = self.rings.iter().find(|ring| ring.is_served_here());
        self.post(own.unwrap_or_else(|| self.turn()), Mail::Transfer(transfer, done));
    }

    fn register(&self, _rows: &Arc<Region>) -> Result<()> {
        Ok(())
    }

    fn stop(&self, timeout: Duration) -> usize {
        let until = Instant::now().checked_add(timeout);
        for mail in self.rings.iter().flat_map(|ring| ring.close()) {
            contained(|| mail.cancel());
        }
        // Waiting tasks are dropped; what the rings still end is completed on their own threads from here on.
        self.tasks.stop(Duration::ZERO);
        let stuck = self.rings.iter().filter(|ring| !ring.wait_for_end(until)).count();
        let left = until.map_or(timeout, |until| until.saturating_duration_since(Instant::now()));
        stuck + self.tasks.stop(left)
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
        let (rings, threads) = (self.rings.len(), self.tasks.threads());
        write!(f, "UringEngine({} transfers, {rings} rings, {threads} threads)", self.depth)
    }
}
