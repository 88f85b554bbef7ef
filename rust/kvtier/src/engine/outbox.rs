//! Results and events on their way to the caller.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use super::job::JobResult;
use crate::error::{Error, ErrorKind, Result};
use crate::index::Set;
use crate::layout::BlockKey;
use crate::sync::{Condvar, Mutex};

/// Finished jobs, in the order of finishing; a descriptor is readable while there are any.
#[derive(Debug)]
pub(super) struct Outbox {
    inner: Mutex<Inner>,
    changed: Condvar,
    ready: OwnedFd,
}

#[derive(Debug, Default)]
struct Inner {
    results: Vec<JobResult>,
    /// Jobs that were submitted and have no result yet.
    unfinished: Set<u64>,
}

impl Outbox {
    pub(super) fn new() -> Result<Self> {
        let ready = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|e| {
            Error::new(ErrorKind::Unavailable, "no descriptor for announcing results")
                .with_source(std::io::Error::from(e))
        })?;
        Ok(Self { inner: Mutex::default(), changed: Condvar::new(), ready })
    }

    /// A job was submitted.
    pub(super) fn expect(&self, job: u64) {
        self.inner.lock().unfinished.insert(job);
    }

    /// A job has its result.
    pub(super) fn push(&self, result: JobResult) {
        let mut inner = self.inner.lock();
        if inner.results.is_empty() {
            // A full counter (impossible: it is emptied whenever results are taken) would be readable all the same.
            let _ = rustix::io::write(&self.ready, &1_u64.to_ne_bytes());
        }
        inner.unfinished.remove(&result.job_id);
        inner.results.push(result);
        self.changed.notify_all();
    }

    /// Takes all results.
    pub(super) fn take(&self) -> Vec<JobResult> {
        let mut inner = self.inner.lock();
        if inner.results.is_empty() {
            return Vec::new();
        }
        let _ = rustix::io::read(&self.ready, &mut [0_u8; 8]);
        std::mem::take(&mut inner.results)
    }

    /// Waits until `job` has its result (which somebody may have taken by now), or any job where none is named; false
    /// when `until` came first.
    pub(super) fn wait(&self, job: Option<u64>, until: Option<Instant>) -> bool {
        self.wait_for(until, |inner| match job {
            Some(id) => !inner.unfinished.contains(&id),
            None => !inner.results.is_empty(),
        })
    }

    /// Waits until every job has its result; false when `until` came first.
    pub(super) fn drain(&self, until: Option<Instant>) -> bool {
        self.wait_for(until, |inner| inner.unfinished.is_empty())
    }

    pub(super) fn unfinished(&self) -> usize {
        self.inner.lock().unfinished.len()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn wait_for(&self, until: Option<Instant>, reached: impl Fn(&Inner) -> bool) -> bool {
        let mut inner = self.inner.lock();
        while !reached(&inner) {
            match until {
                None => self.changed.wait(&mut inner),
                Some(until) => {
                    if self.changed.wait_until(&mut inner, until) {
                        return reached(&inner);
                    }
                }
            }
        }
        true
    }
}

/// Something that others who route by content want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The block is visible to every reader. Also sent for blocks that were here already.
    Stored(BlockKey),
    /// The block is not here any more: it was missing or proven bad when loaded, or dropped for want of room.
    Removed(BlockKey, ErrorKind),
    /// All blocks are gone: the namespace was reset.
    Cleared,
}

/// How many events wait for the caller; older ones give way, and are counted.
const EVENTS_KEPT: usize = 1 << 16;

/// Events, in the order in which they became true.
#[derive(Debug, Default)]
pub(super) struct EventLog(Mutex<VecDeque<Event>>);

impl EventLog {
    /// Adds an event; returns how many were lost.
    pub(super) fn push(&self, event: Event) -> u64 {
        let mut events = self.0.lock();
        let full = events.len() >= EVENTS_KEPT;
        if full {
            events.pop_front();
        }
        events.push_back(event);
        u64::from(full)
    }

    pub(super) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.0.lock()).into()
    }
}
