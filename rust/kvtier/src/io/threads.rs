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
}

enum Job {
    Task(Task),
    Transfer(Transfer, Completion),
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
            state: Mutex::new(State { waiting: VecDeque::new(), stopped: false, threads: 0 }),
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

    fn is_own_thread(&self) -> bool {
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
        self.shared.queue(Job::Task(task));
    }

    fn submit(&self, transfer: Transfer, done: Completion) {
        if self.is_own_thread() {
            done(run(transfer));
        } else {
            self.shared.queue(Job::Transfer(transfer, done));
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
    fn queue(&self, job: Job) {
        let refused = {
            let mut state = self.state.lock();
            if state.stopped {
                Some(job)
            } else {
                state.waiting.push_back(job);
                None
            }
        };
        match refused {
            None => {
                self.queued.notify_one();
            }
            Some(job) => job.cancel(),
        }
    }

    /// The life of one thread.
    fn work(&self) {
        WORKS_FOR.set(self.id);
        while let Some(job) = self.next() {
            // Whoever waits for the answer learns of a panic by the drop of what the job had captured.
            if catch_unwind(AssertUnwindSafe(|| job.run())).is_err() {
                log::error!("a kvtier IO operation panicked; it is reported as failed and the thread goes on");
            }
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
            match state.waiting.pop_front() {
                Some(job) => return Some(job),
                None => self.queued.wait(&mut state),
            }
        }
    }
}

impl Job {
    fn run(self) {
        match self {
            Self::Task(task) => task(),
            Self::Transfer(transfer, done) => done(run(transfer)),
        }
    }

    /// Ends a job that will not be run. Runs foreign code (drops, completions), so no lock may be held.
    fn cancel(self) {
        if let Self::Transfer(transfer, done) = self {
            done(Transferred { memory: transfer.memory, result: Err(Errno::CANCELED.into()) });
        }
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
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::mpsc;

    use super::*;
    use crate::buffer::{HostRows, IoMemory, RowLease, RowPart, ScratchPool};

    const PATIENCE: Duration = Duration::from_secs(20);

    fn scratch_of(bytes: &[u8]) -> IoMemory {
        let mut scratch = ScratchPool::new(bytes.len(), 0).take().unwrap();
        scratch[..bytes.len()].copy_from_slice(bytes);
        IoMemory::scratch(scratch, bytes.len())
    }

    fn submit(engine: &ThreadEngine, file: &Arc<File>, direction: Direction, memory: IoMemory) -> Transferred {
        let (send, receive) = mpsc::channel();
        let transfer = Transfer { file: Arc::clone(file), offset: 0, direction, memory };
        engine.submit(transfer, Box::new(move |t| send.send(t).unwrap()));
        receive.recv_timeout(PATIENCE).unwrap()
    }

    #[test]
    fn moves_more_segments_than_one_call_takes() {
        // 3,000 parts of 3 bytes: above the 1,024 segments that the kernel takes at once.
        let rows = HostRows::new(1, 9000).unwrap();
        let parts = (0..3000).map(|i| RowPart {
            // SAFETY: 3 * i + 3 <= 9000, the length of the rows.
            base: unsafe { rows.base().add(3 * i) },
            row_bytes: 3,
            stride: 3,
        });
        // SAFETY: the parts lie within the rows, which the clone keeps mapped; nothing else touches them.
        let region = unsafe { Region::from_parts(parts.collect(), 1, true, Box::new(rows.clone())) }.unwrap();
        let payload: Vec<u8> = (0..9000_u32).map(|i| (i / 3 % 256) as u8).collect();
        let mut access = RowLease::unbounded(&region, 0).unwrap().enter().unwrap();
        access.copy_from(&payload).unwrap();
        let lease = access.leave().unwrap();

        let engine = ThreadEngine::start("test-io", 2).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap());
        let written = submit(&engine, &file, Direction::Write, IoMemory::source(lease));
        written.result.unwrap();
        assert_eq!(written.memory.done_bytes(), 9000);
        let mut found = vec![0; 9000];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == payload);

        let access = RowLease::unbounded(&region, 0).unwrap().enter().unwrap();
        let read = submit(&engine, &file, Direction::Read, IoMemory::target(access).unwrap());
        read.result.unwrap();
        let (access, _) = read.memory.into_parts();
        assert!(access.unwrap().segments().collect::<Vec<_>>().concat() == payload);
    }

    #[test]
    fn reading_past_the_end_is_short_and_no_error() {
        let engine = ThreadEngine::start("test-io", 1).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap());
        submit(&engine, &file, Direction::Write, scratch_of(b"12345")).result.unwrap();
        let read = submit(&engine, &file, Direction::Read, scratch_of(&[0; 8]));
        read.result.unwrap();
        assert_eq!(read.memory.done_bytes(), 5);
    }

    #[test]
    fn errors_keep_their_code() {
        let engine = ThreadEngine::start("test-io", 1).unwrap();
        let read_only = Arc::new(File::open("/proc/self/exe").unwrap());
        let failed = submit(&engine, &read_only, Direction::Write, scratch_of(b"x"));
        assert_eq!(failed.result.unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
    }

    #[test]
    fn a_transfer_from_an_own_thread_is_made_at_once() {
        let engine = ThreadEngine::start("test-io", 1).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap());
        let (send, receive) = mpsc::channel();
        let inner = Arc::clone(&engine);
        // With one thread, queueing the transfer behind the running task would never end.
        engine.spawn(Box::new(move || {
            let here = thread::current().id();
            let written = submit(&inner, &file, Direction::Write, scratch_of(b"abc"));
            send.send((written.result.is_ok(), here == thread::current().id())).unwrap();
        }));
        assert_eq!(receive.recv_timeout(PATIENCE).unwrap(), (true, true));
    }

    #[test]
    fn a_panic_costs_its_task_and_no_thread() {
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

    #[test]
    fn stopping_drops_what_waits_and_leaves_what_is_stuck() {
        let engine = ThreadEngine::start("test-io", 1).unwrap();
        let (release, stuck) = mpsc::channel::<()>();
        let (started, running) = mpsc::channel();
        engine.spawn(Box::new(move || {
            started.send(()).unwrap();
            let _ = stuck.recv();
        }));
        running.recv_timeout(PATIENCE).unwrap();

        let (send, cancelled) = mpsc::channel();
        let transfer = Transfer {
            file: Arc::new(tempfile::tempfile().unwrap()),
            offset: 0,
            direction: Direction::Write,
            memory: scratch_of(b"never written"),
        };
        engine.submit(transfer, Box::new(move |t| send.send(t.result).unwrap()));
        let (token, unrun) = mpsc::channel::<()>();
        engine.spawn(Box::new(move || drop(token)));

        assert_eq!(engine.stop(Duration::from_millis(50)), 1, "one thread is stuck");
        assert_eq!(
            cancelled.try_recv().unwrap().unwrap_err().raw_os_error(),
            Some(Errno::CANCELED.raw_os_error()),
            "a waiting transfer is answered"
        );
        assert!(unrun.try_recv().is_err_and(|e| e == mpsc::TryRecvError::Disconnected), "a waiting task is dropped");

        let late = Arc::new(());
        let held = Arc::clone(&late);
        engine.spawn(Box::new(move || drop(held)));
        assert_eq!(Arc::strong_count(&late), 1, "a task that comes later is dropped at once");

        release.send(()).unwrap();
        assert_eq!(engine.stop(PATIENCE), 0, "the stuck thread ends by itself");
    }
}
