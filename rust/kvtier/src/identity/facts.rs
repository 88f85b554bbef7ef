//! An identity: every fact that changes a block's bytes, stated by whoever opens a tier.

use super::config_file::StoredConfig;
use super::diff::Difference;
use super::fields::Fields;
use super::mapper::MapperArguments;
use super::namespace::NamespaceKind;
use super::text::Text;
use super::value::Value;
use crate::error::{Error, ErrorKind, Result};

/// The format of blocks in the `kvtier` kind, hashed as `storage_format`.
const STORAGE_FORMAT: &str = "kvtier-1";

/// What is stated about an engine's KV blocks. `None` means not stated: it is not hashed, and not protected from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The model's name or path, as the engine knows it.
    pub model_name: Text,
    /// Tokens that one block hash covers, at least 1.
    pub tokens_per_hash: u64,
    /// Blocks in one file, at least 1.
    pub blocks_per_file: u64,
    /// Workers between which tensors are split, at least 1.
    pub tp_size: u64,
    /// Stages between which layers are split, at least 1.
    pub pp_size: u64,
    /// Workers between which the tokens of a prompt are split while it is read, at least 1.
    pub pcp_size: u64,
    /// Workers between which cached tokens are split while text is produced, at least 1.
    pub dcp_size: u64,
    /// The worker's number; part of the path, never hashed.
    pub rank: u32,
    /// Element type of the KV cache, resolved: not `auto`.
    pub dtype: Text,
    /// The KV-cache groups, in the engine's order.
    pub kv_cache_groups: Vec<Group>,
    /// The engine's name.
    pub inference_engine: Text,
    /// Rows are the same bytes under any parallel layout: hashed as one worker of rank 0.
    pub parallel_agnostic: bool,
    /// Every rank holds the same bytes. Collapses parallel sizes only together with `parallel_agnostic`.
    pub replicated_layout: bool,
    /// The engine's canonical byte format, if rows are in one.
    pub canonical_format: Option<Text>,
    /// Bytes from one row to the next in the engine's buffer, padding included. Known at the latest when a tier opens.
    pub row_bytes: Option<u64>,
    /// Bytes of a row that matter, where strides differ between engines that share rows; hashed as `row_bytes`.
    pub payload_bytes: Option<u64>,
    /// Bytes of a block that each worker keeps, where a row joins the parts of all workers.
    pub worker_bytes: Option<u64>,
    /// Blocks that the engine joins into one row.
    pub blocks_per_chunk: Option<u64>,
    /// Name of the KV layout, such as `HND` or `NHD`.
    pub kv_cache_layout: Option<Text>,
    /// The model's name wherever it is loaded from; stands for `model_name` in the `kvtier` kind.
    pub model_id: Option<Text>,
    /// Revision of the weights.
    pub model_revision: Option<Text>,
    /// Parameters of the rotary position encoding, and other overrides of the model's configuration.
    pub rope: Option<Value>,
    /// Scales of a quantised KV cache, or a fingerprint of them.
    pub kv_scales: Option<Value>,
    /// Generation of the engine's model runner.
    pub model_runner: Option<Text>,
    /// A name that keeps apart what the operator wants apart.
    pub namespace: Option<Text>,
}

/// Layers whose blocks are of one size and live in one table of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Tokens in one block, at least 1.
    pub tokens_per_block: u64,
    /// Names of the layers, in the engine's order.
    pub layer_names: Vec<Text>,
}

impl Facts {
    /// The least that can be stated; everything else is as if one worker of vLLM had no more to say.
    pub fn new(model_name: impl Into<Text>, tokens_per_hash: u64, dtype: impl Into<Text>) -> Self {
        Self {
            model_name: model_name.into(),
            tokens_per_hash,
            blocks_per_file: 1,
            tp_size: 1,
            pp_size: 1,
            pcp_size: 1,
            dcp_size: 1,
            rank: 0,
            dtype: dtype.into(),
            kv_cache_groups: Vec::new(),
            inference_engine: "vllm".into(),
            parallel_agnostic: false,
            replicated_layout: false,
            canonical_format: None,
            row_bytes: None,
            payload_bytes: None,
            worker_bytes: None,
            blocks_per_chunk: None,
            kv_cache_layout: None,
            model_id: None,
            model_revision: None,
            rope: None,
            kv_scales: None,
            model_runner: None,
            namespace: None,
        }
    }

    /// The rank in block paths: 0 when rows don't depend on the worker.
    pub fn effective_rank(&self) -> u32 {
        if self.parallel_agnostic { 0 } else { self.rank }
    }
}

/// Facts that make sense together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    facts: Facts,
}

impl Identity {
    /// Checks the facts; one error lists everything that is wrong with them.
    ///
    /// Whole floats in `rope` and `kv_scales` become integers here, so that `2` and `2.0` are the same configuration.
    pub fn new(facts: Facts) -> Result<Self> {
        Self::unless(Vec::new(), facts)
    }

    /// The same, unless problems were found already while the facts were read; they are listed with the others.
    pub fn unless(mut problems: Vec<String>, mut facts: Facts) -> Result<Self> {
        problems.extend(facts.problems());
        if !problems.is_empty() {
            let message = format!("these facts make no identity: {}", problems.join("; "));
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        facts.rope = facts.rope.map(Value::with_numbers_normalised);
        facts.kv_scales = facts.kv_scales.map(Value::with_numbers_normalised);
        Ok(Self { facts })
    }

    /// What was stated.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The same identity with the row length that the engine's buffer turned out to have.
    ///
    /// An error if another one was stated, or if `payload_bytes` don't fit into it.
    pub fn with_row_bytes(&self, row_bytes: u64) -> Result<Self> {
        match self.facts.row_bytes {
            Some(stated) if stated != row_bytes => Err(Error::new(
                ErrorKind::InvalidInput,
                format!("the identity states row_bytes {stated}, but the rows are {row_bytes} bytes apart"),
            )),
            _ => Self::new(Facts { row_bytes: Some(row_bytes), ..self.facts.clone() }),
        }
    }

    /// The fields that a namespace of this kind hashes, as far as they are known.
    pub fn fields(&self, kind: NamespaceKind) -> Fields {
        let facts = &self.facts;
        let mut fields = MapperArguments::from(facts).fields();
        if kind == NamespaceKind::Vllm {
            return fields;
        }
        fields.set("model_name", self.model(kind).clone());
        fields.set("dtype", resolved_name(&facts.dtype));
        fields.set("storage_format", STORAGE_FORMAT);
        fields.set_if_given("row_bytes", facts.payload_bytes.or(facts.row_bytes));
        fields.set_if_given("worker_bytes", facts.worker_bytes);
        fields.set_if_given("blocks_per_chunk", facts.blocks_per_chunk);
        fields.set_if_given("kv_cache_layout", facts.kv_cache_layout.clone());
        fields.set_if_given("model_revision", facts.model_revision.clone());
        fields.set_if_given("rope", facts.rope.clone());
        fields.set_if_given("kv_scales", facts.kv_scales.clone());
        fields.set_if_given("model_runner", facts.model_runner.clone());
        fields.set_if_given("namespace", facts.namespace.clone());
        fields
    }

    /// The `config.json` of a namespace of this kind, as far as it is known.
    pub fn config(&self, kind: NamespaceKind) -> StoredConfig {
        StoredConfig { fields: self.fields(kind), origin: None }
    }

    /// Where the two would not share blocks of this kind, and why; empty when they do.
    pub fn diff(&self, other: &Self, kind: NamespaceKind) -> Vec<Difference> {
        self.fields(kind).diff(&other.fields(kind))
    }

    /// SHA-256 over the fields of this kind in 64 hex digits; an error where [`Identity::check_kind`] gives one.
    pub fn fingerprint(&self, kind: NamespaceKind) -> Result<String> {
        self.check_kind(kind)?;
        Ok(self.fields(kind).fingerprint())
    }

    /// Whether these facts are enough for a namespace of this kind: the `kvtier` kind wants the dtype resolved.
    pub fn check_kind(&self, kind: NamespaceKind) -> Result<()> {
        let dtype = resolved_name(&self.facts.dtype);
        let unresolved = matches!(dtype.to_string_lossy().trim().to_lowercase().as_str(), "" | "auto" | "none");
        if kind == NamespaceKind::Kvtier && unresolved {
            return Err(Error::new(
                ErrorKind::Config,
                format!(
                    "dtype {dtype:?} says what was asked for, not what is stored: two engines can resolve it differently \
                     and read each other's bytes as other numbers; give the resolved type, such as \"bfloat16\""
                ),
            ));
        }
        Ok(())
    }

    /// The name that is hashed and shown in paths.
    pub(super) fn model(&self, kind: NamespaceKind) -> &Text {
        match (kind, &self.facts.model_id) {
            (NamespaceKind::Kvtier, Some(id)) => id,
            _ => &self.facts.model_name,
        }
    }
}

/// `torch.bfloat16`, as torch prints its types, and `bfloat16`, as engines name them, are one type.
fn resolved_name(dtype: &Text) -> Text {
    dtype.as_str().and_then(|name| name.strip_prefix("torch.")).map_or_else(|| dtype.clone(), Into::into)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::identity::value::Float;

    const KINDS: [NamespaceKind; 2] = [NamespaceKind::Kvtier, NamespaceKind::Vllm];

    fn base() -> Facts {
        Facts { row_bytes: Some(4096), ..Facts::new("org/m", 16, "bfloat16") }
    }

    fn digest(facts: &Facts, kind: NamespaceKind) -> String {
        Identity::new(facts.clone()).unwrap().fields(kind).digest()
    }

    /// Every fact changed alone, and whether an engine's own mapper knows it.
    fn changes() -> Vec<(&'static str, bool, Facts)> {
        let group = |tokens_per_block, layer: &str| {
            vec![Group { tokens_per_block, layer_names: vec!["layers.0".into(), layer.into()] }]
        };
        let factor = |factor: f64| Some(Value::from([("factor", Value::Float(Float::new(factor).unwrap()))]));
        vec![
            ("model_name", true, Facts { model_name: "org_m".into(), ..base() }),
            ("tokens_per_hash", true, Facts { tokens_per_hash: 32, ..base() }),
            ("blocks_per_file", true, Facts { blocks_per_file: 2, ..base() }),
            ("tp_size", true, Facts { tp_size: 2, ..base() }),
            ("pp_size", true, Facts { pp_size: 2, ..base() }),
            ("pcp_size", true, Facts { pcp_size: 2, ..base() }),
            ("dcp_size", true, Facts { dcp_size: 2, ..base() }),
            ("dtype", true, Facts { dtype: "float16".into(), ..base() }),
            ("one group", true, Facts { kv_cache_groups: group(16, "layers.1"), ..base() }),
            ("its layer", true, Facts { kv_cache_groups: group(16, "layers.2"), ..base() }),
            ("its tokens", true, Facts { kv_cache_groups: group(32, "layers.1"), ..base() }),
            (
                "two groups",
                true,
                Facts { kv_cache_groups: [group(16, "layers.1"), group(16, "layers.1")].concat(), ..base() },
            ),
            ("inference_engine", true, Facts { inference_engine: "sglang".into(), ..base() }),
            ("parallel_agnostic", true, Facts { parallel_agnostic: true, ..base() }),
            ("replicated_layout", true, Facts { replicated_layout: true, ..base() }),
            ("replicated", true, Facts { parallel_agnostic: true, replicated_layout: true, ..base() }),
            ("canonical_format", true, Facts { canonical_format: Some("v1-nhd".into()), ..base() }),
            ("row_bytes", false, Facts { row_bytes: Some(8192), ..base() }),
            ("payload_bytes", false, Facts { payload_bytes: Some(4000), ..base() }),
            ("worker_bytes", false, Facts { worker_bytes: Some(1024), ..base() }),
            ("blocks_per_chunk", false, Facts { blocks_per_chunk: Some(2), ..base() }),
            ("kv_cache_layout", false, Facts { kv_cache_layout: Some("HND".into()), ..base() }),
            ("other layout", false, Facts { kv_cache_layout: Some("NHD".into()), ..base() }),
            ("model_id", false, Facts { model_id: Some("id".into()), ..base() }),
            ("model_revision", false, Facts { model_revision: Some("main".into()), ..base() }),
            ("rope", false, Facts { rope: factor(1.0), ..base() }),
            ("rope factor", false, Facts { rope: factor(2.0), ..base() }),
            ("kv_scales", false, Facts { kv_scales: factor(1.0), ..base() }),
            ("model_runner", false, Facts { model_runner: Some("v2".into()), ..base() }),
            ("namespace", false, Facts { namespace: Some("v2".into()), ..base() }),
        ]
    }

    #[test]
    fn every_fact_alone_moves_the_digest_to_a_place_of_its_own() {
        let changes = changes();
        let kvtier: HashSet<_> = changes.iter().map(|(_, _, facts)| digest(facts, NamespaceKind::Kvtier)).collect();
        assert_eq!(kvtier.len(), changes.len());
        assert!(!kvtier.contains(&digest(&base(), NamespaceKind::Kvtier)));
    }

    #[test]
    fn the_vllm_kind_knows_what_the_mapper_knows_and_nothing_else() {
        let plain = digest(&base(), NamespaceKind::Vllm);
        for (name, in_mapper, facts) in changes() {
            assert_eq!(digest(&facts, NamespaceKind::Vllm) != plain, in_mapper, "{name}");
            let by_mapper = MapperArguments::from(&facts).fields();
            assert_eq!(Identity::new(facts).unwrap().fields(NamespaceKind::Vllm), by_mapper, "{name}");
        }
    }

    #[test]
    fn the_rank_and_the_stride_around_a_stated_payload_move_nothing() {
        assert_eq!(digest(&Facts { rank: 5, ..base() }, NamespaceKind::Kvtier), digest(&base(), NamespaceKind::Kvtier));
        let [narrow, wide] =
            [4096, 8192].map(|row| Facts { row_bytes: Some(row), payload_bytes: Some(4000), ..base() });
        let unpadded = Facts { row_bytes: Some(4000), ..base() };
        assert_eq!(digest(&narrow, NamespaceKind::Kvtier), digest(&wide, NamespaceKind::Kvtier));
        assert_eq!(digest(&narrow, NamespaceKind::Kvtier), digest(&unpadded, NamespaceKind::Kvtier));
    }

    #[test]
    fn replicated_rows_are_shared_by_every_tp_size_and_rank_and_by_nobody_else() {
        for kind in KINDS {
            let stated = |tp_size, rank, parallel_agnostic, replicated_layout| Facts {
                tp_size,
                rank,
                parallel_agnostic,
                replicated_layout,
                ..base()
            };
            let ranks: Vec<_> =
                [1_u64, 2, 4, 8].into_iter().flat_map(|tp| (0..tp as u32).map(move |r| (tp, r))).collect();
            let shared: HashSet<_> = ranks.iter().map(|&(tp, r)| digest(&stated(tp, r, true, true), kind)).collect();
            let agnostic: HashSet<_> = ranks.iter().map(|&(tp, r)| digest(&stated(tp, r, true, false), kind)).collect();
            let unasked: HashSet<_> = ranks.iter().map(|&(tp, r)| digest(&stated(tp, r, false, true), kind)).collect();
            let plain: HashSet<_> = ranks.iter().map(|&(tp, r)| digest(&stated(tp, r, false, false), kind)).collect();
            assert_eq!([shared.len(), agnostic.len(), unasked.len(), plain.len()], [1, 1, 4, 4]);
            let all: HashSet<_> = [shared, agnostic, unasked, plain].into_iter().flatten().collect();
            assert_eq!(all.len(), 10, "{kind}");
        }
        assert_eq!(Facts { rank: 3, parallel_agnostic: true, ..base() }.effective_rank(), 0);
    }

    #[test]
    fn splits_of_layers_or_tokens_are_not_replicated() {
        let facts = Facts { pp_size: 2, pcp_size: 3, dcp_size: 4, replicated_layout: true, ..base() };
        for parallel_agnostic in [true, false] {
            let error = Identity::new(Facts { parallel_agnostic, ..facts.clone() }).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            for part in ["pp_size is 2", "pcp_size is 3", "dcp_size is 4", "splits layers between workers"] {
                assert!(error.message().contains(part), "{error}");
            }
        }
    }

    #[test]
    fn one_error_lists_everything_that_is_wrong() {
        let facts = Facts {
            tp_size: 0,
            row_bytes: Some(10),
            payload_bytes: Some(11),
            namespace: Some("../x".into()),
            model_revision: Some("".into()),
            kv_cache_groups: vec![Group { tokens_per_block: 0, layer_names: Vec::new() }],
            ..Facts::new("", 16, "bfloat16")
        };
        let error = Identity::new(facts).unwrap_err();
        for part in [
            "tp_size is 0",
            "kv_cache_groups[0].tokens_per_block is 0",
            "model_name is empty",
            "model_revision is empty",
            "namespace is \"../x\"",
            "payload_bytes is 11, at most the row_bytes 10",
        ] {
            assert!(error.message().contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn a_namespace_is_a_name_not_a_path() {
        for wrong in ["..", "a/b", "a..b", "a\\b", "a\0b", "a\nb", ""] {
            assert!(Identity::new(Facts { namespace: Some(wrong.into()), ..base() }).is_err(), "{wrong:?}");
        }
        for right in ["a", ".", "v1.2", "团队 A", "x:y"] {
            assert!(Identity::new(Facts { namespace: Some(right.into()), ..base() }).is_ok(), "{right:?}");
        }
    }

    #[test]
    fn an_unresolved_dtype_is_refused_in_the_kvtier_kind() {
        for dtype in ["auto", "AUTO", " auto ", "", " ", "None", "torch.", "torch.auto"] {
            let identity = Identity::new(Facts { dtype: dtype.into(), ..base() }).unwrap();
            let error = identity.fingerprint(NamespaceKind::Kvtier).unwrap_err();
            assert!(error.message().contains("resolve"), "{error}");
            assert!(identity.fingerprint(NamespaceKind::Vllm).is_ok());
        }
    }

    #[test]
    fn torch_types_are_named_as_engines_name_them() {
        let by_torch = Facts { dtype: "torch.bfloat16".into(), ..base() };
        assert_eq!(digest(&by_torch, NamespaceKind::Kvtier), digest(&base(), NamespaceKind::Kvtier));
        // The engine's own mapper takes the text as it is.
        assert_ne!(digest(&by_torch, NamespaceKind::Vllm), digest(&base(), NamespaceKind::Vllm));
    }

    #[test]
    fn one_model_id_joins_paths_of_different_machines_in_the_kvtier_kind_only() {
        let at = |path: &str| Facts { model_name: path.into(), model_id: Some("org/m".into()), ..base() };
        let digests = |kind| [digest(&at("/a/m"), kind), digest(&at("/b/m"), kind), digest(&base(), kind)];
        let [a, b, named] = digests(NamespaceKind::Kvtier);
        assert!(a == b && b == named);
        let [a, b, named] = digests(NamespaceKind::Vllm);
        assert!(a != b && b != named);
    }

    #[test]
    fn rows_of_another_length_than_stated_are_refused() {
        let stated = Identity::new(base()).unwrap();
        assert_eq!(stated.with_row_bytes(4096).unwrap(), stated);
        assert!(stated.with_row_bytes(8192).unwrap_err().message().contains("row_bytes 4096"));
        let payload = Identity::new(Facts { row_bytes: None, payload_bytes: Some(5000), ..base() }).unwrap();
        assert!(payload.with_row_bytes(4096).is_err());
        assert_eq!(payload.with_row_bytes(8192).unwrap().facts().row_bytes, Some(8192));
    }

    proptest! {
        #[test]
        fn the_spelling_of_rope_numbers_does_not_matter(whole in -1_000_000_i32..1_000_000, fraction in 0.001_f64..0.999) {
            let rope = |factor: Value| Facts {
                rope: Some(Value::from([("nested", Value::from(vec![Value::from([("factor", factor)])]))])),
                ..base()
            };
            let float = |f: f64| Value::Float(Float::new(f).unwrap());
            let as_int = digest(&rope(Value::Int(i64::from(whole).into())), NamespaceKind::Kvtier);
            prop_assert_eq!(&as_int, &digest(&rope(float(whole.into())), NamespaceKind::Kvtier));
            let between = f64::from(whole) + fraction;
            prop_assert_ne!(&as_int, &digest(&rope(float(between)), NamespaceKind::Kvtier));
        }
    }
}
