//! What IO threads leave for a Python thread to do.
//!
//! An IO thread must never wait for the interpreter: it would stand still while Python computes, and for ever once the
//! interpreter is gone. So what needs Python (a log record, the release of an engine's buffer) is queued here, and the
//! next call into kvtier does it. Once the interpreter's exit has begun, only the exiting thread does: another one would
//! be killed in the middle of it. After the exit nobody does, and the memory stays.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

type Errand = Box<dyn FnOnce(Python<'_>) -> PyResult<()> + Send>;

/// The standard library's lock, and not `parking_lot`'s, whose global table another thread may hold across a fork.
static QUEUE: Mutex<VecDeque<Errand>> = Mutex::new(VecDeque::new());
static WAITING: AtomicBool = AtomicBool::new(false);
static RUNNING: AtomicUsize = AtomicUsize::new(0);
static EXITING: OnceLock<ThreadId> = OnceLock::new();

/// Queues `errand` for the next Python thread that comes by.
pub(crate) fn leave(errand: impl FnOnce(Python<'_>) -> PyResult<()> + Send + 'static) {
    lock().push_back(Box::new(errand));
    WAITING.store(true, Ordering::Release);
}

/// Does what is queued; one atomic load when nothing is.
///
/// # Errors
/// What is no `Exception`: a signal handler has raised it (Ctrl-C, an exit) while an errand ran Python code. An ordinary
/// failure of an errand is nobody's business here, and is reported as unraisable.
#[inline]
pub(crate) fn run(py: Python<'_>) -> PyResult<()> {
    if WAITING.load(Ordering::Relaxed) && is_allowed_here() { run_all(py) } else { Ok(()) }
}

#[cold]
fn run_all(py: Python<'_>) -> PyResult<()> {
    let _running = Running::new();
    WAITING.store(false, Ordering::Relaxed);
    // As many as there are now: a storm of new ones must not keep this thread here. Taken out one by one, and the lock
    // not held while one is done: an errand may call back into kvtier, which comes by here again.
    let count = lock().len();
    for _ in 0..count {
        if !is_allowed_here() {
            WAITING.store(true, Ordering::Relaxed);
            break;
        }
        let next = lock().pop_front();
        let Some(errand) = next else { break };
        match errand(py) {
            Ok(()) => {}
            Err(error) if error.is_instance_of::<PyException>(py) => error.write_unraisable(py, None),
            Err(interrupt) => {
                WAITING.store(true, Ordering::Relaxed);
                return Err(interrupt);
            }
        }
    }
    Ok(())
}

fn is_allowed_here() -> bool {
    EXITING.get().is_none_or(|exiting| *exiting == thread::current().id())
}

/// From now on, only this thread does errands. Waits for a moment until others have ended the one they are at.
pub(crate) fn exit_begins(py: Python<'_>) {
    const PATIENCE: Duration = Duration::from_secs(1);
    let _ = EXITING.set(thread::current().id());
    let until = Instant::now() + PATIENCE;
    while RUNNING.load(Ordering::Relaxed) > 0 && Instant::now() < until {
        py.detach(|| thread::sleep(Duration::from_millis(1)));
    }
}

/// Counts the threads that do errands.
struct Running;

impl Running {
    fn new() -> Self {
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Zero already in a child that was forked by an errand.
        let _ = RUNNING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

/// A value that is dropped on a Python thread, wherever its holder is dropped.
pub(crate) struct DroppedByPython<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> DroppedByPython<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T: Send + 'static> Drop for DroppedByPython<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            leave(move |_py| {
                drop(value);
                Ok(())
            });
        }
    }
}

/// As the last field of a Python class: once the fields before it are dropped, does the errands that they left, so that
/// `del` releases at once what nothing else uses.
pub(crate) struct RunOnDrop;

impl Drop for RunOnDrop {
    fn drop(&mut self) {
        Python::try_attach(|py| {
            // While an exception is on its way, objects are dropped, but no Python code may run: it waits for the next call.
            if !PyErr::occurred(py)
                && let Err(error) = run(py)
            {
                error.write_unraisable(py, None);
            }
        });
    }
}

thread_local! {
    /// The queue's lock while its thread forks.
    static HELD: RefCell<Option<MutexGuard<'static, VecDeque<Errand>>>> = const { RefCell::new(None) };
}

/// Takes the queue's lock, so that no other thread holds it in the child.
pub(crate) fn before_fork() {
    HELD.with_borrow_mut(|held| *held = Some(lock()));
}

/// Gives the lock back.
pub(crate) fn after_fork_in_parent() {
    HELD.with_borrow_mut(|held| *held = None);
}

/// Gives the lock back and forgets the parent's errands, which the parent does.
pub(crate) fn after_fork_in_child() {
    HELD.with_borrow_mut(|held| {
        if let Some(mut queue) = held.take() {
            mem::forget(mem::take(&mut *queue));
            RUNNING.store(0, Ordering::Relaxed);
        }
    });
}

fn lock() -> MutexGuard<'static, VecDeque<Errand>> {
    // Nothing panics while holding it, and a queue of closures can't be half-changed.
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}
