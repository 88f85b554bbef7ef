//! The thread that ends jobs at their deadlines, and begins steps in the place of a caller that leaves word.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use super::handover::{LINGER, tick};
use super::job::{Job, JobKey, JobKind};
use super::{Phase, Shared, State};
use crate::error::{Error, ErrorKind, Result};

/// Deadlines of the jobs that were submitted, in order. All jobs of a kind have the same timeout, so two queues do.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    loads: VecDeque<Deadline>,
    stores: VecDeque<Deadline>,
    /// When the clock will look next; `None` while it has nothing to wait for.
    next: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    job: JobKey,
}

impl Deadlines {
    /// Adds a job's deadline; returns whether the clock has to be told.
    pub(super) fn push(&mut self, job: &Job) -> bool {
        let queue = match job.kind {
            JobKind::Load => &mut self.loads,
            JobKind::Store => &mut self.stores,
        };
        queue.push_back(Deadline { at: job.deadline, job: job.key });
        self.next.is_none_or(|next| job.deadline < next)
    }
}

pub(super) fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    std::thread::Builder::new()
        .name("kvtier-clock".into())
        .spawn(move || run(&shared))
        .map_err(|e| Error::from_io("starting the clock thread", e))
}

fn run(shared: &Arc<Shared>) {
    let mut state = shared.state.lock();
    // When it found word of the caller last; `None` while it doesn't look for any.
    let mut word: Option<Instant> = None;
    while state.phase != Phase::Closed {
        let now = Instant::now();
        let due = take_due(&mut state, now);
        if !due.is_empty() {
            for job in &due {
                state.queues.remove(job);
            }
            drop(state);
            for job in due {
                let reason = match job.kind {
                    JobKind::Load => "not done within load_timeout",
                    JobKind::Store => "not done within store_timeout",
                };
                shared.end_early(&job, 0..job.keys.len(), ErrorKind::Timeout, reason);
            }
            shared.store.0.leases_ended();
            state = shared.state.lock();
            continue;
        }
        let called = shared.handover.take_word();
        if called || shared.handover.begin_to_look() {
            word = Some(now);
        }
        if called && shared.wants_pump(&mut state) {
            drop(state);
            shared.spawn_pump();
            state = shared.state.lock();
            continue;
        }
        if word.is_some_and(|word| now - word >= LINGER) && shared.handover.sleep() {
            word = None;
        }
        let look = word.map(|word| now + tick(now - word));
        match state.deadlines.next.into_iter().chain(look).min() {
            Some(next) => {
                shared.tick.wait_until(&mut state, next);
            }
            None => shared.tick.wait(&mut state),
        }
    }
}

/// Takes the jobs whose time is over, forgets those that have finished, and notes when to look next.
fn take_due(state: &mut State, now: Instant) -> Vec<Arc<Job>> {
    let State { deadlines, open, .. } = state;
    let mut due = Vec::new();
    deadlines.next = None;
    for queue in [&mut deadlines.loads, &mut deadlines.stores] {
        while let Some(front) = queue.front() {
            // The number may be in use again, by a job with a later deadline that has an entry of its own.
            let job = open.get(&front.job).filter(|job| job.deadline == front.at && !job.is_finished());
            match job {
                Some(job) if front.at <= now => due.push(Arc::clone(job)),
                Some(_) => {
                    deadlines.next = Some(deadlines.next.map_or(front.at, |next| next.min(front.at)));
                    break;
                }
                None => {}
            }
            queue.pop_front();
        }
    }
    due
}
