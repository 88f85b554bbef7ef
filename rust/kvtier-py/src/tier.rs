//! `_kvtier.Tier`: the engine behind `kvtier.TierManager`.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvtier::engine::{Engine, JobKind};
use kvtier::error::{Error, ErrorKind};
use kvtier::index::RequestId;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::arguments::{JobId, config_of, key_of, keys_of, moment_of, row_ids_of, timeout_of};
use crate::errands::{self, RunOnDrop};
use crate::errors::{Result, guarded};
use crate::faults::Faults;
use crate::identity::PyIdentity;
use crate::results::{Event, JobResult};
use crate::rows::{blocks_of, region_of};
use crate::{logging, results, stats};

/// How long a blocking call waits before it looks for signals (Ctrl-C).
const SIGNAL_CHECK: Duration = Duration::from_millis(50);

/// How often a poll looks whether the levels of Python's loggers have changed.
const LEVEL_CHECK: Duration = Duration::from_secs(1);

/// One tier: the methods that are called at every step of an engine. `kvtier.TierManager` adds the rest.
#[pyclass(frozen, subclass, module = "kvtier._kvtier")]
pub(crate) struct Tier {
    engine: Engine,
    requests: Requests,
    closed: AtomicBool,
    levels: LevelCheck,
    num_rows: usize,
    row_bytes: usize,
    /// Last, so that it runs when the engine has given up the rows.
    _release: RunOnDrop,
}

#[pymethods]
impl Tier {
    #[new]
    #[pyo3(signature = (url, identity, rows, options, faults=None))]
    fn new(
        py: Python<'_>,
        url: &Bound<'_, PyString>,
        identity: &Bound<'_, PyIdentity>,
        rows: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
        faults: Option<&Bound<'_, Faults>>,
    ) -> Result<Self> {
        attend(py)?;
        logging::follow_level(py)?;
        let opened = guarded(|| {
            let not_utf8 = |_| Error::new(ErrorKind::Config, "url: it holds characters that UTF-8 has no bytes for");
            let url = url.to_cow().map_err(not_utf8)?;
            let config = config_of(options)?;
            let identity = identity.get().core();
            let row_bytes = identity.facts().row_bytes.map(|n| n as usize);
            let region = region_of("rows", rows, row_bytes)?;
            let faults = faults.map(|faults| faults.get().script());
            let engine = py.detach(|| Engine::open(&url, identity, &region, &config, faults))?;
            Ok(Self {
                engine,
                requests: Requests::new(py),
                closed: AtomicBool::new(false),
                levels: LevelCheck::default(),
                num_rows: region.num_rows(),
                row_bytes: region.row_bytes(),
                _release: RunOnDrop,
            })
        });
        let attended = attend(py); // the rows' owners, if they are not needed after all
        let tier = opened?;
        attended?;
        Ok(tier)
    }

    /// Whether the block is here: `Lookup.HIT`, `MISS`, or `RETRY` (ask again at the next step).
    #[pyo3(signature = (key, request=None))]
    fn lookup(&self, key: &Bound<'_, PyAny>, request: Option<&Bound<'_, PyAny>>) -> Result<Py<PyAny>> {
        let py = key.py();
        attend(py)?;
        guarded(|| {
            let key = key_of(key)?;
            let request = self.requests.id_of(request)?;
            Ok(results::lookup(py, self.engine.lookup(&key, request)?)?)
        })
    }

    /// `lookup` for each of the keys, in order.
    #[pyo3(signature = (keys, request=None))]
    fn lookup_many<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        request: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyList>> {
        let py = keys.py();
        attend(py)?;
        guarded(|| {
            let keys = keys_of(keys)?;
            let request = self.requests.id_of(request)?;
            let answers = PyList::empty(py);
            for key in &keys {
                answers.append(results::lookup(py, self.engine.lookup(key, request)?)?)?;
            }
            Ok(answers)
        })
    }

    /// The request is over: its verdicts are forgotten. Unknown ones are ignored.
    fn release(&self, request: &Bound<'_, PyAny>) -> Result<()> {
        attend(request.py())?;
        guarded(|| match self.requests.take(request)? {
            Some(id) => Ok(self.engine.release(id)?),
            None => Ok(()),
        })
    }

    /// Stores row `row_ids[i]` under `keys[i]`, in the background; the result comes from `get_finished_jobs`.
    #[pyo3(signature = (job_id, keys, row_ids, stream=None))]
    fn submit_store(
        &self,
        job_id: JobId,
        keys: &Bound<'_, PyAny>,
        row_ids: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<()> {
        self.submit(JobKind::Store, job_id, keys, row_ids, stream)
    }

    /// Loads the block under `keys[i]` into row `row_ids[i]`, in the background; the result comes from
    /// `get_finished_jobs`.
    #[pyo3(signature = (job_id, keys, row_ids, stream=None))]
    fn submit_load(
        &self,
        job_id: JobId,
        keys: &Bound<'_, PyAny>,
        row_ids: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<()> {
        self.submit(JobKind::Load, job_id, keys, row_ids, stream)
    }

    /// The results of jobs that have finished since the last call; each job's exactly once.
    fn get_finished_jobs<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyList>> {
        attend(py)?;
        self.levels.look(py)?;
        guarded(|| {
            let results = self.engine.poll()?;
            Ok(PyList::new(py, results.iter().map(|r| JobResult::of(py, r)).collect::<PyResult<Vec<_>>>()?)?)
        })
    }

    /// A step of the caller is over: what was asked and submitted in it begins, if it has not yet.
    fn end_step(&self, py: Python<'_>) -> Result<()> {
        attend(py)?;
        guarded(|| Ok(self.engine.end_step()?))
    }

    /// Waits until the job's result can be taken, or any result where no job is named; False when `timeout` seconds
    /// have passed first.
    #[pyo3(signature = (job_id=None, timeout=None))]
    fn wait(&self, py: Python<'_>, job_id: Option<JobId>, timeout: Option<f64>) -> Result<bool> {
        let job_id = job_id.map(|JobId(id)| id);
        block(py, timeout_of(timeout)?, |slice| self.engine.wait(job_id, Some(slice)))
    }

    /// Waits until every job has its result; False when `timeout` seconds have passed first.
    #[pyo3(signature = (timeout=None))]
    fn drain_jobs(&self, py: Python<'_>, timeout: Option<f64>) -> Result<bool> {
        block(py, timeout_of(timeout)?, |slice| self.engine.drain(Some(slice)))
    }

    /// A descriptor that is readable while results wait, for select, epoll or asyncio. It belongs to the tier.
    fn fileno(&self) -> Result<i32> {
        guarded(|| Ok(self.engine.descriptor()?.as_raw_fd()))
    }

    /// These blocks were used just now.
    fn touch(&self, keys: &Bound<'_, PyAny>) -> Result<()> {
        attend(keys.py())?;
        guarded(|| {
            let keys = keys_of(keys)?;
            Ok(self.engine.touch(&keys)?)
        })
    }

    /// Keeps blocks when room is made, until a moment (seconds since 1970) or for good; says for each whether it is here.
    #[pyo3(signature = (keys, until=None))]
    fn pin(&self, keys: &Bound<'_, PyAny>, until: Option<f64>) -> Result<Vec<bool>> {
        attend(keys.py())?;
        guarded(|| {
            let keys = keys_of(keys)?;
            Ok(self.engine.pin(&keys, moment_of("until", until)?)?)
        })
    }

    /// These blocks may be dropped again.
    fn unpin(&self, keys: &Bound<'_, PyAny>) -> Result<()> {
        attend(keys.py())?;
        guarded(|| {
            let keys = keys_of(keys)?;
            Ok(self.engine.unpin(&keys)?)
        })
    }

    /// What has happened to blocks since the last call, in order.
    fn take_events<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyList>> {
        attend(py)?;
        guarded(|| Ok(PyList::new(py, self.engine.take_events()?.iter().map(Event::from))?))
    }

    /// Counters and the moment's numbers, as nested dictionaries.
    fn _stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        attend(py)?;
        guarded(|| stats::of(py, &self.engine))
    }

    /// Stores blocks from memory beside the tier's rows, and waits for the result.
    fn store<'py>(&self, keys: &Bound<'py, PyAny>, tensors: &Bound<'py, PyAny>) -> Result<JobResult> {
        self.transfer(JobKind::Store, keys, tensors)
    }

    /// Loads blocks into memory beside the tier's rows, and waits for the result.
    fn load<'py>(&self, keys: &Bound<'py, PyAny>, tensors: &Bound<'py, PyAny>) -> Result<JobResult> {
        self.transfer(JobKind::Load, keys, tensors)
    }

    /// Forgets which blocks are here and what requests were told; storage stays as it is.
    fn forget(&self, py: Python<'_>) -> Result<()> {
        attend(py)?;
        guarded(|| Ok(self.engine.forget()?))
    }

    /// Takes all blocks of the namespace away, for every process. Open jobs fail with kind "reset".
    #[pyo3(signature = (timeout=30.0))]
    fn reset(&self, py: Python<'_>, timeout: Option<f64>) -> Result<()> {
        attend(py)?;
        let timeout = timeout_of(timeout)?.unwrap_or(Duration::MAX);
        interruptible(py, |gave_up| self.engine.reset(timeout, gave_up))
    }

    /// Ends the tier. What waits fails with kind "shutdown"; what is under way may finish within `timeout` seconds.
    /// Results can still be taken; nothing is deleted; the rows are free afterwards.
    #[pyo3(signature = (timeout=10.0))]
    fn shutdown(&self, py: Python<'_>, timeout: Option<f64>) -> Result<()> {
        attend(py)?;
        let timeout = timeout_of(timeout)?.unwrap_or(Duration::MAX);
        let stuck = interruptible(py, |gave_up| {
            let stuck = self.engine.shutdown(timeout, gave_up)?;
            self.closed.store(true, Ordering::Relaxed);
            Ok(stuck)
        });
        let released = attend(py); // the rows' owners, left by the engine
        let stuck = stuck?;
        released?;
        if stuck == 0 {
            return Ok(());
        }
        let message = format!(
            "{stuck} operations are still stuck in the storage; their jobs have failed, but the rows' memory must stay \
             where it is until they end"
        );
        Err(Error::new(ErrorKind::Timeout, message).into())
    }

    /// In a forked child: gives up locks on storage that are shared with the parent.
    fn _abandon_in_child(&self) {
        self.engine.abandon_in_child();
    }

    /// Whether `shutdown` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Where the blocks are, without secrets.
    #[getter]
    fn place(&self) -> &str {
        &self.engine.store_info().place
    }

    /// How bytes move: "threads", "uring" or "network".
    #[getter]
    fn io_engine(&self) -> &'static str {
        self.engine.store_info().io_engine
    }

    /// How many rows there are.
    #[getter]
    fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Bytes of one row.
    #[getter]
    fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let (this, class) = (slf.get(), slf.get_type().qualname()?);
        let closed = if this.closed() { ", closed" } else { "" };
        Ok(format!("<{class} {:?}: {} rows of {} bytes{closed}>", this.place(), this.num_rows, this.row_bytes))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.requests.ids)
    }
}

impl Tier {
    fn submit(
        &self,
        kind: JobKind,
        JobId(job_id): JobId,
        keys: &Bound<'_, PyAny>,
        row_ids: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<()> {
        attend(keys.py())?;
        guarded(|| {
            if stream.is_some() {
                let message = "stream: rows in device memory are not supported yet, and host rows have no stream";
                return Err(Error::new(ErrorKind::Unsupported, message).into());
            }
            let (keys, row_ids) = (keys_of(keys)?, row_ids_of(row_ids)?);
            Ok(self.engine.submit(kind, job_id, keys, row_ids)?)
        })
    }

    fn transfer<'py>(&self, kind: JobKind, keys: &Bound<'py, PyAny>, tensors: &Bound<'py, PyAny>) -> Result<JobResult> {
        let py = keys.py();
        attend(py)?;
        let done = guarded(|| {
            let keys = keys_of(keys)?;
            let blocks = blocks_of("tensors", tensors, self.row_bytes)?;
            let done = interruptible(py, |gave_up| self.engine.transfer(kind, keys, &blocks, gave_up))?;
            Ok(JobResult::of(py, &done)?)
        });
        attend(py)?; // the tensors' owners
        done
    }
}

/// What every call does first: the errands that IO threads have left.
///
/// # Errors
/// What a signal handler raised meanwhile.
#[inline]
fn attend(py: Python<'_>) -> PyResult<()> {
    errands::run(py)
}

/// Runs `work` without the interpreter's lock; it asks now and then whether the caller has given up, which lets signal
/// handlers run. What one raises (Ctrl-C) is raised here when `work` has ended.
fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut dyn FnMut() -> bool) -> kvtier::error::Result<T> + Send,
) -> Result<T> {
    guarded(|| {
        let mut interrupt = None;
        let done = py.detach(|| {
            work(&mut || {
                interrupt = interrupt.take().or_else(|| Python::attach(|py| py.check_signals().err()));
                interrupt.is_some()
            })
        });
        match interrupt {
            Some(interrupt) => Err(interrupt.into()),
            None => Ok(done?),
        }
    })
}

/// Waits in slices, without the interpreter's lock, and lets signal handlers run in between.
fn block(
    py: Python<'_>,
    timeout: Option<Duration>,
    wait: impl Fn(Duration) -> kvtier::error::Result<bool> + Sync,
) -> Result<bool> {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        attend(py)?;
        let left = until.map_or(SIGNAL_CHECK, |until| until.saturating_duration_since(Instant::now()));
        if guarded(|| Ok(py.detach(|| wait(left.min(SIGNAL_CHECK)))?))? {
            return Ok(true);
        }
        if left <= SIGNAL_CHECK && until.is_some() {
            return Ok(false);
        }
        py.check_signals()?;
    }
}

/// Numbers for the requests that hold verdicts; Python's own dictionary takes whatever is hashable.
struct Requests {
    ids: Py<PyDict>,
    next: AtomicU64,
}

impl Requests {
    fn new(py: Python<'_>) -> Self {
        Self { ids: PyDict::new(py).unbind(), next: AtomicU64::new(0) }
    }

    fn id_of(&self, request: Option<&Bound<'_, PyAny>>) -> Result<Option<RequestId>> {
        let Some(request) = request else { return Ok(None) };
        let ids = self.ids.bind(request.py());
        if let Some(id) = ids.get_item(request)? {
            return Ok(Some(RequestId(id.extract()?)));
        }
        // Comparing requests may run Python code, and so another thread that has come with the same one.
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let id = ids.call_method1(intern!(request.py(), "setdefault"), (request, id))?;
        Ok(Some(RequestId(id.extract()?)))
    }

    fn take(&self, request: &Bound<'_, PyAny>) -> Result<Option<RequestId>> {
        let py = request.py();
        let id = self.ids.bind(py).call_method1(intern!(py, "pop"), (request, py.None()))?;
        Ok(id.extract::<Option<u64>>()?.map(RequestId))
    }
}

/// Looks at the loggers' levels now and then.
#[derive(Default)]
struct LevelCheck {
    /// Milliseconds since `START`, of the next look.
    due: AtomicU64,
}

impl LevelCheck {
    fn look(&self, py: Python<'_>) -> PyResult<()> {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        let now = START.elapsed().as_millis() as u64;
        if now < self.due.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.due.store(now + LEVEL_CHECK.as_millis() as u64, Ordering::Relaxed);
        logging::follow_level(py)
    }
}
