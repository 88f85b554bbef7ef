//! What waits to be worked on, what is being worked on, and which comes next.

use std::collections::VecDeque;
use std::sync::Arc;

use super::job::{Job, JobKind};

/// Limits of what is worked on at the same time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Operations under way, both kinds together.
    pub(super) ops: usize,
    /// Bytes under way, both kinds together; one operation is always allowed.
    pub(super) bytes: u64,
    /// Bytes of one operation.
    pub(super) op_bytes: u64,
}

/// While loads and stores both wait, one operation in this many is a store: loads hold up requests that are being
/// served, stores only fill memory, but stores that never run end as failures.
const STORE_TURN: u32 = 4;

/// One operation to work on.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) job: Arc<Job>,
    pub(super) index: usize,
}

/// Jobs with operations that have not begun.
#[derive(Debug)]
pub(super) struct Queues {
    limits: Limits,
    loads: VecDeque<Pending>,
    stores: VecDeque<Pending>,
    loads_under_way: usize,
    stores_under_way: usize,
    /// Loads taken while stores waited.
    loads_in_a_row: u32,
    queued_loads: usize,
    queued_stores: usize,
}

#[derive(Debug)]
struct Pending {
    job: Arc<Job>,
    next: usize,
}

impl Queues {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            loads: VecDeque::new(),
            stores: VecDeque::new(),
            loads_under_way: 0,
            stores_under_way: 0,
            loads_in_a_row: 0,
            queued_loads: 0,
            queued_stores: 0,
        }
    }

    pub(super) fn push(&mut self, job: Arc<Job>) {
        let (queue, queued) = match job.kind {
            JobKind::Load => (&mut self.loads, &mut self.queued_loads),
            JobKind::Store => (&mut self.stores, &mut self.queued_stores),
        };
        *queued += job.keys.len();
        queue.push_back(Pending { job, next: 0 });
    }

    /// Whether [`Queues::take`] would give something.
    pub(super) fn has_ready(&self) -> bool {
        self.may_begin(JobKind::Load) || self.may_begin(JobKind::Store)
    }

    /// The next operation, which counts as under way until [`Queues::ended`].
    pub(super) fn take(&mut self) -> Option<Operation> {
        let load = self.may_begin(JobKind::Load);
        let store = self.may_begin(JobKind::Store);
        let kind = match (load, store) {
            (false, false) => return None,
            (true, true) if self.loads_in_a_row + 1 >= STORE_TURN => JobKind::Store,
            (true, _) => JobKind::Load,
            (false, true) => JobKind::Store,
        };
        self.loads_in_a_row = if kind == JobKind::Load && store { self.loads_in_a_row + 1 } else { 0 };
        let (queue, queued, under_way) = match kind {
            JobKind::Load => (&mut self.loads, &mut self.queued_loads, &mut self.loads_under_way),
            JobKind::Store => (&mut self.stores, &mut self.queued_stores, &mut self.stores_under_way),
        };
        let pending = queue.front_mut()?;
        let index = pending.next;
        pending.next += 1;
        let job =
            if pending.next == pending.job.keys.len() { queue.pop_front()?.job } else { Arc::clone(&pending.job) };
        *queued -= 1;
        *under_way += 1;
        Some(Operation { job, index })
    }

    /// An operation that was taken has ended.
    pub(super) fn ended(&mut self, kind: JobKind) {
        match kind {
            JobKind::Load => self.loads_under_way -= 1,
            JobKind::Store => self.stores_under_way -= 1,
        }
    }

    /// Takes out everything that has not begun: each job, with its first operation that has not.
    pub(super) fn drain(&mut self) -> Vec<(Arc<Job>, usize)> {
        self.queued_loads = 0;
        self.queued_stores = 0;
        self.loads.drain(..).chain(self.stores.drain(..)).map(|p| (p.job, p.next)).collect()
    }

    /// Takes `job` out, if it waits here. What has begun of it goes on.
    pub(super) fn remove(&mut self, job: &Job) {
        let (queue, queued) = match job.kind {
            JobKind::Load => (&mut self.loads, &mut self.queued_loads),
            JobKind::Store => (&mut self.stores, &mut self.queued_stores),
        };
        // Deadlines come in the order of submission, so it is at or near the front.
        if let Some(at) = queue.iter().position(|p| p.job.key == job.key)
            && let Some(pending) = queue.remove(at)
        {
            *queued -= pending.job.keys.len() - pending.next;
        }
    }

    pub(super) fn queued(&self, kind: JobKind) -> usize {
        match kind {
            JobKind::Load => self.queued_loads,
            JobKind::Store => self.queued_stores,
        }
    }

    pub(super) fn queued_store_bytes(&self) -> u64 {
        self.queued_stores as u64 * self.limits.op_bytes
    }

    pub(super) fn under_way(&self) -> usize {
        self.loads_under_way + self.stores_under_way
    }

    /// Whether an operation of `kind` waits and the limits allow to begin it.
    ///
    /// Each kind leaves room for the other, so that stalled stores don't block loads (a quarter is theirs alone) and
    /// stalled loads don't end all stores (one place is theirs alone).
    fn may_begin(&self, kind: JobKind) -> bool {
        let (waiting, of_kind, most) = match kind {
            JobKind::Load => (self.queued_loads, self.loads_under_way, (self.limits.ops - 1).max(1)),
            JobKind::Store => (self.queued_stores, self.stores_under_way, (self.limits.ops * 3 / 4).max(1)),
        };
        let under_way = self.under_way();
        waiting > 0
            && of_kind < most
            && under_way < self.limits.ops
            && (under_way == 0 || (under_way as u64 + 1) * self.limits.op_bytes <= self.limits.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::job::JobKey;
    use super::*;
    use crate::layout::BlockKey;

    fn job(kind: JobKind, number: u64, blocks: usize) -> Arc<Job> {
        let keys = vec![BlockKey::from_parts(&[7; 32], 0).unwrap(); blocks];
        let key = JobKey::Submitted(number);
        Arc::new(Job::new(key, kind, keys, vec![0; blocks], None, Instant::now(), Duration::from_secs(1)))
    }

    fn queues(ops: usize, bytes: u64, loads: usize, stores: usize) -> Queues {
        let mut queues = Queues::new(Limits { ops, bytes, op_bytes: 100 });
        queues.push(job(JobKind::Load, 1, loads));
        queues.push(job(JobKind::Store, 2, stores));
        queues
    }

    /// What can begin now: loads and stores.
    fn begin_all(queues: &mut Queues) -> (usize, usize) {
        let kinds: Vec<_> = std::iter::from_fn(|| queues.take().map(|operation| operation.job.kind)).collect();
        assert!(!queues.has_ready());
        let loads = kinds.iter().filter(|kind| **kind == JobKind::Load).count();
        (loads, kinds.len() - loads)
    }

    #[test]
    fn operations_under_way_are_bounded_and_each_kind_leaves_room() {
        assert_eq!(begin_all(&mut queues(8, u64::MAX, 100, 0)), (7, 0), "one place is the stores'");
        assert_eq!(begin_all(&mut queues(8, u64::MAX, 0, 100)), (0, 6), "a quarter is the loads'");
        assert_eq!(begin_all(&mut queues(1, u64::MAX, 100, 100)), (1, 0));
        assert_eq!(begin_all(&mut queues(1, u64::MAX, 0, 100)), (0, 1));
        let mut both = queues(8, u64::MAX, 100, 100);
        assert_eq!(begin_all(&mut both), (6, 2), "every fourth is a store");
        both.ended(JobKind::Store);
        assert_eq!(begin_all(&mut both), (1, 0));
        assert_eq!(both.under_way(), 8);
    }

    #[test]
    fn bytes_under_way_are_bounded_and_one_operation_is_always_allowed() {
        assert_eq!(begin_all(&mut queues(8, 399, 100, 0)), (3, 0));
        assert_eq!(begin_all(&mut queues(8, 400, 100, 0)), (4, 0));
        assert_eq!(begin_all(&mut queues(8, 99, 100, 0)), (1, 0));
    }

    #[test]
    fn what_is_taken_out_is_counted_out() {
        let mut queues = queues(8, u64::MAX, 10, 10);
        assert_eq!((queues.queued(JobKind::Load), queues.queued_store_bytes()), (10, 1000));
        begin_all(&mut queues);
        let (loads, stores) = (queues.queued(JobKind::Load), queues.queued(JobKind::Store));
        queues.remove(&job(JobKind::Load, 9, 1));
        queues.remove(&job(JobKind::Store, 1, 1));
        assert_eq!((queues.queued(JobKind::Load), queues.queued(JobKind::Store)), (loads, stores), "others stay");
        queues.remove(&job(JobKind::Load, 1, 10));
        assert_eq!((queues.queued(JobKind::Load), queues.queued(JobKind::Store)), (0, stores));
        let left: Vec<_> = queues.drain().into_iter().map(|(job, next)| (job.key, next)).collect();
        assert_eq!(left, [(JobKey::Submitted(2), 10 - stores)]);
        assert_eq!((queues.queued(JobKind::Store), queues.queued_store_bytes()), (0, 0));
    }
}
