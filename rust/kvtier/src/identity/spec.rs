//! What kvtier reads of an engine's offloading configuration.

use super::text::Text;
use super::value::{Int, Value};
use crate::error::{Error, ErrorKind, Result};

/// The parts of vLLM's `OffloadingConfig` that identity depends on, as the engine states them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadingSpec {
    /// `model.name`
    pub model_name: Text,
    /// `model.dtype`
    pub dtype: Text,
    /// `cache.tokens_per_hash`
    pub tokens_per_hash: Value,
    /// `groups`, as a list of `{"tokens_per_block": int, "layer_names": [str]}`
    pub kv_cache_groups: Value,
    /// `parallel.tp_size`
    pub tp_size: Value,
    /// `parallel.pp_size`
    pub pp_size: Value,
    /// `parallel.pcp_size`
    pub pcp_size: Value,
    /// `parallel.dcp_size`
    pub dcp_size: Value,
    /// `parallel.rank`
    pub rank: Int,
    /// `parallel.is_parallelism_agnostic`: a block's bytes are the same under any parallel layout.
    pub is_parallelism_agnostic: bool,
    /// `replicated_layout`: every worker's bytes of a block are the same.
    pub replicated_layout: bool,
    /// `canonical_layout`: rows are in the engine's canonical byte format.
    pub canonical_layout: bool,
    /// `kv_cache_layout`: the resolved layout's name, if the engine tells it.
    pub kv_cache_layout: Option<Text>,
}

impl OffloadingSpec {
    /// Name of the canonical byte format (vLLM 0.33), if rows are in one: a version and the family of the layout.
    pub(super) fn canonical_format(&self) -> Result<Option<Text>> {
        if !self.canonical_layout {
            return Ok(None);
        }
        let layout = self.kv_cache_layout.as_ref().and_then(Text::as_str).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                "the offloading spec has canonical_layout set but names no kv_cache_layout, so its byte format is unknown",
            )
        })?;
        let family = match layout {
            "LBNHC" => "nhd".to_owned(),
            "LBHNC" => "hnd".to_owned(),
            other => other.to_lowercase(),
        };
        Ok(Some(format!("v1-{family}").into()))
    }
}
