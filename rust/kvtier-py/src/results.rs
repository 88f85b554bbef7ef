//! What comes out of the engine, as Python objects of `kvtier.results`.

use kvtier::engine::{Event, JobKind, JobResult};
use kvtier::index::Lookup;
use kvtier::layout::BlockKey;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyTuple};

/// The classes, looked up once.
struct Classes {
    hit: Py<PyAny>,
    miss: Py<PyAny>,
    retry: Py<PyAny>,
    job_result: Py<PyAny>,
    block_error: Py<PyAny>,
    event: Py<PyAny>,
}

fn classes(py: Python<'_>) -> PyResult<&Classes> {
    static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();
    CLASSES.get_or_try_init(py, || {
        let results = py.import("kvtier.results")?;
        let lookup = results.getattr("Lookup")?;
        Ok(Classes {
            hit: lookup.getattr("HIT")?.unbind(),
            miss: lookup.getattr("MISS")?.unbind(),
            retry: lookup.getattr("RETRY")?.unbind(),
            job_result: results.getattr("JobResult")?.unbind(),
            block_error: results.getattr("BlockError")?.unbind(),
            event: results.getattr("Event")?.unbind(),
        })
    })
}

/// The member of `kvtier.Lookup`, always the same object.
pub(crate) fn lookup(py: Python<'_>, answer: Lookup) -> PyResult<Py<PyAny>> {
    let classes = classes(py)?;
    let member = match answer {
        Lookup::Hit => &classes.hit,
        Lookup::Miss => &classes.miss,
        Lookup::Retry => &classes.retry,
    };
    Ok(member.clone_ref(py))
}

/// A `kvtier.JobResult`.
pub(crate) fn job_result<'py>(py: Python<'py>, result: &JobResult) -> PyResult<Bound<'py, PyAny>> {
    let classes = classes(py)?;
    let failures = PyDict::new(py);
    let mut failed = result.failures.iter().peekable();
    let mut successful = Vec::with_capacity(result.keys.len() - result.failures.len());
    for (i, key) in result.keys.iter().enumerate() {
        let key = bytes(py, key);
        match failed.next_if(|(position, _)| *position == i) {
            Some((_, error)) => {
                let error = classes.block_error.bind(py).call1((error.kind().as_str(), error.to_string()))?;
                failures.set_item(key, error)?;
            }
            None => successful.push(key),
        }
    }
    classes.job_result.bind(py).call1((
        result.job_id,
        kind(py, result.kind),
        result.is_success(),
        PyTuple::new(py, successful)?,
        failures,
        result.transfer_time.as_secs_f64(),
        result.transfer_bytes,
    ))
}

/// A `kvtier.Event`.
pub(crate) fn event<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyAny>> {
    let class = classes(py)?.event.bind(py);
    match event {
        Event::Stored(key) => class.call1((intern!(py, "stored"), bytes(py, key))),
        Event::Removed(key, reason) => class.call1((intern!(py, "removed"), bytes(py, key), reason.as_str())),
        Event::Cleared => class.call1((intern!(py, "cleared"),)),
    }
}

fn kind(py: Python<'_>, kind: JobKind) -> &Bound<'_, PyAny> {
    match kind {
        JobKind::Store => intern!(py, "store"),
        JobKind::Load => intern!(py, "load"),
    }
}

fn bytes<'py>(py: Python<'py>, key: &BlockKey) -> Bound<'py, PyBytes> {
    PyBytes::new(py, key.as_bytes())
}
