//! `kvtier.FileMapper`.

use kvtier::identity::{Facts, Fields, FileMapper, Int, MapperArguments, Text, Value};
use kvtier::layout::BlockKey;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple, PyType};

use super::reader::{Arg, Reader};
use super::report::{PyCompatibility, PyDifference, differences};
use super::spec::offloading_spec_of;
use super::value::{
    fields_to_python, int_of, int_to_python, shown, text_of, text_to_python, value_of, value_to_python,
};
use crate::errors::{Failure, Result};

/// Maps block keys to file names exactly as the file mapper of vLLM's own tiers does.
#[pyclass(name = "FileMapper", module = "kvtier", frozen, eq, hash)]
pub(crate) struct PyFileMapper {
    mapper: FileMapper,
    /// What it was made from, for pickling.
    root_dir: Text,
    arguments: MapperArguments,
}

/// Two mappers are equal when they give every key the same path.
impl PartialEq for PyFileMapper {
    fn eq(&self, other: &Self) -> bool {
        self.mapper == other.mapper
    }
}

impl Eq for PyFileMapper {}

impl std::hash::Hash for PyFileMapper {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.mapper.hash(state);
    }
}

impl PyFileMapper {
    pub(super) fn with(root_dir: Text, arguments: MapperArguments) -> Self {
        Self { mapper: FileMapper::new(&root_dir, &arguments), root_dir, arguments }
    }
}

#[pymethods]
impl PyFileMapper {
    #[new]
    #[pyo3(
        signature = (root_dir, model_name, tokens_per_hash, blocks_per_file, tp_size, pp_size, pcp_size, dcp_size, rank,
            dtype, kv_cache_groups=None, inference_engine=Arg::Default, parallel_agnostic=None, replicated_layout=None,
            canonical_format=Arg::Default),
        text_signature = "(root_dir, model_name, tokens_per_hash, blocks_per_file, tp_size, pp_size, pcp_size, \
            dcp_size, rank, dtype, kv_cache_groups=None, inference_engine='vllm', parallel_agnostic=False, \
            replicated_layout=False, canonical_format=None)"
    )]
    #[expect(clippy::too_many_arguments, clippy::similar_names, reason = "the engine's mapper has them")]
    #[expect(clippy::needless_pass_by_value, reason = "the arguments of a Python call")]
    fn new(
        root_dir: &Bound<'_, PyAny>,
        model_name: &Bound<'_, PyAny>,
        tokens_per_hash: &Bound<'_, PyAny>,
        blocks_per_file: &Bound<'_, PyAny>,
        tp_size: &Bound<'_, PyAny>,
        pp_size: &Bound<'_, PyAny>,
        pcp_size: &Bound<'_, PyAny>,
        dcp_size: &Bound<'_, PyAny>,
        rank: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
        kv_cache_groups: Option<&Bound<'_, PyAny>>,
        inference_engine: Arg<'_>,
        parallel_agnostic: Option<&Bound<'_, PyAny>>,
        replicated_layout: Option<&Bound<'_, PyAny>>,
        canonical_format: Arg<'_>,
    ) -> Result<Self> {
        let mut read = Reader::default();
        let arguments = MapperArguments {
            model_name: read.text("model_name", model_name),
            tokens_per_hash: value_of(tokens_per_hash, "tokens_per_hash")?,
            blocks_per_file: value_of(blocks_per_file, "blocks_per_file")?,
            tp_size: value_of(tp_size, "tp_size")?,
            pp_size: value_of(pp_size, "pp_size")?,
            pcp_size: value_of(pcp_size, "pcp_size")?,
            dcp_size: value_of(dcp_size, "dcp_size")?,
            rank: rank_of(rank)?,
            dtype: text_of(&dtype.str()?)?,
            kv_cache_groups: match kv_cache_groups {
                Some(groups) if groups.is_truthy()? => value_of(groups, "kv_cache_groups")?,
                _ => Value::List(Vec::new()),
            },
            inference_engine: read.text_or("inference_engine", &inference_engine, "vllm"),
            parallel_agnostic: is_set(parallel_agnostic)?,
            replicated_layout: is_set(replicated_layout)?,
            canonical_format: read.optional_text("canonical_format", &canonical_format),
        };
        read.finish()?;
        Ok(Self::with(root_of(root_dir)?, arguments))
    }

    #[classmethod]
    #[pyo3(signature = (root_dir, offloading_spec, blocks_per_file=1, parallel_agnostic=false))]
    fn from_offloading_spec(
        _class: &Bound<'_, PyType>,
        root_dir: &Bound<'_, PyAny>,
        offloading_spec: &Bound<'_, PyAny>,
        blocks_per_file: u64,
        parallel_agnostic: bool,
    ) -> Result<Self> {
        let spec = offloading_spec_of(offloading_spec)?;
        let facts = Facts::from_offloading_spec(spec, blocks_per_file, parallel_agnostic)?;
        Ok(Self::with(root_of(root_dir)?, MapperArguments::from(&facts)))
    }

    #[getter]
    fn rank<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        int_to_python(py, self.mapper.rank())
    }

    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        fields_to_python(py, self.mapper.fields())
    }

    #[getter]
    fn base_path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        text_to_python(py, self.mapper.base_path())
    }

    #[pyo3(signature = (key))]
    fn get_file_name<'py>(&self, py: Python<'py>, key: &[u8]) -> Result<Bound<'py, PyAny>> {
        let key = BlockKey::new(key)?;
        Ok(text_to_python(py, &self.mapper.block_path(&key))?)
    }

    fn get_run_config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.fields(py)
    }

    fn get_config_file_path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        text_to_python(py, &self.mapper.config_path())
    }

    fn fingerprint(&self) -> String {
        self.mapper.fields().fingerprint()
    }

    #[pyo3(signature = (other))]
    fn diff(&self, other: &Bound<'_, PyAny>) -> Result<Vec<PyDifference>> {
        Ok(differences(self.mapper.fields().diff(&peer_fields(other)?)))
    }

    #[pyo3(signature = (other))]
    fn compatible_with(&self, other: &Bound<'_, PyAny>) -> Result<PyCompatibility> {
        Ok(PyCompatibility::new(other.py(), self.mapper.fields().diff(&peer_fields(other)?))?)
    }

    fn __getnewargs__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let given = &self.arguments;
        let canonical_format = given.canonical_format.as_ref().map(|format| text_to_python(py, format)).transpose()?;
        let arguments = [
            text_to_python(py, &self.root_dir)?,
            text_to_python(py, &given.model_name)?,
            value_to_python(py, &given.tokens_per_hash)?,
            value_to_python(py, &given.blocks_per_file)?,
            value_to_python(py, &given.tp_size)?,
            value_to_python(py, &given.pp_size)?,
            value_to_python(py, &given.pcp_size)?,
            value_to_python(py, &given.dcp_size)?,
            int_to_python(py, &given.rank)?,
            text_to_python(py, &given.dtype)?,
            value_to_python(py, &given.kv_cache_groups)?,
            text_to_python(py, &given.inference_engine)?,
            PyBool::new(py, given.parallel_agnostic).to_owned().into_any(),
            PyBool::new(py, given.replicated_layout).to_owned().into_any(),
            canonical_format.unwrap_or_else(|| py.None().into_bound(py)),
        ];
        PyTuple::new(py, arguments)
    }

    fn __repr__(&self) -> String {
        format!("<FileMapper {} rank {}>", self.mapper.base_path(), self.mapper.rank())
    }
}

/// A root directory as the engine's mapper takes it: the text of it, with any trailing slash.
pub(super) fn root_of(root_dir: &Bound<'_, PyAny>) -> Result<Text> {
    if let Ok(text) = root_dir.cast::<PyString>() {
        return text_of(text);
    }
    let path = root_dir.call_method0("__fspath__");
    match path.as_ref().map(|path| path.cast::<PyString>()) {
        Ok(Ok(text)) => text_of(text),
        _ => Err(Failure::invalid_input(format!("root_dir is {}, a str or a path is accepted", shown(root_dir)))),
    }
}

fn rank_of(rank: &Bound<'_, PyAny>) -> Result<Int> {
    int_of(rank).ok_or_else(|| Failure::invalid_input(format!("rank is {}, an int is accepted", shown(rank))))
}

fn is_set(flag: Option<&Bound<'_, PyAny>>) -> Result<bool> {
    Ok(flag.map_or(Ok(false), PyAnyMethods::is_truthy)?)
}

/// The fields of a mapper, or of the run config that a peer sent.
fn peer_fields(other: &Bound<'_, PyAny>) -> Result<Fields> {
    if let Ok(mapper) = other.cast::<PyFileMapper>() {
        return Ok(mapper.get().mapper.fields().clone());
    }
    match value_of(other, "other")? {
        Value::Map(map) => Ok(map.into()),
        _ => {
            Err(Failure::invalid_input(format!("other is {}, a FileMapper or a run config is accepted", shown(other))))
        }
    }
}
