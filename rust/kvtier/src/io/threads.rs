//! An IO engine of plain threads with `preadv` and `pwritev`: works everywhere, one transfer per thread at a time.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{Errno, preadv, pwritev};

use super::{Completion, Direction, IoEngine, Task, Transfer, Transferred};
use crate::buffer::Region;
use crate::error::{Error, ErrorKind, Result};
use crate::process::Home;
use crate::sync::{Condvar, Mutex};

/// Longer than anybody waits.
const A_LIFETIME: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A fixed number of threads that work through one queue, first come, first served.
///
/// A transfer that is submitted on one of these threads is made there and then, so an operation that opens, moves and
/// publishes runs through on one thread without queueing twice.
pub struct ThreadEngine {
    shared: Arc<Shared>,
    count: usize,
    /// In a forked child there are no threads, and their locks may be held for ever.
    home: Home,
}

struct Shared {
    id: u64,
    state: Mutex<State>,
    /// Something was queued, or the engine stops.
    queued: Condvar,
    /// A thread has ended.
    ended: Condvar,
}

struct State {
    waiting: VecDeque<Job>,
    stopped: bool,
    threads: usize,
    /// Threads that wait for a job: nobody else needs to be woken, which is a system call.
    idle: usize,
}

enum Job {
    Task(Task),
    Transfer(Transfer, Completion),
    /// A transfer that another engine has made.
    Ended(Transferred, Completion),
}

thread_local! {
    /// The engine that this thread works for; 0 for none.
    static WORKS_FOR: Cell<u64> = const { Cell::new(0) };
}

impl ThreadEngine {
    /// Starts `count` threads (at least one) named `<name>-<number>`.
    ///
    /// # Errors
    /// `Unavailable` when the system gives no more threads.
    pub fn start(name: &str, count: usize) -> Result<Arc<Self>> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let count = count.max(1);
        let shared = Arc::new(Shared {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(State { waiting: VecDeque::new(), stopped: false, threads: 0, idle: 0 }),
            queued: Condvar::new(),
            ended: Condvar::new(),
        });
        // Made first, so that its drop ends the threads already started if a later one can't be.
        let engine = Arc::new(Self { shared, count, home: Home::here() });
        for number in 0..count {
            let shared = Arc::clone(&engine.shared);
            shared.state.lock().threads += 1;
            let started = thread::Builder::new().name(format!("{name}-{number}")).spawn(move || shared.work());
            if let Err(e) = started {
                engine.shared.state.lock().threads -= 1;
                let message = format!("thread {} of {count} for input and output can't be started: {e}", number + 1);
                return Err(Error::new(ErrorKind::Unavailable, message).with_source(e));
            }
        }
        Ok(engine)
    }

    /// Completes transfers that another engine has made, as if this one had; empties the list. Once stopped, they are
    /// completed on the calling thread.
    pub(super) fn complete(&self, ended: &mut Vec<(Transferred, Completion)>) {
        self.shared.queue_all(ended.drain(..).map(|(ended, done)| Job::Ended(ended, done)));
    }

    /// Queues a transfer even on an own thread.
    pub(super) fn queue(&self, transfer: Transfer, done: Completion) {
        self.shared.queue_all([Job::Transfer(transfer, done)]);
    }

    pub(super) fn is_own_thread(&self) -> bool {
        WORKS_FOR.get() == self.shared.id
    }
}

impl IoEngine for ThreadEngine {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn depth(&self) -> usize {
        self.count
    }

    fn spawn(&self, task: Task) {
        self.shared.queue_all([Job::Task(task)]);
    }

    fn submit(&self, transfer: Transfer, done: Completion) {
        if self.is_own_thread() {
            done.call(run(transfer));
        } else {
            self.queue(transfer, done);
        }
    }

    fn register(&self, _rows: &Arc<Region>) -> Result<()> {
        Ok(())
    }

    fn stop(&self, timeout: Duration) -> usize {
        let waiting = {
            let mut state = self.shared.state.lock();
            state.stopped = true;
            std::mem::take(&mut state.waiting)
        };
        self.shared.queued.notify_all();
        waiting.into_iter().for_each(Job::cancel);

        let now = Instant::now();
        let deadline = now.checked_add(timeout).unwrap_or(now + A_LIFETIME);
        let own = usize::from(self.is_own_thread());
        let mut state = self.shared.state.lock();
        while state.threads > own {
            if self.shared.ended.wait_until(&mut state, deadline) {
                break;
            }
        }
        state.threads.saturating_sub(own)
    }
}

impl Drop for ThreadEngine {
    fn drop(&mut self) {
        if self.home.is_surely_here() {
            self.stop(Duration::ZERO);
        }
    }
}

impl fmt::Debug for ThreadEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadEngine({} threads)", self.count)
    }
}

impl Shared {
    fn queue_all(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut jobs = jobs.into_iter();
        let wanted = {
            let mut state = self.state.lock();
            if state.stopped {
                0
            } else {
                let before = state.waiting.len();
                state.waiting.extend(jobs.by_ref());
                state.idle.min(state.waiting.len() - before)
            }
        };
        for _ in 0..wanted {
            self.queued.notify_one();
        }
        // What is left came too late.
        jobs.for_each(Job::cancel);
    }

    /// The life of one thread.
    fn work(&self) {
        WORKS_FOR.set(self.id);
        while let Some(job) = self.next() {
            contained(|| job.run());
        }
        self.state.lock().threads -= 1;
        self.ended.notify_all();
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            self.queued.wait(&mut state);
            state.idle -= 1;
        }
    }
}

impl Job {
    fn run(self) {
        match self {
            Self::Task(task) => task(),
            Self::Transfer(transfer, done) => done.call(run(transfer)),
            Self::Ended(ended, done) => done.call(ended),
        }
    }

    /// Ends a job that will not be run. Runs foreign code (drops, completions), so no lock may be held.
    fn cancel(self) {
        contained(|| match self {
            Self::Task(task) => drop(task),
            Self::Transfer(transfer, done) => done.call(transfer.cancelled()),
            Self::Ended(ended, done) => done.call(ended),
        });
    }
}

/// Runs foreign code. Whoever waits for an answer learns of a panic by the drop of what the code had captured.
pub(super) fn contained(code: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(code)).is_err() {
        log::error!("a kvtier IO operation panicked; it is reported as failed and the thread goes on");
    }
}

/// Moves all bytes, or those up to the end of the file.
fn run(transfer: Transfer) -> Transferred {
    let Transfer { file, offset, direction, mut memory } = transfer;
    let result = loop {
        if memory.left_bytes() == 0 {
            break Ok(());
        }
        let position = offset + memory.done_bytes() as u64;
        let moved = match direction {
            Direction::Read => memory.with_slices_mut(|slices| preadv(&file, slices, position)),
            Direction::Write => memory.with_slices(|slices| pwritev(&file, slices, position)),
        };
        match moved {
            Ok(0) if direction == Direction::Read => break Ok(()),
            Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => memory.advance(n),
            Err(Errno::INTR) => {}
            Err(errno) => break Err(errno.into()),
        }
    };
    Transferred { memory, result }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::buffer::{IoMemory, ScratchPool};

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_transfer_from_an_own_thread_is_made_at_once() {
        let engine = ThreadEngine::start("test-io", 1).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap());
        let (send, receive) = mpsc::channel();
        let inner = Arc::clone(&engine);
        // With one thread, queueing the transfer behind the running task would never end.
        engine.spawn(Box::new(move || {
            let here = thread::current().id();
            let (done, made) = mpsc::channel();
            let memory = IoMemory::scratch(ScratchPool::new(3, 0).take().unwrap(), 3);
            let transfer = Transfer { file, offset: 0, direction: Direction::Write, memory };
            inner.submit(
                transfer,
                Completion::new(move |t| done.send((t.result.is_ok(), thread::current().id())).unwrap()),
            );
            send.send(made.try_recv() == Ok((true, here))).unwrap();
        }));
        assert!(receive.recv_timeout(PATIENCE).unwrap());
    }

    #[test]
    fn a_panic_costs_no_thread() {
        let engine = ThreadEngine::start("test-io", 2).unwrap();
        for _ in 0..8 {
            engine.spawn(Box::new(|| std::panic::resume_unwind(Box::new("on purpose"))));
        }
        let (send, receive) = mpsc::channel();
        engine.spawn(Box::new(move || send.send(()).unwrap()));
        receive.recv_timeout(PATIENCE).unwrap();
        assert_eq!(engine.shared.state.lock().threads, 2);
        assert_eq!(engine.stop(PATIENCE), 0);
    }
}
