//! Reads an engine's offloading spec attribute by attribute, so that no engine needs to be imported.

use kvtier::error::{Error, ErrorKind};
use kvtier::identity::{Group, OffloadingSpec, Text};
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::value::{int_of, shown, text_of};
use crate::errors::{Failure, Result};

/// What identity needs of `offloading_spec.config`.
///
/// What an older engine doesn't have yet is read as what that engine does: it splits no prompts, knows no canonical
/// layout, and so on.
pub(super) fn offloading_spec_of(spec: &Bound<'_, PyAny>) -> Result<OffloadingSpec> {
    let config = Part::of(spec, "offloading_spec").part("config")?;
    let model = config.part("model")?;
    let cache = config.part("cache")?;
    let parallel = config.part("parallel")?;
    let mut groups = Vec::new();
    for (i, group) in config.part("groups")?.object.try_iter()?.enumerate() {
        groups.push(group_of(&Part { object: group?, way: format!("{}.groups[{i}]", config.way) })?);
    }
    Ok(OffloadingSpec {
        model_name: model.text("name")?,
        dtype: text_of(&model.part("dtype")?.object.str()?)?,
        tokens_per_hash: cache.size("tokens_per_hash")?,
        blocks_per_chunk: cache.optional("blocks_per_chunk")?.map(|part| part.as_size()).transpose()?,
        groups,
        tp_size: parallel.size("tp_size")?,
        pp_size: parallel.size("pp_size")?,
        pcp_size: parallel.size_or("pcp_size", 1)?,
        dcp_size: parallel.size_or("dcp_size", 1)?,
        rank: parallel.rank()?,
        is_parallelism_agnostic: parallel.flag("is_parallelism_agnostic")?,
        replicated_layout: config.flag("replicated_layout")?,
        canonical_layout: config.flag("canonical_layout")?,
        kv_cache_layout: config.optional("kv_cache_layout")?.map(|part| part.as_text()).transpose()?,
    })
}

fn group_of(group: &Part<'_>) -> Result<Group> {
    let names = group.part("layer_names")?;
    let layer_names = names.object.try_iter()?.map(|name| Part { object: name?, way: names.way.clone() }.as_text());
    Ok(Group { tokens_per_block: group.size("tokens_per_block")?, layer_names: layer_names.collect::<Result<_>>()? })
}

/// An object within the spec, and the way to it for errors.
struct Part<'py> {
    object: Bound<'py, PyAny>,
    way: String,
}

impl<'py> Part<'py> {
    fn of(object: &Bound<'py, PyAny>, name: &str) -> Self {
        Self { object: object.clone(), way: name.to_owned() }
    }

    fn part(&self, name: &str) -> Result<Self> {
        let part = self.object.getattr_opt(name)?.map(|object| Self { object, way: format!("{}.{name}", self.way) });
        part.ok_or_else(|| {
            let missing = format!("{}.{name} is missing", self.way);
            let message = format!("{missing}: kvtier reads the offloading spec of vLLM 0.32 and 0.33");
            Error::new(ErrorKind::Unsupported, message).into()
        })
    }

    /// A part that an engine may not have, or may leave at `None`.
    fn optional(&self, name: &str) -> Result<Option<Self>> {
        let object = self.object.getattr_opt(name)?.filter(|object| !object.is_none());
        Ok(object.map(|object| Self { object, way: format!("{}.{name}", self.way) }))
    }

    fn text(&self, name: &str) -> Result<Text> {
        self.part(name)?.as_text()
    }

    fn size(&self, name: &str) -> Result<u64> {
        self.part(name)?.as_size()
    }

    fn size_or(&self, name: &str, default: u64) -> Result<u64> {
        self.optional(name)?.map_or(Ok(default), |part| part.as_size())
    }

    fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.optional(name)?.map_or(Ok(false), |part| part.object.is_truthy())?)
    }

    fn rank(&self) -> Result<u32> {
        let Some(rank) = self.optional("rank")? else { return Ok(0) };
        rank.as_size()?.try_into().map_err(|_| rank.refused("a rank is accepted"))
    }

    fn as_text(&self) -> Result<Text> {
        let text = self.object.cast::<PyString>();
        text_of(text.map_err(|_| self.refused("text is accepted"))?)
    }

    fn as_size(&self) -> Result<u64> {
        let size = int_of(&self.object).and_then(|int| int.to_u64());
        size.ok_or_else(|| self.refused("an integer that is not negative is accepted"))
    }

    fn refused(&self, accepted: &str) -> Failure {
        let message = format!("{} is {}, {accepted}", self.way, shown(&self.object));
        Failure::invalid_input(message)
    }
}
