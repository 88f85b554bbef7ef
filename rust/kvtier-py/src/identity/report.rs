//! What Python gets to read about identities: differences, compatibility, explanations.

use kvtier::identity::{Difference, Explanation};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::value::{text_to_python, value_to_python};

/// One place where two identities differ.
#[pyclass(name = "Difference", module = "kvtier", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct PyDifference(Difference);

#[pymethods]
impl PyDifference {
    #[getter]
    fn field(&self) -> &str {
        &self.0.field
    }

    #[getter]
    fn left<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.left.as_ref().map(|value| value_to_python(py, value)).transpose()
    }

    #[getter]
    fn right<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.right.as_ref().map(|value| value_to_python(py, value)).transpose()
    }

    #[getter]
    fn absent(&self) -> Option<&'static str> {
        match (&self.0.left, &self.0.right) {
            (None, _) => Some("left"),
            (_, None) => Some("right"),
            _ => None,
        }
    }

    #[getter]
    fn left_shown(&self) -> String {
        self.0.left_shown()
    }

    #[getter]
    fn right_shown(&self) -> String {
        self.0.right_shown()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Difference {}>", self.0)
    }
}

/// The differences as a list.
pub(super) fn differences(found: Vec<Difference>) -> Vec<PyDifference> {
    found.into_iter().map(PyDifference).collect()
}

/// Whether two identities share blocks, and if not, why not. True when they do.
#[pyclass(name = "Compatibility", module = "kvtier", frozen)]
pub(crate) struct PyCompatibility {
    differences: Py<PyTuple>,
}

impl PyCompatibility {
    pub(super) fn new(py: Python<'_>, found: Vec<Difference>) -> PyResult<Self> {
        Ok(Self { differences: PyTuple::new(py, differences(found))?.unbind() })
    }
}

#[pymethods]
impl PyCompatibility {
    #[getter]
    fn differences(&self, py: Python<'_>) -> Py<PyTuple> {
        self.differences.clone_ref(py)
    }

    fn __bool__(&self, py: Python<'_>) -> bool {
        self.differences.bind(py).is_empty()
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        let lines = self.lines(py)?;
        Ok(if lines.is_empty() { "compatible".into() } else { lines.join("\n") })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let lines = self.lines(py)?;
        Ok(if lines.is_empty() { "<compatible>".into() } else { format!("<not compatible: {}>", lines.join("; ")) })
    }
}

impl PyCompatibility {
    fn lines(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.differences.bind(py).iter().map(|difference| Ok(difference.str()?.to_string())).collect()
    }
}

/// One fact of an identity, explained.
#[pyclass(name = "Explanation", module = "kvtier", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct PyExplanation(Explanation);

#[pymethods]
impl PyExplanation {
    #[getter]
    fn field<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        text_to_python(py, &self.0.field)
    }

    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.value.as_ref().map(|value| value_to_python(py, value)).transpose()
    }

    #[getter]
    fn role(&self) -> &'static str {
        self.0.role.as_str()
    }

    #[getter]
    fn protects_from(&self) -> &'static str {
        self.0.protects_from
    }

    #[getter]
    fn note(&self) -> Option<&'static str> {
        self.0.note
    }

    fn __repr__(&self) -> String {
        format!("<Explanation {}: {}>", self.0.field, self.0.role)
    }
}

/// The explanations as a list.
pub(super) fn explanations(explained: Vec<Explanation>) -> Vec<PyExplanation> {
    explained.into_iter().map(PyExplanation).collect()
}
