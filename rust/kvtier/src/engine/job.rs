//! One job: what the caller submitted, and how far it is.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::buffer::{Expiry, Gate, Region};
use crate::error::Error;
use crate::layout::BlockKey;
use crate::sync::Mutex;

/// Which way a job's blocks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// From rows to storage.
    Store,
    /// From storage to rows.
    Load,
}

impl JobKind {
    /// `"store"` or `"load"`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Load => "load",
        }
    }
}

/// What became of a job; handed out exactly once.
#[derive(Debug)]
pub struct JobResult {
    /// The caller's number.
    pub job_id: u64,
    /// Which way.
    pub kind: JobKind,
    /// The keys, as submitted.
    pub keys: Vec<BlockKey>,
    /// The blocks that failed: positions in `keys`, in order, with the reason.
    pub failures: Vec<(usize, Error)>,
    /// From submission to the last block's end.
    pub transfer_time: Duration,
    /// Payload bytes that moved; a block that was already stored moves none.
    pub transfer_bytes: u64,
}

impl JobResult {
    /// Whether every block succeeded.
    pub fn is_success(&self) -> bool {
        self.failures.is_empty()
    }
}

/// What a job has of its own that doesn't go the way of all jobs.
#[derive(Debug)]
pub(super) struct Apart {
    /// Where each block lies, in place of the tier's rows.
    pub(super) rows: Vec<(Arc<Region>, usize)>,
    /// Where the result goes, in place of the outbox.
    pub(super) reply: SyncSender<JobResult>,
}

/// What an open job is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum JobKey {
    /// The caller's number.
    Submitted(u64),
    /// A number of the engine's own.
    Transfer(u64),
}

/// A submitted job. Each block is one operation, known by its position.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) key: JobKey,
    pub(super) kind: JobKind,
    pub(super) keys: Vec<BlockKey>,
    pub(super) rows: Vec<u32>,
    pub(super) gates: Arc<[Gate]>,
    pub(super) apart: Option<Apart>,
    pub(super) submitted: Instant,
    pub(super) deadline: Instant,
    /// Operations without an outcome.
    left: AtomicUsize,
    bytes: AtomicU64,
    failures: Mutex<Vec<(usize, Error)>>,
    /// Operations whose time is over while somebody touches their row.
    overdue: Mutex<Vec<usize>>,
}

impl Job {
    pub(super) fn new(
        key: JobKey,
        kind: JobKind,
        keys: Vec<BlockKey>,
        rows: Vec<u32>,
        apart: Option<Apart>,
        submitted: Instant,
        timeout: Duration,
    ) -> Self {
        let n = keys.len();
        Self {
            key,
            kind,
            keys,
            rows,
            gates: (0..n).map(|_| Gate::default()).collect(),
            apart,
            submitted,
            deadline: submitted + timeout,
            left: AtomicUsize::new(n),
            bytes: AtomicU64::new(0),
            failures: Mutex::new(Vec::new()),
            overdue: Mutex::new(Vec::new()),
        }
    }

    /// Takes the outcome of an operation that has ended, unless its outcome was decided before. Returns whether it was
    /// taken, and whether the job has its result now.
    pub(super) fn finish(&self, operation: usize, outcome: Result<u64, Error>) -> (bool, bool) {
        if !self.gates[operation].finish() {
            return (false, false);
        }
        (true, self.record(operation, outcome))
    }

    /// Whether `operation` had been overdue and has now ended. Asked once, after [`Job::finish`] took its outcome.
    pub(super) fn was_overdue(&self, operation: usize) -> bool {
        let mut overdue = self.overdue.lock();
        let before = overdue.len();
        overdue.retain(|o| *o != operation);
        overdue.len() < before
    }

    /// Ends the given operations, as far as they are open, without recording an outcome yet: the caller does that for
    /// each one returned, by [`Job::fail`]. Those that somebody is working on at this moment become overdue; `overdue`
    /// is called once for each.
    pub(super) fn expire(&self, operations: Range<usize>, mut overdue: impl FnMut()) -> Vec<usize> {
        // Held over the whole pass, so that an operation which ends meanwhile finds itself listed (`was_overdue`).
        let mut listed = self.overdue.lock();
        let mut ended = Vec::new();
        for operation in operations {
            match self.gates[operation].expire() {
                Expiry::Final => ended.push(operation),
                Expiry::Deferred if !listed.contains(&operation) => {
                    listed.push(operation);
                    overdue();
                }
                Expiry::Deferred | Expiry::Late => {}
            }
        }
        ended
    }

    /// Records the failure of an operation that [`Job::expire`] ended; returns whether the job has its result now.
    pub(super) fn fail(&self, operation: usize, error: Error) -> bool {
        self.record(operation, Err(error))
    }

    /// Whether every operation has its outcome.
    pub(super) fn is_finished(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// The result; called once, when the job has finished.
    pub(super) fn result(&self) -> JobResult {
        let mut failures = std::mem::take(&mut *self.failures.lock());
        failures.sort_by_key(|(operation, _)| *operation);
        JobResult {
            job_id: match self.key {
                JobKey::Submitted(id) | JobKey::Transfer(id) => id,
            },
            kind: self.kind,
            keys: self.keys.clone(),
            failures,
            transfer_time: self.submitted.elapsed(),
            transfer_bytes: self.bytes.load(Ordering::Relaxed),
        }
    }

    /// Returns whether this was the last outcome.
    fn record(&self, operation: usize, outcome: Result<u64, Error>) -> bool {
        match outcome {
            Ok(bytes) => {
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(error) => self.failures.lock().push((operation, error)),
        }
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
