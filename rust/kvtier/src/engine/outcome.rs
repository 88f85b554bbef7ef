//! How operations and jobs end: who learns what, and in which order.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Shared;
use super::job::{Job, JobKind};
use super::outbox::Event;
use crate::error::{Error, ErrorKind, Result};
use crate::index::Presence;
use crate::metrics::Traffic;
use crate::store::Stored;

impl Shared {
    /// Ends operations of `job` that are still open, as failures of `kind`.
    pub(super) fn end_early(&self, job: &Arc<Job>, operations: Range<usize>, kind: ErrorKind, reason: &str) {
        let ended = job.expire(operations, || {
            if job.kind == JobKind::Load {
                self.overdue_loads.fetch_add(1, Ordering::Relaxed);
            }
        });
        if job.kind == JobKind::Load {
            // In portions: lookups wait for this lock, and a job may have any number of blocks.
            for portion in ended.chunks(256) {
                let mut index = self.index.lock();
                for operation in portion {
                    index.load_failed(&job.keys[*operation], Presence::Unchanged);
                }
            }
        }
        let mut finished = false;
        for operation in ended {
            self.traffic(job.kind).failures.count(kind);
            finished |= job.fail(operation, Error::new(kind, reason).with("key", job.keys[operation]));
        }
        if finished {
            self.deliver(job);
        }
    }

    pub(super) fn deliver(&self, job: &Job) {
        let result = job.result();
        let traffic = self.traffic(job.kind);
        traffic.jobs.add(1);
        traffic.latency.observe(result.transfer_time);
        match &job.apart {
            None => self.outbox.push(result),
            Some(apart) => {
                self.state.lock().open.remove(&job.key);
                // There is room for the one result; nobody takes it when the caller has given up.
                let _ = apart.reply.try_send(result);
            }
        }
    }

    fn traffic(&self, kind: JobKind) -> &Traffic {
        match kind {
            JobKind::Store => &self.metrics.stores,
            JobKind::Load => &self.metrics.loads,
        }
    }

    /// Tells of blocks that the store drops for want of room, from now on.
    pub(super) fn follow_drops(self: &Arc<Self>) {
        let shared = Arc::downgrade(self);
        self.store.0.on_dropped(Box::new(move |keys| {
            if let Some(shared) = shared.upgrade() {
                for key in keys {
                    shared.emit(Event::Removed(*key, ErrorKind::Capacity));
                }
            }
        }));
    }

    pub(super) fn emit(&self, event: Event) {
        if self.config.events {
            self.metrics.events_lost.add(self.events.push(event));
        }
    }
}

/// One operation that the store works on; counted out of the queues when it ends or is dropped.
pub(super) struct UnderWay {
    pub(super) shared: Arc<Shared>,
    pub(super) job: Arc<Job>,
    pub(super) index: usize,
}

impl UnderWay {
    pub(super) fn end_store(self, stored: Result<Stored>) {
        let key = self.job.keys[self.index];
        if let Ok(stored) = &stored {
            // Also when the job's time is over: the block is there.
            self.shared.index.lock().stored(&key, stored.location);
        }
        if let Ok(Stored { bytes: 0, .. }) = stored {
            self.shared.metrics.already_here.add(1);
        }
        self.end(stored.map(|s| s.bytes));
    }

    pub(super) fn end(self, outcome: Result<u64>) {
        let (shared, job, index) = (&self.shared, &self.job, self.index);
        let key = job.keys[index];
        let outcome = outcome.map_err(|error| error.with("key", key));
        let kind = outcome.as_ref().err().map(Error::kind);
        if let (JobKind::Load, Some(kind)) = (job.kind, kind) {
            // Before the result can be seen, so that whoever sees it is not told HIT again.
            let known = shared.index.lock().load_failed(&key, what_is_known(kind));
            if known && (kind == ErrorKind::Missing || kind.is_proof_of_damage()) {
                shared.emit(Event::Removed(key, kind));
            }
        }
        let bytes = *outcome.as_ref().unwrap_or(&0);
        let (taken, finished) = job.finish(index, outcome);
        if taken {
            let traffic = shared.traffic(job.kind);
            if let Some(kind) = kind {
                traffic.failures.count(kind);
            } else {
                traffic.blocks.add(1);
                traffic.bytes.add(bytes);
                if job.kind == JobKind::Store {
                    shared.emit(Event::Stored(key));
                }
            }
            if job.was_overdue(index) && job.kind == JobKind::Load {
                shared.overdue_loads.fetch_sub(1, Ordering::Relaxed);
            }
        }
        if finished {
            shared.deliver(job);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.queues.ended(self.job.kind);
        drop(state);
        self.shared.ended.notify_all();
        self.shared.follow();
    }
}

/// What a failed load of this kind says about the block.
fn what_is_known(kind: ErrorKind) -> Presence {
    match kind {
        ErrorKind::Missing | ErrorKind::UnsupportedVersion => Presence::Gone,
        _ if kind.is_proof_of_damage() => Presence::Gone,
        ErrorKind::Timeout
        | ErrorKind::Shutdown
        | ErrorKind::Reset
        | ErrorKind::Degraded
        | ErrorKind::ReadOnly
        | ErrorKind::Internal => Presence::Unchanged,
        _ => Presence::Doubtful,
    }
}
