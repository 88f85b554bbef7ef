//! The ring's thread: what it is sent, what the kernel is working on, and how both end.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, write};

use super::super::threads::contained;
use super::super::{Completion, Direction, IoEngine, Task, ThreadEngine, Transfer, Transferred};
use super::probe;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Condvar, Mutex};

/// More than any device needs, and less than any kernel's limit.
pub(super) const MOST_DEPTH: usize = 4096;

/// Segments that the kernel takes at once.
const MOST_SEGMENTS: usize = 1024;

/// Bytes of a longer segment that are asked for at once; the kernel moves 2 GiB less a page at most.
const MOST_BYTES: usize = 1 << 30;

/// The bell and the cancellation, beside the transfers.
const EXTRA_ENTRIES: usize = 2;

/// What completions are told apart by: transfers have the number of their slot.
const BELL: u64 = u64::MAX;
const CANCELLATION: u64 = u64::MAX - 1;

/// How long to wait when the kernel has no memory for more instructions and nothing is under way.
const BREATHER: Duration = Duration::from_millis(1);

/// How often a thread that waits for the ring's end looks at the clock when it has no deadline.
const A_WHILE: Duration = Duration::from_secs(3600);

/// How much brief work is done before the ring gets what that has submitted.
const TURN: usize = 8;

thread_local! {
    /// The mailbox that this thread serves, by its address; 0 for none.
    static SERVES: Cell<usize> = const { Cell::new(0) };
    /// What work on this thread has sent to the ring that it serves.
    static OWN_MAIL: RefCell<Vec<Mail>> = const { RefCell::new(Vec::new()) };
}

/// What is sent to a ring's thread.
pub(super) enum Mail {
    Transfer(Transfer, Completion),
    /// Brief.
    Task(Task),
}

impl Mail {
    /// Ends what will not be begun. Runs foreign code, so no lock may be held.
    pub(super) fn cancel(self) {
        match self {
            Self::Transfer(transfer, done) => done.call(transfer.cancelled()),
            Self::Task(task) => drop(task),
        }
    }

    fn is_task(&self) -> bool {
        matches!(self, Self::Task(_))
    }
}

/// Where work waits for the ring's thread.
#[derive(Debug)]
pub(super) struct Mailbox {
    state: Mutex<State>,
    /// The ring's thread has ended.
    ended: Condvar,
    /// An eventfd that the ring polls.
    bell: OwnedFd,
    /// The ring's descriptor, for a test that breaks it.
    #[cfg(test)]
    pub(super) ring: std::sync::atomic::AtomicI32,
}

struct State {
    waiting: Vec<Mail>,
    /// The thread has seen that nothing waits, so it has to be woken.
    asleep: bool,
    phase: Phase,
    has_ended: bool,
}

/// How far the ring is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing new begins; what is under way may end by itself.
    Closed,
    /// What the kernel has not begun shall not begin either.
    Cancelled,
}

/// What became of mail that was sent.
pub(super) enum Posted {
    Taken,
    Stopped(Mail),
    NoRing(Mail),
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("waiting", &self.waiting.len())
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

/// Starts a ring's thread; what is to be done is posted to the mailbox.
pub(super) fn start(name: &str, tasks: &Arc<ThreadEngine>, depth: usize) -> Result<Arc<Mailbox>> {
    let unavailable = |what: &str, e: io::Error| {
        Error::new(ErrorKind::Unavailable, format!("{what} can't be had: {e}")).with_source(e)
    };
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| unavailable("a descriptor for the ring", e.into()))?;
    let state = State { waiting: Vec::new(), asleep: false, phase: Phase::Open, has_ended: false };
    let mailbox = Arc::new(Mailbox {
        state: Mutex::new(state),
        ended: Condvar::new(),
        bell,
        #[cfg(test)]
        ring: std::sync::atomic::AtomicI32::new(-1),
    });
    let (answer, answered) = mpsc::sync_channel(1);
    let (served, tasks) = (Arc::clone(&mailbox), Arc::clone(tasks));
    let life = move || {
        SERVES.set(Arc::as_ptr(&served).addr());
        match RingThread::set_up(Arc::clone(&served), tasks, depth) {
            Ok(thread) => {
                let _ = answer.send(Ok(()));
                // A panic would be a defect; whatever ends the thread, its table sees to what is under way.
                let _ = catch_unwind(AssertUnwindSafe(|| thread.run()));
            }
            Err(error) => {
                let _ = answer.send(Err(error));
            }
        }
    };
    thread::Builder::new().name(name.to_owned()).spawn(life).map_err(|e| unavailable("a thread for the ring", e))?;
    match answered.recv() {
        Ok(made) => made.map(|()| mailbox),
        Err(_) => Err(Error::new(ErrorKind::Internal, "the ring's thread ended before it began")),
    }
}

impl Mailbox {
    /// Sends something to the ring's thread.
    pub(super) fn post(&self, mail: Mail) -> Posted {
        if self.is_served_here() {
            OWN_MAIL.with_borrow_mut(|own| own.push(mail));
            return Posted::Taken;
        }
        let mut state = self.state.lock();
        if state.phase != Phase::Open {
            return Posted::Stopped(mail);
        }
        if state.has_ended {
            return Posted::NoRing(mail);
        }
        state.waiting.push(mail);
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.ring_bell();
        }
        Posted::Taken
    }

    /// Whether the calling thread is the ring's.
    pub(super) fn is_served_here(&self) -> bool {
        SERVES.get() == std::ptr::from_ref(self).addr()
    }

    /// Whether the calling thread is the ring's, and has no task to do next.
    pub(super) fn has_time_here(&self) -> bool {
        self.is_served_here() && OWN_MAIL.with_borrow(|own| !own.iter().any(Mail::is_task))
    }

    /// Nothing new begins from now on; hands out what was waiting.
    pub(super) fn close(&self) -> Vec<Mail> {
        let mut state = self.state.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Closed;
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.ring_bell();
        waiting
    }

    /// Waits until the thread has ended; false when it has not by then, and what it waits for in the kernel is to be
    /// cancelled, as far as the kernel has not begun it. Never waits for the calling thread.
    pub(super) fn wait_for_end(&self, until: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        while !state.has_ended && !self.is_served_here() {
            if self.ended.wait_until(&mut state, until.unwrap_or_else(|| Instant::now() + A_WHILE)) && until.is_some() {
                state.phase = Phase::Cancelled;
                drop(state);
                self.ring_bell();
                return false;
            }
        }
        true
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().waiting.is_empty()
    }

    #[cfg(test)]
    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().has_ended
    }

    fn ring_bell(&self) {
        // Refused only when the counter is full: then it rings already.
        let _ = write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// A ring, its table, and where ended transfers go. It stays on the thread that made it.
struct RingThread {
    ring: IoUring,
    mailbox: Arc<Mailbox>,
    tasks: Arc<ThreadEngine>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Transfers that wait for a slot.
    queued: VecDeque<(Transfer, Completion)>,
    /// Slots whose (next) instruction is still to be given to the ring.
    to_begin: Vec<usize>,
    /// Transfers that have ended and are to be completed.
    landed: VecDeque<(Transferred, Completion)>,
    /// Brief tasks.
    briefs: VecDeque<Task>,
    bell_is_polled: bool,
    cancelling: bool,
    /// Dropped last, when the ring is closed.
    _end: EndNotice,
}

/// Tells of the thread's end, and leaves what waits to the task threads.
struct EndNotice {
    mailbox: Arc<Mailbox>,
    tasks: Arc<ThreadEngine>,
}

/// A transfer that the kernel works on, or soon will.
struct Flight {
    transfer: Transfer,
    done: Completion,
    segments: Vec<Segment>,
}

/// Laid out as the system's `struct iovec`.
#[repr(C)]
struct Segment {
    base: NonNull<u8>,
    len: usize,
}

impl RingThread {
    fn set_up(mailbox: Arc<Mailbox>, tasks: Arc<ThreadEngine>, depth: usize) -> Result<Self> {
        let entries = (depth + EXTRA_ENTRIES).next_power_of_two();
        let ring = probe::make(u32::try_from(entries).unwrap_or(u32::MAX))?;
        #[cfg(test)]
        mailbox.ring.store(ring.as_raw_fd(), std::sync::atomic::Ordering::Relaxed);
        let end = EndNotice { mailbox: Arc::clone(&mailbox), tasks: Arc::clone(&tasks) };
        Ok(Self {
            ring,
            mailbox,
            tasks,
            flights: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            queued: VecDeque::new(),
            to_begin: Vec::with_capacity(depth),
            landed: VecDeque::with_capacity(depth),
            briefs: VecDeque::new(),
            bell_is_polled: false,
            cancelling: false,
            _end: end,
        })
    }

    fn run(mut self) {
        let mut ends = Vec::with_capacity(self.flights.len());
        loop {
            let phase = self.take_mail();
            if phase == Phase::Open {
                self.take_off();
            } else if self.is_done() {
                return;
            }
            self.give_instructions(phase);
            let entered = self.enter();
            ends.extend(self.ring.completion().map(|end| (end.user_data(), end.result(), end.flags())));
            for (what, result, flags) in ends.drain(..) {
                match usize::try_from(what).ok().filter(|slot| *slot < self.flights.len()) {
                    Some(slot) => self.ended(slot, result),
                    None if what == BELL => self.bell_is_polled = cqueue::more(flags),
                    None => {}
                }
            }
            if let Err(error) = entered {
                log::warn!("io_uring stopped working, threads make the transfers from now on: {error}");
                return;
            }
            self.work();
        }
    }

    /// Takes what has come. Once the engine is stopped, nothing of it begins.
    fn take_mail(&mut self) -> Phase {
        let mut mail = OWN_MAIL.take();
        let phase = {
            let mut state = self.mailbox.state.lock();
            mail.append(&mut state.waiting);
            // Also while transfers are under way: whatever comes first ends the wait.
            state.asleep = self.is_idle() && !mail.iter().any(Mail::is_task);
            state.phase
        };
        if phase != Phase::Open {
            let queued = self.queued.drain(..).map(|(transfer, done)| Mail::Transfer(transfer, done));
            let mut over: Vec<_> = queued.chain(self.briefs.drain(..).map(Mail::Task)).chain(mail).collect();
            // What ends may send more.
            while !over.is_empty() {
                for mail in over.drain(..) {
                    contained(|| mail.cancel());
                }
                over = OWN_MAIL.take();
            }
            return phase;
        }
        for mail in mail {
            match mail {
                Mail::Transfer(transfer, done) => self.queued.push_back((transfer, done)),
                Mail::Task(task) => self.briefs.push_back(task),
            }
        }
        phase
    }

    /// Gives free slots to those who wait for one.
    fn take_off(&mut self) {
        while let Some(slot) = self.free.pop() {
            let Some((transfer, done)) = self.queued.pop_front() else {
                self.free.push(slot);
                return;
            };
            self.flights[slot] = Some(Flight { transfer, done, segments: Vec::new() });
            self.to_begin.push(slot);
        }
    }

    /// Whether there is nothing to do before something comes or ends.
    fn is_idle(&self) -> bool {
        self.landed.is_empty() && self.briefs.is_empty()
    }

    /// Whether nothing is under way, once nothing begins any more.
    fn is_done(&self) -> bool {
        self.free.len() == self.flights.len() && self.is_idle()
    }

    /// Does some of the work that is there.
    fn work(&mut self) {
        let mut for_threads = Vec::new();
        let mut done_here = 0;
        while done_here < TURN
            && let Some((ended, done)) = self.landed.pop_front()
        {
            if done.is_brief {
                contained(|| done.call(ended));
                done_here += 1;
            } else {
                for_threads.push((ended, done));
            }
        }
        self.tasks.complete(&mut for_threads);
        if let Some(task) = self.briefs.pop_front() {
            contained(task);
        }
    }

    fn give_instructions(&mut self, phase: Phase) {
        if !self.bell_is_polled {
            let bell = types::Fd(self.mailbox.bell.as_raw_fd());
            let poll = opcode::PollAdd::new(bell, POLLIN).multi(true).build().user_data(BELL);
            // SAFETY: refers to no memory; the kernel keeps the eventfd itself.
            self.bell_is_polled = unsafe { self.ring.submission().push(&poll) }.is_ok();
        }
        if phase == Phase::Cancelled && !self.cancelling {
            let everything = types::CancelBuilder::any().all();
            let cancel = opcode::AsyncCancel2::new(everything).build().user_data(CANCELLATION);
            // SAFETY: refers to no memory.
            self.cancelling = unsafe { self.ring.submission().push(&cancel) }.is_ok();
        }
        let mut postponed = 0;
        for at in 0..self.to_begin.len() {
            let slot = self.to_begin[at];
            let Some(instruction) = self.flights[slot].as_mut().and_then(Flight::instruction) else {
                self.land(slot, Ok(()));
                continue;
            };
            // SAFETY: the flight owns the segments, the memory that they lead to, and the file. It stays in the table,
            // whatever happens, until the kernel's answer to this instruction has arrived (`land` is called by nobody
            // else, and `drop` leaks it).
            let pushed = unsafe { self.ring.submission().push(&instruction.user_data(slot as u64)) };
            if pushed.is_err() {
                self.to_begin[postponed] = slot;
                postponed += 1;
            }
        }
        self.to_begin.truncate(postponed);
    }

    /// Hands the instructions to the kernel and lets it tell what has ended; waits for that if there is nothing else to do.
    fn enter(&mut self) -> io::Result<()> {
        let instructions = self.ring.submission().len() as u32;
        let wanted = u32::from(self.is_idle());
        // SAFETY: no argument goes with it.
        let entered = unsafe { self.ring.submitter().enter::<()>(instructions, wanted, ENTER_GETEVENTS, None) };
        let Err(error) = entered else { return Ok(()) };
        match Errno::from_io_error(&error) {
            Some(Errno::INTR) => Ok(()),
            // No memory, or completions have to be taken first: what was not taken stays in the ring.
            Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                if self.ring.completion().is_empty() {
                    thread::sleep(BREATHER);
                }
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// The kernel is done with one instruction.
    fn ended(&mut self, slot: usize, result: i32) {
        let Some(Flight { transfer, .. }) = self.flights[slot].as_mut() else { return };
        match u32::try_from(result) {
            Ok(0) if transfer.direction == Direction::Read => self.land(slot, Ok(())),
            Ok(0) => self.land(slot, Err(io::ErrorKind::WriteZero.into())),
            Ok(moved) => {
                transfer.memory.advance(moved as usize);
                if transfer.memory.left_bytes() == 0 {
                    self.land(slot, Ok(()));
                } else if self.cancelling {
                    self.land(slot, Err(Errno::CANCELED.into()));
                } else {
                    self.to_begin.push(slot);
                }
            }
            Err(_) => match Errno::from_raw_os_error(result.saturating_neg()) {
                Errno::INTR if !self.cancelling => self.to_begin.push(slot),
                // A file that is open for non-blocking use, on a file system that can't wait for it in the background.
                Errno::AGAIN if !self.cancelling => {
                    if let Some(Flight { transfer, done, .. }) = self.flights[slot].take() {
                        self.free.push(slot);
                        self.tasks.queue(transfer, done);
                    }
                }
                errno => self.land(slot, Err(errno.into())),
            },
        }
    }

    /// A transfer is over, and the kernel doesn't know of it any more.
    fn land(&mut self, slot: usize, result: io::Result<()>) {
        if let Some(Flight { transfer, done, .. }) = self.flights[slot].take() {
            self.free.push(slot);
            self.landed.push_back((Transferred { memory: transfer.memory, result }, done));
        }
    }
}

impl Flight {
    /// What the kernel is to do next; `None` when there is nothing to move.
    fn instruction(&mut self) -> Option<squeue::Entry> {
        let Transfer { ref file, offset, direction, ref mut memory } = self.transfer;
        let file = types::Fd(file.as_raw_fd());
        let offset = offset + memory.done_bytes() as u64;
        self.segments.clear();
        match direction {
            Direction::Read => take_segments(&mut self.segments, memory.left_to_fill()),
            Direction::Write => take_segments(&mut self.segments, memory.left_to_write()),
        }
        let list = self.segments.as_ptr().cast();
        let count = self.segments.len() as u32;
        Some(match (direction, self.segments.as_slice()) {
            (_, []) => return None,
            (Direction::Read, [only]) => {
                opcode::Read::new(file, only.base.as_ptr(), only.len as u32).offset(offset).build()
            }
            (Direction::Write, [only]) => {
                opcode::Write::new(file, only.base.as_ptr(), only.len as u32).offset(offset).build()
            }
            (Direction::Read, _) => opcode::Readv::new(file, list, count).offset(offset).build(),
            (Direction::Write, _) => opcode::Writev::new(file, list, count).offset(offset).build(),
        })
    }
}

/// As many of the segments as one instruction takes. One that is cut short is the last.
fn take_segments(taken: &mut Vec<Segment>, all: impl Iterator<Item = (NonNull<u8>, usize)>) {
    for (base, len) in all.take(MOST_SEGMENTS) {
        taken.push(Segment { base, len: len.min(MOST_BYTES) });
        if len > MOST_BYTES {
            break;
        }
    }
}

impl Drop for RingThread {
    fn drop(&mut self) {
        // From here on, what is sent goes through the mailbox, and from there to the task threads.
        SERVES.set(0);
        let mut waiting = OWN_MAIL.take();
        waiting.extend(self.queued.drain(..).map(|(transfer, done)| Mail::Transfer(transfer, done)));
        waiting.extend(self.briefs.drain(..).map(Mail::Task));
        // Usually nothing is under way. Otherwise the ring has failed: the kernel may go on moving bytes after it was
        // closed, so the memory must stay for ever, and with it, for a load, the engine's result.
        for flight in self.flights.drain(..).flatten() {
            let Flight { transfer, done, segments } = flight;
            std::mem::forget((transfer.memory, segments));
            // Whoever waits for the answer learns of the end by the drop of what the completion had captured.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(done)));
        }
        self.tasks.complete(&mut self.landed.drain(..).collect());
        leave_to(&self.tasks, waiting);
    }
}

impl Drop for EndNotice {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.mailbox.state.lock();
            state.has_ended = true;
            std::mem::take(&mut state.waiting)
        };
        self.mailbox.ended.notify_all();
        leave_to(&self.tasks, waiting);
    }
}

fn leave_to(tasks: &ThreadEngine, mail: Vec<Mail>) {
    for mail in mail {
        match mail {
            Mail::Transfer(transfer, done) => tasks.queue(transfer, done),
            Mail::Task(task) => tasks.spawn(task),
        }
    }
}

/// `IORING_ENTER_GETEVENTS`. Some rings take no end of a transfer into account without it.
const ENTER_GETEVENTS: u32 = 1;

/// `POLLIN`, whose number is the same on every Linux.
const POLLIN: u32 = 1;
