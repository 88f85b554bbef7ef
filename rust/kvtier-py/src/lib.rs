//! Python binding of kvtier: conversions, lifetimes, errors; no policy.

use pyo3::prelude::*;

/// The native half of the `kvtier` package.
#[pymodule]
mod _kvtier {
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
