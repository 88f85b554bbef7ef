//! The ends of an engine: shutting it down, resetting its namespace, dropping it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::job::Job;
use super::{ASK_EVERY, DROP_GRACE, Engine, Event, Phase, Shared, closed, deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::process;

impl Engine {
    /// Ends the engine: what waits fails with [`ErrorKind::Shutdown`], what is under way is waited for until `timeout`
    /// and then fails as well. Results can still be taken. Nothing is deleted. Calling it again is harmless.
    ///
    /// Returns how many operations are still stuck in the storage. While there are any, the rows must stay where they
    /// are; the engine keeps them alive. `gave_up` is asked every now and then on this thread; once it says true, the
    /// time is over.
    ///
    /// # Errors
    /// `Forked`.
    pub fn shutdown(&self, timeout: Duration, gave_up: impl FnMut() -> bool) -> Result<usize> {
        process::check("tier", self.home)?;
        let mut patience = Patience::new(timeout, gave_up);
        let shared = &self.shared;
        let waiting = {
            let mut state = shared.state.lock();
            state.phase = Phase::Closed;
            shared.closed.store(true, Ordering::Relaxed);
            shared.tick.notify_all();
            state.queues.drain()
        };
        for (job, next) in waiting {
            shared.end_early(&job, next..job.keys.len(), ErrorKind::Shutdown, "the tier was shut down before its turn");
        }
        shared.wait_until_idle(&mut patience);
        for job in shared.unfinished_jobs() {
            let reason = "the tier was shut down while it was under way";
            shared.end_early(&job, 0..job.keys.len(), ErrorKind::Shutdown, reason);
        }
        shared.store.0.leases_ended();
        // A probe may be stuck as well.
        while shared.store.0.close(patience.slice()) > 0 && !patience.is_over() {}
        let clock = self.clock.lock().take();
        if let Some(clock) = clock {
            // It holds no lock across anything that waits. A panic there would have been a defect, and is over now.
            let _ = clock.join();
        }
        let mut state = shared.state.lock();
        let region = state.region.take();
        let stuck = state.queues.under_way();
        drop(state);
        // Giving memory back may take its time.
        drop(region);
        Ok(stuck)
    }

    /// Takes all blocks of the namespace away, for every process: jobs that are open fail with [`ErrorKind::Reset`],
    /// and nothing of them is published afterwards. Waits until the storage is done with them, at most for `timeout`, and
    /// while `gave_up`, which is asked every now and then on this thread, says false.
    ///
    /// # Errors
    /// `Unavailable` when the storage was not done in time, and whatever the store's own reset fails with; the blocks
    /// may be there then. `Forked`, `Shutdown`, `ReadOnly`.
    pub fn reset(&self, timeout: Duration, gave_up: impl FnMut() -> bool) -> Result<()> {
        process::check("tier", self.home)?;
        let shared = &self.shared;
        if shared.info.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the tier was opened read-only, so it can't be reset"));
        }
        {
            let mut state = shared.state.lock();
            match state.phase {
                Phase::Open => state.phase = Phase::Resetting,
                Phase::Resetting => {
                    return Err(Error::new(ErrorKind::Unavailable, "another reset is under way"));
                }
                Phase::Closed => return Err(closed()),
            }
            shared.index.lock().stop_scan();
            state.queues.drain();
        }
        for job in shared.unfinished_jobs() {
            shared.end_early(&job, 0..job.keys.len(), ErrorKind::Reset, "the namespace was reset meanwhile");
        }
        shared.store.0.leases_ended();
        let outcome = if shared.wait_until_idle(&mut Patience::new(timeout, gave_up)) {
            shared.store.0.reset()
        } else {
            Err(Error::new(ErrorKind::Unavailable, "operations are still under way, so nothing was reset"))
        };
        {
            let mut state = shared.state.lock();
            if state.phase == Phase::Resetting {
                state.phase = Phase::Open;
            }
            let mut index = shared.index.lock();
            index.clear();
            shared.waiting_probes.store(0, Ordering::Release);
            if outcome.is_ok() && shared.info.exclusive {
                // Nobody else can have added any block to the empty namespace.
                index.knows_all();
            }
        }
        if outcome.is_ok() {
            shared.emit(Event::Cleared);
        } else {
            shared.start_scan(false)?;
        }
        shared.schedule();
        outcome
    }
}

/// How long a caller waits.
struct Patience<F> {
    until: Option<Instant>,
    gave_up: F,
    over: bool,
}

impl<F: FnMut() -> bool> Patience<F> {
    fn new(timeout: Duration, gave_up: F) -> Self {
        Self { until: deadline(Some(timeout)), gave_up, over: false }
    }

    /// Whether it has ended; asks the caller.
    fn is_over(&mut self) -> bool {
        self.over = self.over || self.until.is_some_and(|until| Instant::now() >= until) || (self.gave_up)();
        self.over
    }

    /// For how long to wait before asking (again) whether it is over.
    fn slice(&self) -> Duration {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        if self.over { Duration::ZERO } else { self.until.map_or(ASK_EVERY, |until| left(until).min(ASK_EVERY)) }
    }
}

impl Shared {
    fn unfinished_jobs(&self) -> Vec<Arc<Job>> {
        self.state.lock().open.values().filter(|job| !job.is_finished()).cloned().collect()
    }

    /// Waits until nothing is under way; false when the caller's patience ended first.
    fn wait_until_idle(&self, patience: &mut Patience<impl FnMut() -> bool>) -> bool {
        let mut state = self.state.lock();
        while state.queues.under_way() > 0 {
            let slice = Instant::now() + patience.slice();
            if self.ended.wait_until(&mut state, slice) && state.queues.under_way() > 0 {
                // Foreign code runs without the lock.
                drop(state);
                if patience.is_over() {
                    return self.state.lock().queues.under_way() == 0;
                }
                state = self.state.lock();
            }
        }
        true
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.home.is_surely_here() {
            // The only error is about a fork, which was just ruled out.
            let _ = self.shutdown(DROP_GRACE, || false);
        } else {
            // The parent's threads don't exist here, and locks may be held for ever: touch nothing, free nothing.
            std::mem::forget(Arc::clone(&self.shared));
            if let Some(clock) = self.clock.get_mut().take() {
                std::mem::forget(clock);
            }
        }
    }
}
