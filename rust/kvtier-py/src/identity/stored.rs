//! `kvtier.StoredConfig`: a `config.json` as it was found.

use kvtier::identity::StoredConfig;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::report::{PyCompatibility, PyDifference, PyExplanation, differences, explanations};
use super::value::{fields_to_python, text_to_python};
use crate::errors::Result;

/// The identity that a namespace was written under: what its `config.json` says.
#[pyclass(name = "StoredConfig", module = "kvtier", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct PyStoredConfig(pub(super) StoredConfig);

impl From<StoredConfig> for PyStoredConfig {
    fn from(config: StoredConfig) -> Self {
        Self(config)
    }
}

#[pymethods]
impl PyStoredConfig {
    #[new]
    #[pyo3(signature = (text))]
    fn new(text: &[u8]) -> Result<Self> {
        Ok(Self(StoredConfig::from_json(text)?))
    }

    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        fields_to_python(py, &self.0.fields)
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.0.fields.kind().as_str()
    }

    #[getter]
    fn digest(&self) -> String {
        self.0.fields.digest()
    }

    #[getter]
    fn written_by<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(origin) = &self.0.origin else { return Ok(None) };
        let dict = PyDict::new(py);
        for (name, text) in origin.entries() {
            dict.set_item(name, text_to_python(py, text)?)?;
        }
        Ok(Some(dict))
    }

    fn fingerprint(&self) -> String {
        self.0.fields.fingerprint()
    }

    #[pyo3(signature = (other))]
    fn diff(&self, other: &Self) -> Vec<PyDifference> {
        differences(self.0.diff(&other.0))
    }

    #[pyo3(signature = (other))]
    fn compatible_with(&self, py: Python<'_>, other: &Self) -> PyResult<PyCompatibility> {
        PyCompatibility::new(py, self.0.diff(&other.0))
    }

    fn explain(&self) -> Vec<PyExplanation> {
        explanations(self.0.fields.explain())
    }

    fn __repr__(&self) -> String {
        format!("<StoredConfig {} {}>", self.kind(), self.digest())
    }
}
