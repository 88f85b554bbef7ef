//! Core errors as Python exceptions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvtier::error::{Error, ErrorKind};
use pyo3::exceptions::PySystemError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// Why a call into the binding failed: kvtier says no, or Python code that was called raised.
#[derive(Debug)]
pub(crate) enum Failure {
    Core(Error),
    Python(PyErr),
}

/// What functions of the binding return.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A wrong argument.
    pub(crate) fn invalid_input(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidInput, message).into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Python(error) => error,
            Failure::Core(error) => Python::attach(|py| match exception(py, &error) {
                Ok(exception) => Self::from_value(exception),
                // Only if the package was taken apart around us.
                Err(cause) => {
                    let plain = PySystemError::new_err(error.to_string());
                    plain.set_cause(py, Some(cause));
                    plain
                }
            }),
        }
    }
}

/// Runs `f` so that a defect of kvtier becomes an exception like any other, and not a `PanicException`, which no
/// `except Exception` catches.
pub(crate) fn guarded<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panicking call leaves behind is behind locks that its owners check, or is dropped with the call.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = format!("kvtier has a defect: {}", text.unwrap_or("a panic without a message"));
        Err(Error::new(ErrorKind::Internal, message).into())
    })
}

/// The exception for `error`.
fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let key = error.fact("key").map(from_hex);
    exception_of_kind(py, error.kind().as_str(), &error.to_string(), key.as_deref(), error.fact("path"))
}

/// The exception for a failure; `kvtier.errors` knows which class each kind is.
///
/// The classes have no Python code that runs here: see [`crate::results`].
pub(crate) fn exception_of_kind<'py>(
    py: Python<'py>,
    kind: &str,
    message: &str,
    key: Option<&[u8]>,
    path: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASSES: PyOnceLock<(Py<PyDict>, Py<PyAny>)> = PyOnceLock::new();
    let (classes, base) = CLASSES.get_or_try_init(py, || {
        let errors = py.import("kvtier.errors")?;
        let classes = errors.getattr("CLASS_OF_KIND")?.cast_into::<PyDict>()?;
        PyResult::Ok((classes.unbind(), errors.getattr("KvTierError")?.unbind()))
    })?;
    let class = classes.bind(py).get_item(kind)?.unwrap_or_else(|| base.bind(py).clone());
    let exception = class.call1((message,))?;
    exception.setattr(intern!(py, "kind"), kind)?;
    if let Some(key) = key {
        exception.setattr(intern!(py, "key"), key)?;
    }
    if let Some(path) = path {
        exception.setattr(intern!(py, "path"), path)?;
    }
    Ok(exception)
}

/// The bytes of a key as errors show it.
fn from_hex(hex: &str) -> Vec<u8> {
    let digit = |d: u8| char::from(d).to_digit(16).unwrap_or_default() as u8;
    hex.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
