//! Pumps: threads of the store that take what is next, begin it, and go on until nothing is ready.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::job::JobKind;
use super::outcome::UnderWay;
use super::queue::Operation;
use super::{LOG_TARGET, Phase, Shared, State};
use crate::buffer::{Region, RowLease};
use crate::error::{Error, Result};
use crate::index::{PROBE_BATCH, ProbeAnswer, ProbeBatch};
use crate::layout::BlockKey;
use crate::store::{Done, Loaded, Probed, Stored};

enum Work {
    Operation(Operation, Arc<Region>),
    Probe(ProbeBatch),
}

thread_local! {
    /// Whether this thread is pumping, so that operations that end on it need no other pump to follow them.
    static PUMPING: Cell<bool> = const { Cell::new(false) };
}

impl Shared {
    /// Starts a pump if there is something for it to do.
    pub(super) fn schedule(self: &Arc<Self>) {
        let pump = self.wants_pump(&mut self.state.lock());
        if pump {
            self.spawn_pump();
        }
    }

    /// Whether another pump has something to do; if so, it is counted, and the caller has to spawn it.
    pub(super) fn wants_pump(&self, state: &mut State) -> bool {
        let ready = state.phase == Phase::Open && (state.queues.has_ready() || self.may_probe(state));
        let wanted = ready && state.pumps < self.max_pumps;
        state.pumps += usize::from(wanted);
        wanted
    }

    /// One batch after another takes what was asked meanwhile; more at a time only when there are many questions.
    fn may_probe(&self, state: &State) -> bool {
        match self.waiting_probes.load(Ordering::Acquire) {
            0 => false,
            waiting => state.probing == 0 || (waiting >= PROBE_BATCH && state.probing < self.max_probes),
        }
    }

    pub(super) fn spawn_pump(self: &Arc<Self>) {
        let pump = Pump { shared: Arc::clone(self), counted: true };
        self.store.0.spawn(Box::new(move || pump.run()));
    }

    /// The caller, whom waking the clock would cost too much, has left that to whoever does its work.
    fn wake_clock_if_wanted(&self) {
        if self.handover.wants_clock() {
            // Under the lock, so that the clock is not just about to wait.
            let _state = self.state.lock();
            self.tick.notify_one();
        }
    }

    fn next_work(&self, state: &mut State) -> Option<Work> {
        if state.phase != Phase::Open {
            return None;
        }
        if self.may_probe(state) {
            let mut index = self.index.lock();
            let batch = index.begin_probes();
            self.waiting_probes.store(index.waiting_probes(), Ordering::Release);
            if let Some(batch) = batch {
                state.probing += 1;
                return Some(Work::Probe(batch));
            }
        }
        let region = Arc::clone(state.region.as_ref()?);
        state.queues.take().map(|operation| Work::Operation(operation, region))
    }

    fn begin(self: &Arc<Self>, work: Work) {
        match work {
            Work::Probe(batch) => self.begin_probe(batch),
            Work::Operation(operation, region) => self.begin_operation(operation, region),
        }
    }

    fn begin_probe(self: &Arc<Self>, ProbeBatch { keys, ticket }: ProbeBatch) {
        self.metrics.probes.add(keys.len() as u64);
        let shared = Arc::clone(self);
        let asked = keys.clone();
        self.store.0.probe(asked, Done::new(move |answers| shared.probed(&keys, ticket, answers)));
    }

    fn begin_operation(self: &Arc<Self>, operation: Operation, region: Arc<Region>) {
        let Operation { job, index } = operation;
        let (kind, key) = (job.kind, job.keys[index]);
        let under_way = UnderWay { shared: Arc::clone(self), job: Arc::clone(&job), index };
        let (region, row) = match &job.apart {
            None => (region, job.rows[index] as usize),
            Some(apart) => (Arc::clone(&apart.rows[index].0), apart.rows[index].1),
        };
        let lease = match RowLease::new(region, row, Arc::clone(&job.gates), index) {
            Ok(lease) => lease,
            Err(error) => return under_way.end(Err(error)),
        };
        if !lease.is_open() {
            // Its job timed out or was cancelled while it waited.
            return drop(under_way);
        }
        match kind {
            JobKind::Load => {
                self.store.0.load(
                    key,
                    lease,
                    Done::new(move |loaded: Result<Loaded>| {
                        under_way.end(loaded.map(|l| l.bytes));
                    }),
                );
            }
            JobKind::Store => {
                let known = self.index.lock().location(&key);
                let receiver = move |stored: Result<Stored>| under_way.end_store(stored);
                match known {
                    Some(location) => receiver(Ok(Stored { location, bytes: 0 })),
                    None => self.store.0.store(key, lease, Done::new(receiver)),
                }
            }
        }
    }

    /// A batch of probes has its answers.
    fn probed(self: &Arc<Self>, keys: &[BlockKey], ticket: u32, answers: Result<Vec<Probed>>) {
        let at = Instant::now();
        let mut trouble: Option<Error> = None;
        {
            let mut index = self.index.lock();
            let mut answers = match answers {
                Ok(answers) => answers.into_iter(),
                Err(error) => {
                    trouble = Some(error);
                    Vec::new().into_iter()
                }
            };
            for key in keys {
                let answer = match answers.next() {
                    Some(Probed::Present(location)) => ProbeAnswer::Present(location),
                    Some(Probed::Absent) => ProbeAnswer::Absent,
                    Some(Probed::Unknown(error)) => {
                        self.metrics.probe_failures.add(1);
                        trouble = Some(error);
                        ProbeAnswer::Absent
                    }
                    None => {
                        self.metrics.probe_failures.add(1);
                        ProbeAnswer::Absent
                    }
                };
                index.probed(key, ticket, answer, at);
            }
        }
        if let Some(error) = trouble {
            self.failed_probes
                .warn(LOG_TARGET, format_args!("looking for blocks failed, they count as misses: {error}"));
        }
        self.state.lock().probing -= 1;
        self.follow();
    }

    /// Something has ended on this thread: unless the thread is pumping, and so takes what is next itself, see to it
    /// that somebody does. Where pumps take turns, one is enough: it calls others if there is so much to do.
    pub(super) fn follow(self: &Arc<Self>) {
        if PUMPING.get() {
            return;
        }
        let pump = {
            let mut state = self.state.lock();
            let is_seen_to = self.info.turn < usize::MAX && state.pumps > 0;
            !is_seen_to && self.wants_pump(&mut state)
        };
        if pump {
            self.spawn_pump();
        }
    }
}

/// A pump, on its way to a thread or running there; however it ends, it is counted out.
struct Pump {
    shared: Arc<Shared>,
    counted: bool,
}

impl Pump {
    fn run(mut self) {
        PUMPING.set(true);
        let mut begun = 0;
        while let Some((work, another)) = self.next() {
            if another {
                self.shared.spawn_pump();
            }
            // The operation is answered by dropping its `Done`; the thread goes on.
            if catch_unwind(AssertUnwindSafe(|| self.shared.begin(work))).is_err() {
                log::error!(target: LOG_TARGET, "a block operation panicked; it counts as failed");
            }
            self.shared.wake_clock_if_wanted();
            begun += 1;
            if begun == self.shared.info.turn {
                PUMPING.set(false);
                let shared = Arc::clone(&self.shared);
                return shared.store.0.spawn(Box::new(move || self.run()));
            }
        }
        PUMPING.set(false);
    }

    /// What to do next, and whether another pump has something to do beside it.
    fn next(&mut self) -> Option<(Work, bool)> {
        let mut state = self.shared.state.lock();
        let work = self.shared.next_work(&mut state);
        if work.is_none() {
            // Under the same lock, so that whoever brings new work sees that nobody is pumping.
            state.pumps -= 1;
            self.counted = false;
        }
        work.map(|work| (work, self.shared.wants_pump(&mut state)))
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        if self.counted {
            self.shared.state.lock().pumps -= 1;
        }
    }
}
