//! Forks: what a child must know, and what must not be locked while it is made.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errands;

/// Has Python report every fork to [`kvtier::process`] and to the errands.
pub(crate) fn watch(py: Python<'_>) -> PyResult<()> {
    // Nobody forks before this returns.
    kvtier::engine::warm_up();
    let hooks = PyDict::new(py);
    hooks.set_item("before", wrap_pyfunction!(before, py)?)?;
    hooks.set_item("after_in_parent", wrap_pyfunction!(after_in_parent, py)?)?;
    hooks.set_item("after_in_child", wrap_pyfunction!(after_in_child, py)?)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&hooks))?;
    Ok(())
}

#[pyfunction]
fn before() {
    errands::before_fork();
}

#[pyfunction]
fn after_in_parent() {
    errands::after_fork_in_parent();
}

#[pyfunction]
fn after_in_child() {
    kvtier::process::note_fork();
    errands::after_fork_in_child();
}
