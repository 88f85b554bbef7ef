//! What kvtier reads of an engine's offloading configuration, and the facts that follow from it.

use super::facts::{Facts, Group};
use super::text::Text;
use crate::error::{Error, ErrorKind, Result};

/// The parts of vLLM's `OffloadingConfig` that identity depends on, as the engine states them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadingSpec {
    /// `model.name`
    pub model_name: Text,
    /// `model.dtype`
    pub dtype: Text,
    /// `cache.tokens_per_hash`
    pub tokens_per_hash: u64,
    /// `cache.blocks_per_chunk`, if the engine tells it.
    pub blocks_per_chunk: Option<u64>,
    /// `groups`, in the engine's order.
    pub groups: Vec<Group>,
    /// `parallel.tp_size`
    pub tp_size: u64,
    /// `parallel.pp_size`
    pub pp_size: u64,
    /// `parallel.pcp_size`
    pub pcp_size: u64,
    /// `parallel.dcp_size`
    pub dcp_size: u64,
    /// `parallel.rank`
    pub rank: u32,
    /// `parallel.is_parallelism_agnostic`: a block's bytes are the same under any parallel layout.
    pub is_parallelism_agnostic: bool,
    /// `replicated_layout`: every worker's bytes of a block are the same.
    pub replicated_layout: bool,
    /// `canonical_layout`: rows are in the engine's canonical byte format.
    pub canonical_layout: bool,
    /// `kv_cache_layout`: the resolved layout's name, if the engine tells it.
    pub kv_cache_layout: Option<Text>,
}

impl Facts {
    /// The facts in an engine's offloading configuration.
    ///
    /// `parallel_agnostic` is the caller's opt-in. It takes effect only where the engine says that rows don't depend on
    /// the parallel layout or are replicated; without it a replicated layout keeps its parallel sizes. The engine knows
    /// nothing of revision, rope and the like: whoever knows sets them.
    pub fn from_offloading_spec(spec: OffloadingSpec, blocks_per_file: u64, parallel_agnostic: bool) -> Result<Self> {
        Ok(Self {
            blocks_per_file,
            tp_size: spec.tp_size,
            pp_size: spec.pp_size,
            pcp_size: spec.pcp_size,
            dcp_size: spec.dcp_size,
            rank: spec.rank,
            parallel_agnostic: parallel_agnostic && (spec.is_parallelism_agnostic || spec.replicated_layout),
            replicated_layout: parallel_agnostic && spec.replicated_layout,
            canonical_format: spec.canonical_format()?,
            blocks_per_chunk: spec.blocks_per_chunk,
            kv_cache_layout: spec.kv_cache_layout,
            kv_cache_groups: spec.groups,
            ..Self::new(spec.model_name, spec.tokens_per_hash, spec.dtype)
        })
    }
}

impl OffloadingSpec {
    /// Name of the canonical byte format (vLLM 0.33), if rows are in one: a version and the family of the layout.
    fn canonical_format(&self) -> Result<Option<Text>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Identity, NamespaceKind};

    fn spec(tp_size: u64, is_parallelism_agnostic: bool, replicated_layout: bool) -> OffloadingSpec {
        OffloadingSpec {
            model_name: "m".into(),
            dtype: "fp8_ds_mla".into(),
            tokens_per_hash: 64,
            blocks_per_chunk: Some(1),
            groups: vec![Group { tokens_per_block: 64, layer_names: vec!["layers.0".into()] }],
            tp_size,
            pp_size: 1,
            pcp_size: 1,
            dcp_size: 1,
            rank: tp_size as u32 - 1,
            is_parallelism_agnostic,
            replicated_layout,
            canonical_layout: false,
            kv_cache_layout: Some("LBNHC".into()),
        }
    }

    #[test]
    fn collapsing_needs_the_engines_word_and_the_callers() {
        for (engine_agnostic, engine_replicated, opted_in, agnostic, replicated) in [
            (false, false, true, false, false),
            (true, false, true, true, false),
            (false, true, true, true, true),
            (true, true, true, true, true),
            (true, true, false, false, false),
        ] {
            let facts = Facts::from_offloading_spec(spec(4, engine_agnostic, engine_replicated), 1, opted_in).unwrap();
            assert_eq!((facts.parallel_agnostic, facts.replicated_layout), (agnostic, replicated));
            assert_eq!(facts.tp_size, 4);
            assert_eq!(facts.effective_rank(), if agnostic { 0 } else { 3 });
        }
    }

    #[test]
    fn replicated_rows_of_two_tp_sizes_share_only_when_opted_in() {
        let fingerprint = |tp_size, opted_in| {
            let facts = Facts::from_offloading_spec(spec(tp_size, false, true), 1, opted_in).unwrap();
            Identity::new(facts).unwrap().fingerprint(NamespaceKind::Kvtier).unwrap()
        };
        assert_eq!(fingerprint(2, true), fingerprint(4, true));
        assert_ne!(fingerprint(2, false), fingerprint(4, false));
        assert_ne!(fingerprint(2, true), fingerprint(2, false));
    }

    #[test]
    fn the_canonical_format_names_the_layouts_family() {
        for (layout, format) in [("LBNHC", "v1-nhd"), ("LBHNC", "v1-hnd"), ("NewLayout", "v1-newlayout")] {
            let canonical =
                OffloadingSpec { canonical_layout: true, kv_cache_layout: Some(layout.into()), ..spec(1, true, false) };
            let facts = Facts::from_offloading_spec(canonical, 1, true).unwrap();
            assert_eq!(facts.canonical_format, Some(format.into()));
        }
        let unnamed = OffloadingSpec { canonical_layout: true, kv_cache_layout: None, ..spec(1, true, false) };
        assert!(Facts::from_offloading_spec(unnamed, 1, true).is_err());
        assert_eq!(Facts::from_offloading_spec(spec(1, true, false), 1, true).unwrap().canonical_format, None);
    }
}
