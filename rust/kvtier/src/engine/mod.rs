//! Jobs, queues, limits, deadlines, results: what turns the caller's jobs into operations of a store.
//!
//! The caller's thread only moves a job into a queue, or asks the index; it never does IO, waits, or takes a lock that
//! is held across IO. Operations run on the threads of the store. Each such thread that has nothing else to do *pumps*:
//! it takes the next operation that the limits allow, begins it, and so on until nothing is ready. A store that finishes
//! operations at once is driven by as many pumps as it has threads; one that finishes them later (a ring, a network)
//! by a few pumps that begin as much as the limits allow.
//!
//! Exactly one result comes out of each job, whatever happens: an operation's outcome is taken by whoever closes its
//! [`Gate`](crate::buffer::Gate) first (the store's answer, the clock, a shutdown, a reset), and an answer that a store
//! loses, by a panic too, is given by dropping it ([`Done`](crate::store::Done)). Once the result is out, the gate keeps everybody from the
//! row.

mod clock;
mod handover;
mod job;
mod open;
mod outbox;
mod outcome;
mod pump;
mod queue;
mod rows;
mod scan;
mod shutdown;
mod step_time;
#[cfg(test)]
mod tests;
mod transfer;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

pub use self::job::{JobKind, JobResult};
pub use self::open::warm_up;
pub use self::outbox::Event;

use self::clock::Deadlines;
use self::handover::Handover;
use self::job::{Apart, Job, JobKey};
use self::outbox::{EventLog, Outbox};
use self::queue::{Limits, Queues};
use self::rows::RowsInUse;
use self::step_time::StepTime;
use crate::buffer::Region;
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Answer, Index, IndexConfig, Lookup, Map, RequestId};
use crate::layout::BlockKey;
use crate::metrics::Metrics;
use crate::process::{self, Home};
use crate::recurring::Recurring;
use crate::store::{BlockStore, Known, Residency, StoreInfo};
use crate::sync::{Condvar, Mutex};

/// Limits and deadlines of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Operations under way at the same time; a store that works on fewer at once gets fewer.
    pub max_inflight_ops: usize,
    /// Bytes under way at the same time; one operation is always allowed.
    pub max_inflight_bytes: u64,
    /// Bytes of stores that may wait; a job that would go beyond is dropped at once, unless nothing waits.
    pub max_queued_store_bytes: u64,
    /// From submission of a load to its result.
    pub load_timeout: Duration,
    /// From submission of a store to its result.
    pub store_timeout: Duration,
    /// How long a request is told RETRY before a probe that doesn't answer counts as MISS.
    pub lookup_timeout: Duration,
    /// Whether what is asked and submitted begins only at [`Engine::end_step`], in one go: for a caller that works in
    /// steps and counts the microseconds of each call, since waking a thread costs more than queueing a job. While such
    /// steps keep coming, the caller wakes nobody at all, and a step begins up to a millisecond after its end. Asking for
    /// results ends a step too.
    pub stepwise: bool,
    /// Whether [`Engine::take_events`] has something to take.
    pub events: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_inflight_ops: 128,
            max_inflight_bytes: 256 << 20,
            max_queued_store_bytes: 4 << 30,
            load_timeout: Duration::from_secs(30),
            store_timeout: Duration::from_secs(60),
            lookup_timeout: Duration::from_secs(2),
            stepwise: false,
            events: true,
        }
    }
}

/// Where the engine's log records come from, in whichever of its files: loggers' names are known to users.
const LOG_TARGET: &str = module_path!();

/// How often a caller that waits is asked whether it still does.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Moves blocks between rows and one store. See the [module](self).
///
/// All methods may be called from any thread. Dropping it shuts it down with [`DROP_GRACE`].
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    home: Home,
    clock: Mutex<Option<JoinHandle<()>>>,
}

/// How long dropping an engine waits for operations that are touching rows.
pub const DROP_GRACE: Duration = Duration::from_secs(2);

/// What the engine's threads share.
///
/// Locks are taken in this order, and none is held while a store is called: `state`, `index`, then the outbox or events.
#[derive(Debug)]
struct Shared {
    store: StoreHandle,
    residency: Option<ResidencyHandle>,
    info: StoreInfo,
    config: EngineConfig,
    /// Pumps at the same time.
    max_pumps: usize,
    /// Batches of probes under way at the same time.
    max_probes: usize,
    num_rows: usize,
    writable: bool,
    state: Mutex<State>,
    /// Signalled when an operation has ended.
    ended: Condvar,
    /// Signalled when the clock has to look at the deadlines again, or for word of the caller.
    tick: Condvar,
    handover: Handover,
    step_time: StepTime,
    index: Mutex<Index>,
    /// Keys in the index that wait to be probed; a hint that spares pumps the index's lock.
    waiting_probes: AtomicUsize,
    /// Loads whose time is over while the system still reads into their rows. The tier is degraded while there are any.
    overdue_loads: AtomicUsize,
    /// Whether the phase is [`Phase::Closed`], for those who don't take the lock.
    closed: AtomicBool,
    outbox: Outbox,
    events: EventLog,
    metrics: Metrics,
    failed_probes: Recurring,
}

struct StoreHandle(Arc<dyn BlockStore>);

impl std::fmt::Debug for StoreHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BlockStore")
    }
}

struct ResidencyHandle(Arc<dyn Residency>);

impl std::fmt::Debug for ResidencyHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Residency")
    }
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Given up at shutdown, so that the caller can free the rows.
    region: Option<Arc<Region>>,
    queues: Queues,
    /// Jobs whose results were not handed out yet.
    open: Map<JobKey, Arc<Job>>,
    rows: RowsInUse,
    transfers: u64,
    deadlines: Deadlines,
    pumps: usize,
    probing: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing begins until the reset is over.
    Resetting,
    Closed,
}

/// A moment's numbers of an engine.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// Blocks known to be here.
    pub resident_blocks: usize,
    /// Requests that hold verdicts.
    pub open_requests: usize,
    /// Jobs without a result.
    pub open_jobs: usize,
    /// Loads that wait, in blocks.
    pub queued_loads: usize,
    /// Stores that wait, in blocks.
    pub queued_stores: usize,
    /// Operations under way.
    pub inflight_ops: usize,
    /// Whether an overdue read still holds rows: new lookups are MISS, new stores are refused.
    pub degraded: bool,
    /// Whether unknown blocks are answered MISS without a probe.
    pub index_complete: bool,
}

impl Engine {
    /// Starts an engine that moves blocks between the rows of `region` and `store`.
    ///
    /// # Errors
    /// `Config` when a limit is zero or the rows' size is not the store's, `Unavailable` when the system has no thread
    /// or descriptor left, `Forked` when the rows are kept from this process.
    pub fn start(store: Arc<dyn BlockStore>, region: Arc<Region>, config: EngineConfig) -> Result<Self> {
        region.check_home()?;
        let info = store.info();
        if config.max_inflight_ops == 0 || config.max_inflight_bytes == 0 || config.max_queued_store_bytes == 0 {
            return Err(Error::new(ErrorKind::Config, "the engine's limits must be positive"));
        }
        if info.payload_bytes != region.row_bytes() {
            let (rows, blocks) = (region.row_bytes(), info.payload_bytes);
            return Err(Error::new(ErrorKind::Config, format!("rows have {rows} bytes, the store's blocks {blocks}")));
        }
        let limits = Limits {
            ops: config.max_inflight_ops.min(info.concurrency.max(1)),
            bytes: config.max_inflight_bytes,
            op_bytes: region.row_bytes() as u64,
        };
        let num_rows = region.num_rows();
        let index = IndexConfig { lookup_timeout: config.lookup_timeout };
        let residency = store.residency();
        let index = residency.as_ref().map_or_else(|| Index::new(index), |own| Index::over(index, Arc::clone(own)));
        let shared = Arc::new(Shared {
            residency: residency.map(ResidencyHandle),
            store: StoreHandle(store),
            config,
            max_pumps: limits.ops.min(info.threads.max(1)),
            max_probes: limits.ops.div_ceil(2),
            num_rows,
            writable: region.is_writable(),
            state: Mutex::new(State {
                phase: Phase::Open,
                region: Some(region),
                queues: Queues::new(limits),
                open: Map::default(),
                rows: RowsInUse::new(num_rows),
                transfers: 0,
                deadlines: Deadlines::default(),
                pumps: 0,
                probing: 0,
            }),
            ended: Condvar::new(),
            tick: Condvar::new(),
            handover: Handover::default(),
            step_time: StepTime::new(),
            index: Mutex::new(index),
            waiting_probes: AtomicUsize::new(0),
            overdue_loads: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            outbox: Outbox::new()?,
            events: EventLog::default(),
            metrics: Metrics::default(),
            failed_probes: Recurring::default(),
            info,
        });
        let clock = clock::start(&shared)?;
        shared.follow_drops();
        shared.start_scan(false)?;
        Ok(Self { shared, home: Home::here(), clock: Mutex::new(Some(clock)) })
    }

    /// What the store says about itself.
    pub fn store_info(&self) -> &StoreInfo {
        &self.shared.info
    }

    /// Whether `key` is here. With a request, the answer stays the same until [`Engine::release`], except that a
    /// completed store turns it to HIT and a failed load to MISS.
    ///
    /// # Errors
    /// `Forked`, `Shutdown`.
    pub fn lookup(&self, key: &BlockKey, request: Option<RequestId>) -> Result<Lookup> {
        self.check()?;
        let shared = &self.shared;
        let degraded = shared.overdue_loads.load(Ordering::Relaxed) > 0;
        let answer = match shared.known_to_all(key, request, degraded) {
            Some(lookup) => Answer { lookup, fresh: true, queued: false },
            None => shared.ask_index(key, request, degraded),
        };
        if answer.fresh {
            match answer.lookup {
                Lookup::Hit => shared.metrics.hits.add(1),
                Lookup::Miss => shared.metrics.misses.add(1),
                Lookup::Retry => shared.metrics.retries.add(1),
            }
        }
        if answer.queued && !shared.config.stepwise {
            shared.schedule();
        }
        Ok(answer.lookup)
    }

    /// Forgets the verdicts that were given to `request`.
    ///
    /// # Errors
    /// `Forked`.
    pub fn release(&self, request: RequestId) -> Result<()> {
        self.check_home()?;
        self.shared.index.lock().release(request);
        Ok(())
    }

    /// Takes a job: block `i` is `keys[i]`, in row `rows[i]`. Its result comes out of [`Engine::poll`]. A store that
    /// would exceed the bound of waiting bytes ends at once, its blocks failed with [`ErrorKind::Dropped`].
    ///
    /// # Errors
    /// `InvalidInput` when the job's number is in use, the lengths differ, a row doesn't exist or has other use (a load has
    /// its row alone until its job's result is taken); `ReadOnly` for a store into a read-only tier or a load into
    /// read-only rows; `Forked`, `Shutdown`. Nothing was submitted then.
    pub fn submit(&self, kind: JobKind, job_id: u64, keys: Vec<BlockKey>, rows: Vec<u32>) -> Result<()> {
        let shared = &self.shared;
        shared.check_job(kind, &keys, &rows)?;
        self.submit_job(kind, Some(job_id), keys, rows, None).map(drop)
    }

    /// Takes a job that was checked. Without the caller's number, it gets one of the engine's own.
    fn submit_job(
        &self,
        kind: JobKind,
        job_id: Option<u64>,
        keys: Vec<BlockKey>,
        rows: Vec<u32>,
        apart: Option<Apart>,
    ) -> Result<Arc<Job>> {
        if !self.home.is_surely_here() {
            return Err(process::forked("tier", self.home));
        }
        let shared = &self.shared;
        let timeout = match kind {
            JobKind::Load => shared.config.load_timeout,
            JobKind::Store => shared.config.store_timeout,
        };
        let key = JobKey::Submitted(job_id.unwrap_or_default());
        let mut job = Job::new(key, kind, keys, rows, apart, Instant::now(), timeout);
        let mut state = shared.state.lock();
        if state.phase == Phase::Closed {
            return Err(closed());
        }
        if let Some(id) = job_id {
            if state.open.contains_key(&job.key) {
                let message = format!("job id {id} is in use: its job is not finished, or its result was not taken");
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
            state.rows.take(kind, &job.rows)?;
            shared.outbox.expect(id);
        } else {
            state.transfers += 1;
            job.key = JobKey::Transfer(state.transfers);
        }
        let job = Arc::new(job);
        state.open.insert(job.key, Arc::clone(&job));
        if job.keys.is_empty() {
            drop(state);
            shared.deliver(&job);
            return Ok(job);
        }
        if let Some((refusal, reason)) = shared.refusal(&state, &job) {
            drop(state);
            shared.end_early(&job, 0..job.keys.len(), refusal, reason);
            return Ok(job);
        }
        if state.deadlines.push(&job) && !shared.handover.is_watched() {
            shared.tick.notify_one();
        }
        state.queues.push(Arc::clone(&job));
        shared.handover.hold();
        let pump = !shared.config.stepwise && shared.wants_pump(&mut state);
        drop(state);
        if pump {
            shared.spawn_pump();
        }
        Ok(job)
    }

    /// A step of the caller is over: what was asked and submitted in it begins, if it has not yet.
    ///
    /// # Errors
    /// `Forked`.
    pub fn end_step(&self) -> Result<()> {
        self.check_home()?;
        self.shared.step_time.step_ends();
        if self.shared.config.stepwise && self.shared.handover.end_step() {
            self.shared.schedule();
        }
        Ok(())
    }

    /// Whoever waits wants what the results come from to be under way.
    fn begin_held(&self) {
        if self.shared.config.stepwise {
            self.shared.handover.insist();
            self.shared.schedule();
        }
    }

    /// Takes the results of jobs that have finished since the last call. Each job comes out exactly once.
    ///
    /// # Errors
    /// `Forked`.
    pub fn poll(&self) -> Result<Vec<JobResult>> {
        self.check_home()?;
        self.shared.step_time.step_ends();
        if self.shared.config.stepwise && self.shared.handover.ask() {
            self.shared.schedule();
        }
        let results = self.shared.outbox.take();
        if !results.is_empty() {
            let state = &mut *self.shared.state.lock();
            for result in &results {
                if let Some(job) = state.open.remove(&JobKey::Submitted(result.job_id)) {
                    state.rows.give_back(job.kind, &job.rows);
                }
            }
        }
        Ok(results)
    }

    /// Waits until the result of `job_id` can be taken, or any result where no job is named; false when `timeout` came
    /// first.
    ///
    /// # Errors
    /// `InvalidInput` when no such job is open; `Forked`.
    pub fn wait(&self, job_id: Option<u64>, timeout: Option<Duration>) -> Result<bool> {
        self.check_home()?;
        if let Some(id) = job_id
            && !self.shared.state.lock().open.contains_key(&JobKey::Submitted(id))
        {
            return Err(Error::new(ErrorKind::InvalidInput, format!("no job {id} is open")));
        }
        self.begin_held();
        Ok(self.shared.outbox.wait(job_id, deadline(timeout)))
    }

    /// Waits until every submitted job has its result; false when `timeout` came first.
    ///
    /// # Errors
    /// `Forked`.
    pub fn drain(&self, timeout: Option<Duration>) -> Result<bool> {
        self.check_home()?;
        self.begin_held();
        Ok(self.shared.outbox.drain(deadline(timeout)))
    }

    /// A descriptor that is readable while results wait. It belongs to the engine.
    ///
    /// # Errors
    /// `Forked`.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.check_home()?;
        Ok(self.shared.outbox.descriptor())
    }

    /// These blocks were used just now, so a store that drops blocks for want of room drops others first.
    ///
    /// # Errors
    /// `Forked`, `Shutdown`.
    pub fn touch(&self, keys: &[BlockKey]) -> Result<()> {
        self.check()?;
        if let Some(ResidencyHandle(residency)) = &self.shared.residency {
            residency.touch(keys);
        }
        Ok(())
    }

    /// Keeps blocks from being dropped for want of room by this process, until a moment or for good. Says for each whether
    /// it is known to be here, and so pinned. A store that drops no blocks has nothing to keep.
    ///
    /// # Errors
    /// `Capacity` when the store does not promise so much: nothing was pinned then. `Forked`, `Shutdown`.
    pub fn pin(&self, keys: &[BlockKey], until: Option<SystemTime>) -> Result<Vec<bool>> {
        self.check()?;
        if let Some(ResidencyHandle(residency)) = &self.shared.residency {
            return residency.pin(keys, until);
        }
        let index = self.shared.index.lock();
        Ok(keys.iter().map(|key| index.location(key).is_some()).collect())
    }

    /// These blocks may be dropped again; keys that are not pinned are left alone.
    ///
    /// # Errors
    /// `Forked`, `Shutdown`.
    pub fn unpin(&self, keys: &[BlockKey]) -> Result<()> {
        self.check()?;
        if let Some(ResidencyHandle(residency)) = &self.shared.residency {
            residency.unpin(keys);
        }
        Ok(())
    }

    /// Takes the events since the last call, in order.
    ///
    /// # Errors
    /// `Forked`.
    pub fn take_events(&self) -> Result<Vec<Event>> {
        self.check_home()?;
        Ok(self.shared.events.take())
    }

    /// The counters.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// The moment's numbers.
    ///
    /// # Errors
    /// `Forked`.
    pub fn gauges(&self) -> Result<Gauges> {
        self.check_home()?;
        let shared = &self.shared;
        let mut gauges = {
            let state = shared.state.lock();
            Gauges {
                queued_loads: state.queues.queued(JobKind::Load),
                queued_stores: state.queues.queued(JobKind::Store),
                inflight_ops: state.queues.under_way(),
                ..Gauges::default()
            }
        };
        let index = shared.index.lock();
        gauges.resident_blocks = index.resident_blocks();
        gauges.open_requests = index.open_requests();
        gauges.index_complete = index.is_complete();
        drop(index);
        gauges.open_jobs = shared.outbox.unfinished();
        gauges.degraded = shared.overdue_loads.load(Ordering::Relaxed) > 0;
        Ok(gauges)
    }

    /// Forgets what memory knows: residency and verdicts. Storage stays as it is.
    ///
    /// # Errors
    /// `Forked`, `Shutdown`, `Unavailable` when the start-up scan could not be started anew.
    pub fn forget(&self) -> Result<()> {
        self.check()?;
        self.shared.start_scan(true)
    }

    /// In a forked child: gives up what is shared with the parent, without taking any lock.
    pub fn abandon_in_child(&self) {
        self.shared.store.0.abandon_in_child();
    }

    fn check(&self) -> Result<()> {
        self.check_home()?;
        if self.shared.closed.load(Ordering::Relaxed) { Err(closed()) } else { Ok(()) }
    }

    fn check_home(&self) -> Result<()> {
        process::check("tier", self.home)
    }
}

impl Shared {
    /// What a store that knows all of its blocks answers to nobody in particular: that is no request's verdict, so the
    /// index has no part in it.
    fn known_to_all(&self, key: &BlockKey, request: Option<RequestId>, degraded: bool) -> Option<Lookup> {
        let ResidencyHandle(residency) = self.residency.as_ref().filter(|_| request.is_none())?;
        match residency.find(key) {
            _ if degraded => Some(Lookup::Miss),
            Known::Here(_) => Some(Lookup::Hit),
            Known::Absent => Some(Lookup::Miss),
            Known::Unknown => None,
        }
    }

    fn ask_index(&self, key: &BlockKey, request: Option<RequestId>, degraded: bool) -> Answer {
        let now = || if self.config.stepwise { self.step_time.now() } else { Instant::now() };
        let mut index = self.index.lock();
        let answer = index.lookup(key, request, degraded, now);
        if answer.queued {
            self.waiting_probes.store(index.waiting_probes(), Ordering::Release);
            self.handover.hold();
        }
        answer
    }

    fn check_job(&self, kind: JobKind, keys: &[BlockKey], rows: &[u32]) -> Result<()> {
        if keys.len() != rows.len() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("{} keys but {} row ids: each block has one of both", keys.len(), rows.len()),
            ));
        }
        if let Some(row) = rows.iter().find(|r| **r as usize >= self.num_rows) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("row {row} is out of range: the tier has rows 0 to {}", self.num_rows - 1),
            ));
        }
        self.check_access(kind, self.writable)
    }

    fn check_access(&self, kind: JobKind, writable: bool) -> Result<()> {
        match kind {
            JobKind::Load if !writable => Err(Error::new(
                ErrorKind::ReadOnly,
                "the rows are read-only memory, so nothing can be loaded into them",
            )),
            JobKind::Store if self.info.read_only => {
                Err(Error::new(ErrorKind::ReadOnly, "the tier was opened read-only, so nothing can be stored"))
            }
            _ => Ok(()),
        }
    }

    /// Why a job is refused at once, if it is.
    fn refusal(&self, state: &State, job: &Job) -> Option<(ErrorKind, &'static str)> {
        if job.kind == JobKind::Load {
            return None;
        }
        if self.overdue_loads.load(Ordering::Relaxed) > 0 {
            return Some((ErrorKind::Degraded, "the storage is not answering: an overdue read still holds rows"));
        }
        let (queued, bytes) = (state.queues.queued_store_bytes(), (job.keys.len() * self.info.payload_bytes) as u64);
        (queued > 0 && queued + bytes > self.config.max_queued_store_bytes)
            .then_some((ErrorKind::Dropped, "the storage is too slow: max_queued_store_bytes are waiting already"))
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Shutdown, "the tier was shut down")
}

fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|t| Instant::now().checked_add(t))
}
