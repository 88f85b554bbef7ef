//! What comes out of a tier: `kvtier.JobResult`, `kvtier.BlockError`, `kvtier.Event`, and the members of `kvtier.Lookup`.
//!
//! Values that a scheduler polls for are made without running Python code: in a daemon thread that is in the middle of
//! that when the interpreter ends, the interpreter kills the thread, which Rust frames don't survive.

use kvtier::engine::{self, JobKind};
use kvtier::index;
use kvtier::layout::BlockKey;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyMapping, PyMappingProxy, PyTuple};

use crate::errors::{Result, exception_of_kind};

/// The member of `kvtier.Lookup`, always the same object.
pub(crate) fn lookup(py: Python<'_>, answer: index::Lookup) -> PyResult<Py<PyAny>> {
    static MEMBERS: PyOnceLock<[Py<PyAny>; 3]> = PyOnceLock::new();
    let [hit, miss, retry] = MEMBERS.get_or_try_init(py, || {
        let class = py.import("kvtier.lookup")?.getattr("Lookup")?;
        PyResult::Ok([
            class.getattr("HIT")?.unbind(),
            class.getattr("MISS")?.unbind(),
            class.getattr("RETRY")?.unbind(),
        ])
    })?;
    let member = match answer {
        index::Lookup::Hit => hit,
        index::Lookup::Miss => miss,
        index::Lookup::Retry => retry,
    };
    Ok(member.clone_ref(py))
}

/// What became of a job. Each job has exactly one.
#[pyclass(frozen, module = "kvtier", get_all)]
pub(crate) struct JobResult {
    job_id: u64,
    kind: String,
    success: bool,
    successful_keys: Py<PyTuple>,
    failures: Py<PyMappingProxy>,
    transfer_time: f64,
    transfer_bytes: u64,
}

#[pymethods]
impl JobResult {
    #[new]
    fn new(
        job_id: u64,
        kind: String,
        success: bool,
        successful_keys: &Bound<'_, PyAny>,
        failures: &Bound<'_, PyMapping>,
        transfer_time: f64,
        transfer_bytes: u64,
    ) -> PyResult<Self> {
        let py = failures.py();
        let keys = PyTuple::new(py, successful_keys.try_iter()?.collect::<PyResult<Vec<_>>>()?)?;
        let own = PyDict::new(py);
        own.update(failures)?;
        Ok(Self {
            job_id,
            kind,
            success,
            successful_keys: keys.unbind(),
            failures: PyMappingProxy::new(py, own.as_mapping()).unbind(),
            transfer_time,
            transfer_bytes,
        })
    }

    /// Raises the first failed block's error, as a `KvTierError` of its kind, if any block failed.
    fn raise_for_failures(&self, py: Python<'_>) -> Result<()> {
        let failures = self.failures.bind(py);
        let Some(first) = failures.try_iter()?.next() else { return Ok(()) };
        let (key, error) = first?;
        let error = error.cast_into::<BlockError>().map_err(PyErr::from)?;
        let BlockError { kind, message } = error.get();
        let message = match failures.len()? - 1 {
            0 => message.clone(),
            others => format!("{message} (and {others} more blocks failed)"),
        };
        let key = key.cast::<PyBytes>().map_err(PyErr::from)?.as_bytes();
        Err(PyErr::from_value(exception_of_kind(py, kind, &message, Some(key), None)?).into())
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        match other.cast::<Self>() {
            Ok(other) => self.__getnewargs__(py)?.eq(other.get().__getnewargs__(py)?),
            Err(_) => Ok(false),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "JobResult(job_id={}, kind={:?}, success={}, successful_keys={}, failures={}, transfer_time={}, \
             transfer_bytes={})",
            self.job_id,
            self.kind,
            if self.success { "True" } else { "False" },
            self.successful_keys.bind(py).repr()?,
            self.failures.bind(py).call_method0("copy")?.repr()?,
            self.transfer_time,
            self.transfer_bytes
        ))
    }

    fn __getnewargs__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        (
            self.job_id,
            &self.kind,
            self.success,
            &self.successful_keys,
            self.failures.bind(py).call_method0("copy")?,
            self.transfer_time,
            self.transfer_bytes,
        )
            .into_pyobject(py)
    }
}

/// Why one block of a job failed.
#[pyclass(frozen, eq, hash, module = "kvtier", get_all)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct BlockError {
    kind: String,
    message: String,
}

#[pymethods]
impl BlockError {
    #[new]
    fn new(kind: String, message: String) -> Self {
        Self { kind, message }
    }

    fn __repr__(&self) -> String {
        format!("BlockError(kind={:?}, message={:?})", self.kind, self.message)
    }

    fn __getnewargs__(&self) -> (&str, &str) {
        (&self.kind, &self.message)
    }
}

/// Something that became true of a block, for those who route requests by content.
#[pyclass(frozen, eq, hash, module = "kvtier")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Event {
    #[pyo3(get)]
    kind: String,
    key: Option<Vec<u8>>,
    #[pyo3(get)]
    reason: Option<String>,
}

#[pymethods]
impl Event {
    #[new]
    #[pyo3(signature = (kind, key=None, reason=None))]
    fn new(kind: String, key: Option<Vec<u8>>, reason: Option<String>) -> Self {
        Self { kind, key, reason }
    }

    /// The block; None for `cleared`.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.key.as_ref().map(|key| PyBytes::new(py, key))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (key, reason) =
            (self.key(py).into_bound_py_any(py)?.repr()?, (&self.reason).into_bound_py_any(py)?.repr()?);
        Ok(format!("Event(kind={:?}, key={key}, reason={reason})", self.kind))
    }

    fn __getnewargs__<'py>(&self, py: Python<'py>) -> (&str, Option<Bound<'py, PyBytes>>, Option<&str>) {
        (&self.kind, self.key(py), self.reason.as_deref())
    }
}

impl JobResult {
    pub(crate) fn of(py: Python<'_>, result: &engine::JobResult) -> PyResult<Self> {
        let failures = PyDict::new(py);
        let mut failed = result.failures.iter().peekable();
        let mut successful = Vec::with_capacity(result.keys.len() - result.failures.len());
        for (i, key) in result.keys.iter().enumerate() {
            let key = PyBytes::new(py, key.as_bytes());
            match failed.next_if(|(position, _)| *position == i) {
                Some((_, error)) => {
                    failures.set_item(key, BlockError::new(error.kind().as_str().into(), error.to_string()))?;
                }
                None => successful.push(key),
            }
        }
        if !failures.is_empty() {
            // A key that was given twice has succeeded when both of its rows are good.
            successful.retain(|key| !failures.contains(key).unwrap_or(true));
        }
        let kind = match result.kind {
            JobKind::Store => "store",
            JobKind::Load => "load",
        };
        Ok(Self {
            job_id: result.job_id,
            kind: kind.into(),
            success: result.is_success(),
            successful_keys: PyTuple::new(py, successful)?.unbind(),
            failures: PyMappingProxy::new(py, failures.as_mapping()).unbind(),
            transfer_time: result.transfer_time.as_secs_f64(),
            transfer_bytes: result.transfer_bytes,
        })
    }
}

impl From<&engine::Event> for Event {
    fn from(event: &engine::Event) -> Self {
        let key_bytes = |key: &BlockKey| Some(key.as_bytes().to_vec());
        match event {
            engine::Event::Stored(key) => Self::new("stored".into(), key_bytes(key), None),
            engine::Event::Removed(key, reason) => {
                Self::new("removed".into(), key_bytes(key), Some(reason.as_str().into()))
            }
            engine::Event::Cleared => Self::new("cleared".into(), None, None),
        }
    }
}
