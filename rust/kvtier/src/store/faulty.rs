//! A store that misbehaves on demand: wraps any other, for tests of what stands above stores.
//!
//! Faults are injected by a script, not by chance, so that a test says what happens and sees that it happened.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use super::{BlockStore, Done, Known, Loaded, Location, OnDropped, Probed, Residency, StoreInfo, Stored};
use crate::buffer::RowLease;
use crate::error::{Error, ErrorKind, Result};
use crate::index::Set;
use crate::io::Task;
use crate::layout::BlockKey;
use crate::sync::{Condvar, Mutex};

/// Which operations a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// [`BlockStore::store`]
    Store,
    /// [`BlockStore::load`]
    Load,
    /// [`BlockStore::probe`]; a fault in one key is the whole batch's.
    Probe,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// The operation fails with this kind; storage is not touched.
    Fail(ErrorKind),
    /// The thread panics.
    Panic,
    /// The answer is dropped.
    Lose,
    /// The operation waits before it begins, until [`Faults::release`].
    Stall,
    /// As [`Misbehaviour::Stall`], but while touching the row, as a system call does that reads into it.
    StallInRow,
    /// The operation is made, and its answer waits until [`Faults::release`].
    StallAnswer,
    /// The operation waits that long before it begins.
    Delay(Duration),
}

/// One fault: what happens to the next operations that it is for.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Which operations.
    pub operation: Operation,
    /// On which block; `None` for any.
    pub key: Option<BlockKey>,
    /// How many such operations go well before.
    pub after: u32,
    /// How many go wrong then.
    pub times: u32,
    /// What happens.
    pub what: Misbehaviour,
}

/// The script of a [`FaultyStore`], shared with the test.
#[derive(Debug, Default)]
pub struct Faults {
    pending: Mutex<Vec<Fault>>,
    gate: Mutex<Stalls>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct Stalls {
    /// Counts up with every release: a stall waits for the next one.
    releases: u64,
    stalled: usize,
}

impl Faults {
    /// Adds a fault behind those that are there; the first that fits an operation happens to it.
    pub fn inject(&self, fault: Fault) {
        self.pending.lock().push(fault);
    }

    /// Lets everything go on that has stalled.
    pub fn release(&self) {
        self.gate.lock().releases += 1;
        self.released.notify_all();
    }

    /// How many operations are stalled now.
    pub fn stalled(&self) -> usize {
        self.gate.lock().stalled
    }

    /// How many faults have not happened yet.
    pub fn pending(&self) -> usize {
        self.pending.lock().len()
    }

    /// Drops the faults that have not happened yet.
    pub fn clear(&self) {
        self.pending.lock().clear();
    }

    fn next(&self, operation: Operation, key: &BlockKey) -> Option<Misbehaviour> {
        let mut pending = self.pending.lock();
        let at = pending.iter().position(|f| f.operation == operation && f.key.is_none_or(|k| k == *key))?;
        let fault = &mut pending[at];
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        let what = fault.what;
        fault.times = fault.times.saturating_sub(1);
        if fault.times == 0 {
            pending.remove(at);
        }
        Some(what)
    }

    fn stall(&self) {
        let mut gate = self.gate.lock();
        let now = gate.releases;
        gate.stalled += 1;
        while gate.releases == now {
            self.released.wait(&mut gate);
        }
        gate.stalled -= 1;
    }
}

/// A store whose operations go wrong as its [`Faults`] say.
pub struct FaultyStore {
    inner: Arc<dyn BlockStore>,
    faults: Arc<Faults>,
    closed: AtomicBool,
    lost: Lost,
}

/// Blocks whose loads were made to fail as lost or damaged ones do, until they are stored again: a store that knows its
/// blocks knows of those.
type Lost = Arc<Mutex<Set<BlockKey>>>;

impl FaultyStore {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn BlockStore>, faults: Arc<Faults>) -> Self {
        Self { inner, faults, closed: AtomicBool::new(false), lost: Lost::default() }
    }

    /// Does what the script says about an operation on a row; gives the row and the answer back if it shall be made.
    fn misbehave<T: Send + 'static>(
        &self,
        operation: Operation,
        key: &BlockKey,
        row: RowLease,
        done: Done<T>,
    ) -> Option<(RowLease, Done<T>)> {
        match self.faults.next(operation, key) {
            None => {}
            Some(Misbehaviour::Fail(kind)) => {
                if operation == Operation::Load && (kind == ErrorKind::Missing || kind.is_proof_of_damage()) {
                    self.lost.lock().insert(*key);
                }
                done.give(Err(injected(kind)));
                return None;
            }
            Some(Misbehaviour::Panic) => panic!("injected panic"),
            Some(Misbehaviour::Lose) => return None,
            Some(Misbehaviour::Stall) => self.faults.stall(),
            Some(Misbehaviour::StallInRow) => {
                let left = row.enter().and_then(|access| {
                    self.faults.stall();
                    access.leave()
                });
                return match left {
                    Ok(row) => Some((row, done)),
                    Err(over) => {
                        done.give(Err(over));
                        None
                    }
                };
            }
            Some(Misbehaviour::StallAnswer) => return Some((row, self.late(done))),
            Some(Misbehaviour::Delay(delay)) => std::thread::sleep(delay),
        }
        Some((row, done))
    }

    fn late<T: Send + 'static>(&self, done: Done<T>) -> Done<T> {
        let faults = Arc::clone(&self.faults);
        Done::new(move |answer| {
            faults.stall();
            done.give(answer);
        })
    }
}

impl BlockStore for FaultyStore {
    fn info(&self) -> StoreInfo {
        let info = self.inner.info();
        // A stalled operation keeps its thread.
        StoreInfo { threads: info.concurrency, ..info }
    }

    fn spawn(&self, task: Task) {
        let info = self.inner.info();
        if info.threads >= info.concurrency {
            self.inner.spawn(task);
        } else if !self.closed.load(Ordering::Acquire) {
            // The few threads of a store that only begins operations there must not stall.
            std::thread::spawn(task);
        }
    }

    fn store(&self, key: BlockKey, row: RowLease, done: Done<Stored>) {
        self.lost.lock().remove(&key);
        if let Some((row, done)) = self.misbehave(Operation::Store, &key, row, done) {
            self.inner.store(key, row, done);
        }
    }

    fn load(&self, key: BlockKey, row: RowLease, done: Done<Loaded>) {
        if let Some((row, done)) = self.misbehave(Operation::Load, &key, row, done) {
            self.inner.load(key, row, done);
        }
    }

    fn probe(&self, keys: Vec<BlockKey>, mut done: Done<Vec<Probed>>) {
        for fault in keys.iter().filter_map(|key| self.faults.next(Operation::Probe, key)) {
            match fault {
                Misbehaviour::Fail(kind) => return done.give(Err(injected(kind))),
                Misbehaviour::Panic => panic!("injected panic"),
                Misbehaviour::Lose => return,
                Misbehaviour::Stall | Misbehaviour::StallInRow => self.faults.stall(),
                Misbehaviour::StallAnswer => done = self.late(done),
                Misbehaviour::Delay(delay) => std::thread::sleep(delay),
            }
        }
        self.inner.probe(keys, done);
    }

    fn residency(&self) -> Option<Arc<dyn Residency>> {
        let inner = self.inner.residency()?;
        Some(Arc::new(FaultyResidency { inner, lost: Arc::clone(&self.lost) }))
    }

    fn on_dropped(&self, listener: OnDropped) {
        self.inner.on_dropped(listener);
    }

    fn leases_ended(&self) {
        self.inner.leases_ended();
    }

    fn scan(&self, found: &mut dyn FnMut(BlockKey, Location) -> bool) -> Result<()> {
        self.inner.scan(found)
    }

    fn reset(&self) -> Result<()> {
        self.inner.reset()
    }

    fn close(&self, timeout: Duration) -> usize {
        self.closed.store(true, Ordering::Release);
        self.inner.close(timeout)
    }

    fn abandon_in_child(&self) {
        self.inner.abandon_in_child();
    }
}

/// What the inner store knows, but for what was made to be lost.
struct FaultyResidency {
    inner: Arc<dyn Residency>,
    lost: Lost,
}

impl Residency for FaultyResidency {
    fn find(&self, key: &BlockKey) -> Known {
        if self.lost.lock().contains(key) { Known::Absent } else { self.inner.find(key) }
    }

    fn blocks(&self) -> usize {
        self.inner.blocks()
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn touch(&self, keys: &[BlockKey]) {
        self.inner.touch(keys);
    }

    fn pin(&self, keys: &[BlockKey], until: Option<SystemTime>) -> Result<Vec<bool>> {
        self.inner.pin(keys, until)
    }

    fn unpin(&self, keys: &[BlockKey]) {
        self.inner.unpin(keys);
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore").field("faults", &self.faults).finish_non_exhaustive()
    }
}

fn injected(kind: ErrorKind) -> Error {
    Error::new(kind, "injected fault")
}
