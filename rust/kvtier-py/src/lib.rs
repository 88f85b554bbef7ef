//! Python binding of kvtier: conversions, lifetimes, errors; no policy.

use pyo3::prelude::*;

/// The native half of the `kvtier` package.
#[pymodule]
mod _kvtier {
    #[pymodule_export]
    const __VERSION__: &str = env!("CARGO_PKG_VERSION");
}
