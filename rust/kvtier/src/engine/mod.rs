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
//! loses, by a panic too, is given by dropping it ([`Done`]). Once the result is out, the gate keeps everybody from the
//! row.

mod clock;
mod job;
mod open;
mod outbox;
mod queue;
mod shutdown;
#[cfg(test)]
mod tests;
mod transfer;

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex};

pub use self::job::{JobKind, JobResult};
pub use self::outbox::Event;

use self::clock::Deadlines;
use self::job::{Apart, Job};
use self::outbox::{EventLog, Outbox};
use self::queue::{Limits, Operation, Queues};
use crate::buffer::{Region, RowLease};
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Index, IndexConfig, Lookup, Map, ProbeAnswer, ProbeBatch, RequestId};
use crate::layout::BlockKey;
use crate::metrics::{Metrics, Traffic};
use crate::process::{self, Home};
use crate::store::{BlockStore, Done, Loaded, Probed, StoreInfo, Stored};

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
    /// steps and counts the microseconds of each call, since waking a thread costs more than queueing a job. Asking for
    /// results begins it too.
    pub stepwise: bool,
    /// Whether [`Engine::take_events`] has something to take.
    pub events: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_inflight_ops: 64,
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

/// Keys in one probe: enough to spread a step's questions over a few threads, few enough that the first answers don't
/// wait for the last.
const PROBE_BATCH: usize = 64;

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
    info: StoreInfo,
    config: EngineConfig,
    /// Pumps at the same time.
    max_pumps: usize,
    num_rows: usize,
    writable: bool,
    state: Mutex<State>,
    /// Signalled when an operation has ended.
    ended: Condvar,
    /// Signalled when the clock has to look at the deadlines again.
    tick: Condvar,
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
}

struct StoreHandle(Arc<dyn BlockStore>);

impl std::fmt::Debug for StoreHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BlockStore")
    }
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Given up at shutdown, so that the caller can free the rows.
    region: Option<Arc<Region>>,
    queues: Queues,
    /// Jobs whose results were not handed out yet.
    open: Map<u64, Arc<Job>>,
    deadlines: Deadlines,
    pumps: usize,
    probing: usize,
    /// Counts up whenever a running scan has to stop.
    scan: u64,
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

enum Work {
    Operation(Operation, Arc<Region>),
    Probe(ProbeBatch),
}

impl Engine {
    /// Starts an engine that moves blocks between the rows of `region` and `store`.
    ///
    /// # Errors
    /// `Config` when a limit is zero or the rows' size is not the store's, `Unavailable` when the system has no thread
    /// or descriptor left.
    pub fn start(store: Arc<dyn BlockStore>, region: Arc<Region>, config: EngineConfig) -> Result<Self> {
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
        let shared = Arc::new(Shared {
            store: StoreHandle(store),
            config,
            max_pumps: limits.ops,
            num_rows: region.num_rows(),
            writable: region.is_writable(),
            state: Mutex::new(State {
                phase: Phase::Open,
                region: Some(region),
                queues: Queues::new(limits),
                open: Map::default(),
                deadlines: Deadlines::default(),
                pumps: 0,
                probing: 0,
                scan: 0,
            }),
            ended: Condvar::new(),
            tick: Condvar::new(),
            index: Mutex::new(Index::new(IndexConfig { lookup_timeout: config.lookup_timeout })),
            waiting_probes: AtomicUsize::new(0),
            overdue_loads: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            outbox: Outbox::new()?,
            events: EventLog::default(),
            metrics: Metrics::default(),
            info,
        });
        let clock = clock::start(&shared)?;
        shared.start_scan()?;
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
        let mut index = shared.index.lock();
        let answer = index.lookup(key, request, degraded, Instant::now);
        if answer.queued {
            shared.waiting_probes.store(index.waiting_probes(), Ordering::Release);
        }
        drop(index);
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
    /// `InvalidInput` when the job's number is in use, the lengths differ or a row doesn't exist; `ReadOnly` for a store
    /// into a read-only tier or a load into read-only rows; `Forked`, `Shutdown`. Nothing was submitted then.
    pub fn submit(&self, kind: JobKind, job_id: u64, keys: Vec<BlockKey>, rows: Vec<u32>) -> Result<()> {
        let shared = &self.shared;
        shared.check_job(kind, &keys, &rows)?;
        self.submit_job(kind, Some(job_id), keys, rows, None).map(drop)
    }

    /// Takes a job that was checked; one without a number gets one that no other job has.
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
        let mut job = Job::new(job_id.unwrap_or(u64::MAX), kind, keys, rows, apart, Instant::now(), timeout);
        let mut state = shared.state.lock();
        if state.phase == Phase::Closed {
            return Err(closed());
        }
        if job_id.is_none() {
            while state.open.contains_key(&job.id) {
                job.id -= 1;
            }
        } else if state.open.contains_key(&job.id) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("job id {} is in use: its job is not finished, or its result was not taken", job.id),
            ));
        }
        let job = Arc::new(job);
        state.open.insert(job.id, Arc::clone(&job));
        if job.apart.is_none() {
            shared.outbox.expect(job.id);
        }
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
        if state.deadlines.push(&job) {
            shared.tick.notify_one();
        }
        state.queues.push(Arc::clone(&job));
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
        self.shared.schedule();
        Ok(())
    }

    /// Whoever asks for results wants what they come from to be under way.
    fn begin_held(&self) {
        if self.shared.config.stepwise {
            self.shared.schedule();
        }
    }

    /// Takes the results of jobs that have finished since the last call. Each job comes out exactly once.
    ///
    /// # Errors
    /// `Forked`.
    pub fn poll(&self) -> Result<Vec<JobResult>> {
        self.check_home()?;
        self.begin_held();
        let results = self.shared.outbox.take();
        if !results.is_empty() {
            let mut state = self.shared.state.lock();
            for result in &results {
                state.open.remove(&result.job_id);
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
            && !self.shared.state.lock().open.contains_key(&id)
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

    /// These blocks were used just now. Nothing is evicted in this version, so there is no order to keep.
    ///
    /// # Errors
    /// `Forked`, `Shutdown`.
    pub fn touch(&self, _keys: &[BlockKey]) -> Result<()> {
        self.check()
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
        self.shared.index.lock().clear();
        self.shared.start_scan()
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

thread_local! {
    /// Whether this thread is pumping, so that operations that end on it need no other pump to follow them.
    static PUMPING: Cell<bool> = const { Cell::new(false) };
}

impl Shared {
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

    /// Starts a pump if there is something for it to do.
    fn schedule(self: &Arc<Self>) {
        let pump = self.wants_pump(&mut self.state.lock());
        if pump {
            self.spawn_pump();
        }
    }

    /// Whether another pump has something to do; if so, it is counted, and the caller has to spawn it.
    fn wants_pump(&self, state: &mut State) -> bool {
        let ready = state.phase == Phase::Open && (state.queues.has_ready() || self.may_probe(state));
        let wanted = ready && state.pumps < self.max_pumps;
        state.pumps += usize::from(wanted);
        wanted
    }

    /// One batch after another takes what was asked meanwhile; more at a time only when there are many questions.
    fn may_probe(&self, state: &State) -> bool {
        match self.waiting_probes.load(Ordering::Acquire) {
            0 => false,
            waiting => state.probing == 0 || (waiting >= PROBE_BATCH && state.probing < self.max_pumps.div_ceil(2)),
        }
    }

    fn spawn_pump(self: &Arc<Self>) {
        let pump = Pump { shared: Arc::clone(self), counted: true };
        self.store.0.spawn(Box::new(move || pump.run()));
    }

    fn next_work(&self, state: &mut State) -> Option<Work> {
        if state.phase != Phase::Open {
            return None;
        }
        if self.may_probe(state) {
            let mut index = self.index.lock();
            let batch = index.begin_probes(PROBE_BATCH);
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
    fn probed(self: &Arc<Self>, keys: &[BlockKey], ticket: u64, answers: Result<Vec<Probed>>) {
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
            log::warn!("looking for blocks failed, they count as misses: {error}");
        }
        self.state.lock().probing -= 1;
        self.follow();
    }

    /// Something has ended on this thread: unless the thread is pumping, and so takes what is next itself, see to it
    /// that somebody does.
    fn follow(self: &Arc<Self>) {
        if !PUMPING.get() {
            self.schedule();
        }
    }

    /// Ends operations of `job` that are still open, as failures of `kind`.
    fn end_early(&self, job: &Arc<Job>, operations: std::ops::Range<usize>, kind: ErrorKind, reason: &str) {
        let ended = job.expire(operations, || {
            if job.kind == JobKind::Load {
                self.overdue_loads.fetch_add(1, Ordering::Relaxed);
            }
        });
        if job.kind == JobKind::Load && !ended.is_empty() {
            let mut index = self.index.lock();
            for operation in &ended {
                index.load_failed(&job.keys[*operation], false);
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

    fn deliver(&self, job: &Job) {
        let result = job.result();
        let traffic = self.traffic(job.kind);
        traffic.jobs.add(1);
        traffic.latency.observe(result.transfer_time);
        match &job.apart {
            None => self.outbox.push(result),
            Some(apart) => {
                self.state.lock().open.remove(&job.id);
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

    fn emit(&self, event: Event) {
        if !self.config.events {
            return;
        }
        self.metrics.events_lost.add(self.events.push(event));
    }

    /// Fills the index in the background, where what the store finds is all there can be.
    fn start_scan(self: &Arc<Self>) -> Result<()> {
        if !self.info.exclusive {
            return Ok(());
        }
        let scan = {
            let mut state = self.state.lock();
            state.scan += 1;
            state.scan
        };
        self.index.lock().scan_begins();
        let shared = Arc::clone(self);
        std::thread::Builder::new()
            .name("kvtier-scan".into())
            .spawn(move || shared.scan(scan))
            .map(drop)
            .map_err(|e| Error::from_io("starting the scan of the namespace", e))
    }

    fn scan(&self, scan: u64) {
        const BATCH: usize = 256;
        let still_wanted = || {
            let state = self.state.lock();
            state.scan == scan && state.phase != Phase::Closed
        };
        let mut batch = Vec::with_capacity(BATCH);
        let flush = |batch: &mut Vec<_>| {
            // Asked and added under one lock, so that nothing listed before a reset is added after it.
            let state = self.state.lock();
            let wanted = state.scan == scan && state.phase != Phase::Closed;
            if wanted {
                let mut index = self.index.lock();
                for (key, location) in batch.drain(..) {
                    index.found(&key, location);
                }
            }
            wanted
        };
        let scanned = self.store.0.scan(&mut |key, location| {
            batch.push((key, location));
            batch.len() < BATCH || flush(&mut batch)
        });
        match scanned {
            Ok(()) => {
                if flush(&mut batch) && still_wanted() {
                    self.index.lock().scan_is_complete();
                }
            }
            Err(error) => log::warn!("the namespace could not be listed, unknown blocks are probed instead: {error}"),
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
        while let Some((work, another)) = self.next() {
            if another {
                self.shared.spawn_pump();
            }
            // The operation is answered by dropping its `Done`; the thread goes on.
            if catch_unwind(AssertUnwindSafe(|| self.shared.begin(work))).is_err() {
                log::error!("a block operation panicked; it counts as failed");
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

/// One operation that the store works on; counted out of the queues when it ends or is dropped.
struct UnderWay {
    shared: Arc<Shared>,
    job: Arc<Job>,
    index: usize,
}

impl UnderWay {
    fn end_store(self, stored: Result<Stored>) {
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

    fn end(self, outcome: Result<u64>) {
        let (shared, job, index) = (&self.shared, &self.job, self.index);
        let key = job.keys[index];
        let outcome = outcome.map_err(|error| error.with("key", key));
        let kind = outcome.as_ref().err().map(Error::kind);
        if let (JobKind::Load, Some(kind)) = (job.kind, kind) {
            // Before the result can be seen, so that whoever sees it is not told HIT again.
            let known = shared.index.lock().load_failed(&key, tells_of_the_block(kind));
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

/// Whether a failed load of this kind says that the block itself is not to be had.
fn tells_of_the_block(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::Timeout
            | ErrorKind::Shutdown
            | ErrorKind::Reset
            | ErrorKind::Degraded
            | ErrorKind::ReadOnly
            | ErrorKind::Internal
    )
}

fn closed() -> Error {
    Error::new(ErrorKind::Shutdown, "the tier was shut down")
}

fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|t| Instant::now().checked_add(t))
}
