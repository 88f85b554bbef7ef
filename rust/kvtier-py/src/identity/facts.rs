//! `kvtier.Identity`.

use kvtier::identity::{Facts, Group, Identity, MapperArguments, Namespace, NamespaceKind, Text, Value};
use kvtier::layout::BlockKey;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use super::mapper::{PyFileMapper, root_of};
use super::reader::{Arg, Reader};
use super::report::{PyCompatibility, PyDifference, PyExplanation, differences, explanations};
use super::spec::offloading_spec_of;
use super::stored::PyStoredConfig;
use super::value::{fields_to_python, shown, text_to_python, value_to_python};
use crate::errors::{Failure, Result};

/// Every fact that changes a block's bytes: engines share blocks exactly when theirs are equal.
#[pyclass(name = "Identity", module = "kvtier", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct PyIdentity(Identity);

impl PyIdentity {
    /// The identity for the engine's use.
    pub(crate) fn core(&self) -> &Identity {
        &self.0
    }
}

#[pymethods]
impl PyIdentity {
    #[new]
    #[pyo3(
        signature = (model_name, tokens_per_hash, blocks_per_file=Arg::Default, tp_size=Arg::Default,
            pp_size=Arg::Default, pcp_size=Arg::Default, dcp_size=Arg::Default, rank=Arg::Default, dtype=Arg::Default,
            kv_cache_groups=Arg::Default, inference_engine=Arg::Default, parallel_agnostic=Arg::Default,
            replicated_layout=Arg::Default, canonical_format=Arg::Default, *, row_bytes=Arg::Default,
            payload_bytes=Arg::Default, worker_bytes=Arg::Default, blocks_per_chunk=Arg::Default,
            kv_cache_layout=Arg::Default, model_id=Arg::Default, model_revision=Arg::Default, rope=Arg::Default,
            kv_scales=Arg::Default, model_runner=Arg::Default, namespace=Arg::Default),
        text_signature = "(model_name, tokens_per_hash, blocks_per_file=1, tp_size=1, pp_size=1, pcp_size=1, \
            dcp_size=1, rank=0, dtype=..., kv_cache_groups=None, inference_engine='vllm', parallel_agnostic=False, \
            replicated_layout=False, canonical_format=None, *, row_bytes=None, payload_bytes=None, \
            worker_bytes=None, blocks_per_chunk=None, kv_cache_layout=None, model_id=None, model_revision=None, \
            rope=None, kv_scales=None, model_runner=None, namespace=None)"
    )]
    #[expect(clippy::too_many_arguments, clippy::similar_names, reason = "there are as many facts")]
    #[expect(clippy::needless_pass_by_value, reason = "the arguments of a Python call")]
    fn new(
        model_name: Bound<'_, PyAny>,
        tokens_per_hash: Bound<'_, PyAny>,
        blocks_per_file: Arg<'_>,
        tp_size: Arg<'_>,
        pp_size: Arg<'_>,
        pcp_size: Arg<'_>,
        dcp_size: Arg<'_>,
        rank: Arg<'_>,
        dtype: Arg<'_>,
        kv_cache_groups: Arg<'_>,
        inference_engine: Arg<'_>,
        parallel_agnostic: Arg<'_>,
        replicated_layout: Arg<'_>,
        canonical_format: Arg<'_>,
        row_bytes: Arg<'_>,
        payload_bytes: Arg<'_>,
        worker_bytes: Arg<'_>,
        blocks_per_chunk: Arg<'_>,
        kv_cache_layout: Arg<'_>,
        model_id: Arg<'_>,
        model_revision: Arg<'_>,
        rope: Arg<'_>,
        kv_scales: Arg<'_>,
        model_runner: Arg<'_>,
        namespace: Arg<'_>,
    ) -> Result<Self> {
        let mut read = Reader::default();
        let facts = Facts {
            blocks_per_file: read.size("blocks_per_file", &blocks_per_file, 1),
            tp_size: read.size("tp_size", &tp_size, 1),
            pp_size: read.size("pp_size", &pp_size, 1),
            pcp_size: read.size("pcp_size", &pcp_size, 1),
            dcp_size: read.size("dcp_size", &dcp_size, 1),
            rank: read.rank(&rank),
            kv_cache_groups: read.groups(&kv_cache_groups),
            inference_engine: read.text_or("inference_engine", &inference_engine, "vllm"),
            parallel_agnostic: read.flag("parallel_agnostic", &parallel_agnostic),
            replicated_layout: read.flag("replicated_layout", &replicated_layout),
            canonical_format: read.optional_text("canonical_format", &canonical_format),
            row_bytes: read.optional_size("row_bytes", &row_bytes),
            payload_bytes: read.optional_size("payload_bytes", &payload_bytes),
            worker_bytes: read.optional_size("worker_bytes", &worker_bytes),
            blocks_per_chunk: read.optional_size("blocks_per_chunk", &blocks_per_chunk),
            kv_cache_layout: read.optional_text("kv_cache_layout", &kv_cache_layout),
            model_id: read.optional_text("model_id", &model_id),
            model_revision: read.optional_text("model_revision", &model_revision),
            rope: read.optional_value("rope", &rope),
            kv_scales: read.optional_value("kv_scales", &kv_scales),
            model_runner: read.optional_text("model_runner", &model_runner),
            namespace: read.optional_text("namespace", &namespace),
            ..Facts::new(
                read.text("model_name", &model_name),
                read.required_size("tokens_per_hash", &tokens_per_hash),
                read.dtype(&dtype),
            )
        };
        read.identity_of(facts).map(Self)
    }

    #[classmethod]
    #[pyo3(
        signature = (offloading_spec, blocks_per_file=Arg::Default, parallel_agnostic=Arg::Default, *,
            replicated_layout=Arg::Default, row_bytes=Arg::Default, payload_bytes=Arg::Default,
            worker_bytes=Arg::Default, blocks_per_chunk=Arg::Default, kv_cache_layout=Arg::Default,
            model_id=Arg::Default, model_revision=Arg::Default, rope=Arg::Default, kv_scales=Arg::Default,
            model_runner=Arg::Default, namespace=Arg::Default),
        text_signature = "($cls, offloading_spec, blocks_per_file=1, parallel_agnostic=False, *, \
            replicated_layout=None, row_bytes=None, payload_bytes=None, worker_bytes=None, blocks_per_chunk=None, \
            kv_cache_layout=None, model_id=None, model_revision=None, rope=None, kv_scales=None, \
            model_runner=None, namespace=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "there are as many facts")]
    #[expect(clippy::needless_pass_by_value, reason = "the arguments of a Python call")]
    fn from_offloading_spec(
        _class: &Bound<'_, PyType>,
        offloading_spec: &Bound<'_, PyAny>,
        blocks_per_file: Arg<'_>,
        parallel_agnostic: Arg<'_>,
        replicated_layout: Arg<'_>,
        row_bytes: Arg<'_>,
        payload_bytes: Arg<'_>,
        worker_bytes: Arg<'_>,
        blocks_per_chunk: Arg<'_>,
        kv_cache_layout: Arg<'_>,
        model_id: Arg<'_>,
        model_revision: Arg<'_>,
        rope: Arg<'_>,
        kv_scales: Arg<'_>,
        model_runner: Arg<'_>,
        namespace: Arg<'_>,
    ) -> Result<Self> {
        let mut read = Reader::default();
        let mut spec = offloading_spec_of(offloading_spec)?;
        if let Some(stated) = read.optional_flag("replicated_layout", &replicated_layout) {
            spec.replicated_layout = stated;
        }
        let blocks_per_file = read.size("blocks_per_file", &blocks_per_file, 1);
        let opted_in = read.flag("parallel_agnostic", &parallel_agnostic);
        let facts = Facts::from_offloading_spec(spec, blocks_per_file, opted_in)?;
        let facts = Facts {
            row_bytes: read.optional_size("row_bytes", &row_bytes),
            payload_bytes: read.optional_size("payload_bytes", &payload_bytes),
            worker_bytes: read.optional_size("worker_bytes", &worker_bytes),
            blocks_per_chunk: read.optional_size("blocks_per_chunk", &blocks_per_chunk).or(facts.blocks_per_chunk),
            kv_cache_layout: read.optional_text("kv_cache_layout", &kv_cache_layout).or(facts.kv_cache_layout),
            model_id: read.optional_text("model_id", &model_id),
            model_revision: read.optional_text("model_revision", &model_revision),
            rope: read.optional_value("rope", &rope),
            kv_scales: read.optional_value("kv_scales", &kv_scales),
            model_runner: read.optional_text("model_runner", &model_runner),
            namespace: read.optional_text("namespace", &namespace),
            ..facts
        };
        read.identity_of(facts).map(Self)
    }

    #[getter]
    fn model_name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        text_to_python(py, &self.0.facts().model_name)
    }

    #[getter]
    fn tokens_per_hash(&self) -> u64 {
        self.0.facts().tokens_per_hash
    }

    #[getter]
    fn blocks_per_file(&self) -> u64 {
        self.0.facts().blocks_per_file
    }

    #[getter]
    fn tp_size(&self) -> u64 {
        self.0.facts().tp_size
    }

    #[getter]
    fn pp_size(&self) -> u64 {
        self.0.facts().pp_size
    }

    #[getter]
    fn pcp_size(&self) -> u64 {
        self.0.facts().pcp_size
    }

    #[getter]
    fn dcp_size(&self) -> u64 {
        self.0.facts().dcp_size
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.0.facts().effective_rank()
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        text_to_python(py, &self.0.facts().dtype)
    }

    #[getter]
    fn kv_cache_groups<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        groups_to_python(py, &self.0.facts().kv_cache_groups)
    }

    #[getter]
    fn inference_engine<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        text_to_python(py, &self.0.facts().inference_engine)
    }

    #[getter]
    fn parallel_agnostic(&self) -> bool {
        self.0.facts().parallel_agnostic
    }

    #[getter]
    fn replicated_layout(&self) -> bool {
        self.0.facts().replicated_layout
    }

    #[getter]
    fn canonical_format<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional_text(py, self.0.facts().canonical_format.as_ref())
    }

    #[getter]
    fn row_bytes(&self) -> Option<u64> {
        self.0.facts().row_bytes
    }

    #[getter]
    fn payload_bytes(&self) -> Option<u64> {
        self.0.facts().payload_bytes
    }

    #[getter]
    fn worker_bytes(&self) -> Option<u64> {
        self.0.facts().worker_bytes
    }

    #[getter]
    fn blocks_per_chunk(&self) -> Option<u64> {
        self.0.facts().blocks_per_chunk
    }

    #[getter]
    fn kv_cache_layout<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional_text(py, self.0.facts().kv_cache_layout.as_ref())
    }

    #[getter]
    fn model_id<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional_text(py, self.0.facts().model_id.as_ref())
    }

    #[getter]
    fn model_revision<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional_text(py, self.0.facts().model_revision.as_ref())
    }

    #[getter]
    fn rope<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional_value(py, self.0.facts().rope.as_ref())
    }

    #[getter]
    fn kv_scales<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional_value(py, self.0.facts().kv_scales.as_ref())
    }

    #[getter]
    fn model_runner<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional_text(py, self.0.facts().model_runner.as_ref())
    }

    #[getter]
    fn namespace<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional_text(py, self.0.facts().namespace.as_ref())
    }

    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        fields_to_python(py, &self.0.fields(NamespaceKind::Kvtier))
    }

    #[pyo3(signature = (row_bytes))]
    fn with_row_bytes(&self, row_bytes: &Bound<'_, PyAny>) -> Result<Self> {
        let mut read = Reader::default();
        let row_bytes = read.required_size("row_bytes", row_bytes);
        read.finish()?;
        Ok(Self(self.0.with_row_bytes(row_bytes)?))
    }

    #[pyo3(signature = (compat=None))]
    fn fingerprint(&self, compat: Option<&str>) -> Result<String> {
        Ok(self.0.fingerprint(kind_of(compat)?)?)
    }

    #[pyo3(signature = (other, compat=None))]
    fn diff(&self, other: &Self, compat: Option<&str>) -> Result<Vec<PyDifference>> {
        Ok(differences(self.0.diff(&other.0, kind_of(compat)?)))
    }

    #[pyo3(signature = (other, compat=None))]
    fn compatible_with(&self, py: Python<'_>, other: &Self, compat: Option<&str>) -> Result<PyCompatibility> {
        let kind = kind_of(compat)?;
        self.0.check_kind(kind)?;
        other.0.check_kind(kind)?;
        Ok(PyCompatibility::new(py, self.0.diff(&other.0, kind))?)
    }

    #[pyo3(signature = (compat=None))]
    fn explain(&self, compat: Option<&str>) -> Result<Vec<PyExplanation>> {
        Ok(explanations(self.0.explain(kind_of(compat)?)))
    }

    #[pyo3(signature = (compat=None))]
    fn config(&self, compat: Option<&str>) -> Result<PyStoredConfig> {
        Ok(PyStoredConfig(self.0.config(kind_of(compat)?)))
    }

    #[pyo3(signature = (root_dir))]
    fn file_mapper(&self, root_dir: &Bound<'_, PyAny>) -> Result<PyFileMapper> {
        Ok(PyFileMapper::with(root_of(root_dir)?, MapperArguments::from(self.0.facts())))
    }

    #[pyo3(signature = (compat=None))]
    fn base_dir(&self, compat: Option<&str>) -> Result<String> {
        Ok(self.opened(compat)?.base_dir().to_owned())
    }

    #[pyo3(signature = (compat=None))]
    fn blocks_dir(&self, compat: Option<&str>) -> Result<String> {
        Ok(self.opened(compat)?.blocks_dir().to_owned())
    }

    #[pyo3(signature = (key, compat=None))]
    fn block_path(&self, key: &[u8], compat: Option<&str>) -> Result<String> {
        let key = BlockKey::new(key)?;
        Ok(format!("{}/{}", self.opened(compat)?.blocks_dir(), key.path()))
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        Ok((PyTuple::empty(py), facts_to_python(py, self.0.facts())?))
    }

    /// The call that makes it, without what is as usual.
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let facts = self.0.facts();
        let usual = Facts::new(facts.model_name.clone(), facts.tokens_per_hash, facts.dtype.clone());
        let usual = facts_to_python(py, &usual)?;
        let mut shown_facts = Vec::new();
        for (name, value) in facts_to_python(py, facts)? {
            let name = name.extract::<String>()?;
            let is_needed = matches!(name.as_str(), "model_name" | "tokens_per_hash" | "dtype");
            if is_needed || usual.get_item(&name)?.map_or(Ok(true), |usual| usual.ne(&value))? {
                shown_facts.push(format!("{name}={}", shown(&value)));
            }
        }
        Ok(format!("Identity({})", shown_facts.join(", ")))
    }
}

impl PyIdentity {
    /// The namespace, for its names.
    fn opened(&self, compat: Option<&str>) -> Result<Namespace> {
        Ok(Namespace::new(&self.0, kind_of(compat)?)?)
    }
}

/// The kind of namespace that the option `compat` asks for.
pub(crate) fn kind_of(compat: Option<&str>) -> Result<NamespaceKind> {
    match compat {
        None => Ok(NamespaceKind::Kvtier),
        Some("vllm") => Ok(NamespaceKind::Vllm),
        Some(other) => Err(Failure::invalid_input(format!("compat is {other:?}, None or \"vllm\" is accepted"))),
    }
}

/// The facts as arguments of the constructor.
fn facts_to_python<'py>(py: Python<'py>, facts: &Facts) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("model_name", text_to_python(py, &facts.model_name)?)?;
    dict.set_item("tokens_per_hash", facts.tokens_per_hash)?;
    dict.set_item("blocks_per_file", facts.blocks_per_file)?;
    dict.set_item("tp_size", facts.tp_size)?;
    dict.set_item("pp_size", facts.pp_size)?;
    dict.set_item("pcp_size", facts.pcp_size)?;
    dict.set_item("dcp_size", facts.dcp_size)?;
    dict.set_item("rank", facts.rank)?;
    dict.set_item("dtype", text_to_python(py, &facts.dtype)?)?;
    dict.set_item("kv_cache_groups", groups_to_python(py, &facts.kv_cache_groups)?)?;
    dict.set_item("inference_engine", text_to_python(py, &facts.inference_engine)?)?;
    dict.set_item("parallel_agnostic", facts.parallel_agnostic)?;
    dict.set_item("replicated_layout", facts.replicated_layout)?;
    dict.set_item("canonical_format", optional_text(py, facts.canonical_format.as_ref())?)?;
    dict.set_item("row_bytes", facts.row_bytes)?;
    dict.set_item("payload_bytes", facts.payload_bytes)?;
    dict.set_item("worker_bytes", facts.worker_bytes)?;
    dict.set_item("blocks_per_chunk", facts.blocks_per_chunk)?;
    dict.set_item("kv_cache_layout", optional_text(py, facts.kv_cache_layout.as_ref())?)?;
    dict.set_item("model_id", optional_text(py, facts.model_id.as_ref())?)?;
    dict.set_item("model_revision", optional_text(py, facts.model_revision.as_ref())?)?;
    dict.set_item("rope", optional_value(py, facts.rope.as_ref())?)?;
    dict.set_item("kv_scales", optional_value(py, facts.kv_scales.as_ref())?)?;
    dict.set_item("model_runner", optional_text(py, facts.model_runner.as_ref())?)?;
    dict.set_item("namespace", optional_text(py, facts.namespace.as_ref())?)?;
    Ok(dict)
}

fn groups_to_python<'py>(py: Python<'py>, groups: &[Group]) -> PyResult<Bound<'py, PyAny>> {
    value_to_python(py, &Value::List(groups.iter().map(Value::from).collect()))
}

fn optional_text<'py>(py: Python<'py>, text: Option<&Text>) -> PyResult<Option<Bound<'py, PyAny>>> {
    text.map(|text| text_to_python(py, text)).transpose()
}

fn optional_value<'py>(py: Python<'py>, value: Option<&Value>) -> PyResult<Option<Bound<'py, PyAny>>> {
    value.map(|value| value_to_python(py, value)).transpose()
}
