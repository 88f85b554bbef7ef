//! Python binding of kvtier: conversions, lifetimes, errors; no policy.

#![allow(clippy::doc_markdown, reason = "the documentation of classes and methods is Python's")]

mod arguments;
mod array;
mod buffer;
mod dlpack;
mod doctor;
mod errands;
mod errors;
mod faults;
mod fork;
mod host_rows;
mod identity;
mod logging;
mod pool;
mod results;
mod rows;
mod stats;
mod tier;

use pyo3::prelude::*;

/// The native half of the `kvtier` package.
#[pymodule]
mod _kvtier {
    use kvtier::error::ErrorKind;
    use kvtier::metrics::LATENCY_BUCKETS;
    use pyo3::types::{PyDict, PyTuple};

    #[pymodule_export]
    use super::doctor::{check_place, inspect_bucket, inspect_root, remove_trial, survey_bucket, survey_root};
    use super::errors::Result;
    #[pymodule_export]
    use super::faults::Faults;
    #[pymodule_export]
    use super::host_rows::HostRows;
    #[pymodule_export]
    use super::identity::{
        PyCompatibility, PyDifference, PyExplanation, PyFileMapper, PyIdentity, PyStoredConfig, canonical_json,
    };
    #[pymodule_export]
    use super::pool::inspect_pool;
    #[pymodule_export]
    use super::results::{BlockError, Event, JobResult};
    #[pymodule_export]
    use super::rows::Rows;
    #[pymodule_export]
    use super::tier::Tier;
    use super::{Bound, PyModule, PyModuleMethods, PyResult, Python, arguments, errands, fork, logging, pyfunction};

    /// Checks the options of a tier; one error lists everything that is wrong with them.
    #[pyfunction]
    fn check_options(options: &Bound<'_, PyDict>) -> Result<()> {
        arguments::config_of(options).map(drop)
    }

    /// The interpreter's exit has begun, on this thread.
    #[pyfunction]
    fn exit_begins(py: Python<'_>) {
        errands::exit_begins(py);
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("ERROR_KINDS", PyTuple::new(py, ErrorKind::ALL.map(ErrorKind::as_str))?)?;
        module.add("LATENCY_BUCKETS", PyTuple::new(py, LATENCY_BUCKETS)?)?;
        fork::watch(py)?;
        logging::install(py)
    }
}
