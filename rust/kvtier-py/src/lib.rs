//! Python binding of kvtier: conversions, lifetimes, errors; no policy.

#![allow(clippy::doc_markdown, reason = "the documentation of classes and methods is Python's")]

mod array;
mod buffer;
mod dlpack;
mod errands;
mod errors;
mod fork;
mod host_rows;
mod identity;
mod logging;
mod rows;

use pyo3::prelude::*;

/// The native half of the `kvtier` package.
#[pymodule]
mod _kvtier {
    use kvtier::error::ErrorKind;
    use pyo3::types::PyTuple;

    #[pymodule_export]
    use super::host_rows::HostRows;
    #[pymodule_export]
    use super::identity::{
        PyCompatibility, PyDifference, PyExplanation, PyFileMapper, PyIdentity, PyStoredConfig, canonical_json,
    };
    #[pymodule_export]
    use super::rows::Rows;
    use super::{Bound, PyModule, PyModuleMethods, PyResult, fork, logging};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("ERROR_KINDS", PyTuple::new(py, ErrorKind::ALL.map(ErrorKind::as_str))?)?;
        fork::watch(py)?;
        logging::install(py);
        Ok(())
    }
}
