//! The file mapper of an engine's own tiers: which fields it hashes and which path each block gets.

use super::config_file::CONFIG_FILE_NAME;
use super::facts::{Facts, Group};
use super::fields::Fields;
use super::text::Text;
use super::value::{Int, Value};
use crate::layout::BlockKey;

/// What a [`FileMapper`] is made from.
///
/// The mapper checks nothing, and neither does this: whatever stands here is hashed as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MapperArguments {
    /// The model's name or path, as the engine knows it.
    pub model_name: Text,
    /// Tokens that one block hash covers.
    pub tokens_per_hash: Value,
    /// Blocks in one file.
    pub blocks_per_file: Value,
    /// Workers between which tensors are split.
    pub tp_size: Value,
    /// Stages between which layers are split.
    pub pp_size: Value,
    /// Workers between which the tokens of a prompt are split while it is read.
    pub pcp_size: Value,
    /// Workers between which cached tokens are split while text is produced.
    pub dcp_size: Value,
    /// The worker's number; part of the path, never hashed.
    pub rank: Int,
    /// Element type of the KV cache.
    pub dtype: Text,
    /// A list of `{"tokens_per_block": int, "layer_names": [str]}`, empty when there are no groups.
    pub kv_cache_groups: Value,
    /// The engine's name.
    pub inference_engine: Text,
    /// Rows are the same bytes under any parallel layout: hashed as one worker of rank 0.
    pub parallel_agnostic: bool,
    /// Every rank holds the same bytes.
    pub replicated_layout: bool,
    /// The engine's canonical byte format, if rows are in one.
    pub canonical_format: Option<Text>,
}

impl MapperArguments {
    /// The rank in the path.
    pub(super) fn effective_rank(&self) -> Int {
        if self.parallel_agnostic { Int::from(0_u64) } else { self.rank.clone() }
    }

    /// The fields that are hashed.
    ///
    /// A flag that came later is written only in the state that is not the old default, so that digests made before it
    /// existed stay what they were.
    pub(super) fn fields(&self) -> Fields {
        let size = |size: &Value| if self.parallel_agnostic { Value::from(1) } else { size.clone() };
        let mut fields = Fields::default();
        fields.set("model_name", self.model_name.clone());
        fields.set("tokens_per_hash", self.tokens_per_hash.clone());
        fields.set("blocks_per_file", self.blocks_per_file.clone());
        fields.set("tp_size", size(&self.tp_size));
        fields.set("pp_size", size(&self.pp_size));
        fields.set("pcp_size", size(&self.pcp_size));
        fields.set("dcp_size", size(&self.dcp_size));
        fields.set("dtype", self.dtype.clone());
        fields.set("kv_cache_groups", self.kv_cache_groups.clone());
        fields.set("inference_engine", self.inference_engine.clone());
        if !self.parallel_agnostic {
            fields.set("parallel_agnostic", false);
        }
        if self.replicated_layout {
            fields.set("replicated_layout", true);
        }
        fields.set_if_given("canonical_format", self.canonical_format.clone());
        fields
    }
}

/// What an identity tells an engine's own mapper.
impl From<&Facts> for MapperArguments {
    fn from(facts: &Facts) -> Self {
        Self {
            model_name: facts.model_name.clone(),
            tokens_per_hash: facts.tokens_per_hash.into(),
            blocks_per_file: facts.blocks_per_file.into(),
            tp_size: facts.tp_size.into(),
            pp_size: facts.pp_size.into(),
            pcp_size: facts.pcp_size.into(),
            dcp_size: facts.dcp_size.into(),
            rank: Int::from(u64::from(facts.rank)),
            dtype: facts.dtype.clone(),
            kv_cache_groups: Value::List(facts.kv_cache_groups.iter().map(Value::from).collect()),
            inference_engine: facts.inference_engine.clone(),
            parallel_agnostic: facts.parallel_agnostic,
            replicated_layout: facts.replicated_layout,
            canonical_format: facts.canonical_format.clone(),
        }
    }
}

impl From<&Group> for Value {
    fn from(group: &Group) -> Self {
        Self::from([
            ("tokens_per_block", group.tokens_per_block.into()),
            ("layer_names", Self::from(group.layer_names.clone())),
        ])
    }
}

/// Maps block keys to file names exactly as the engine's own tiers do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileMapper {
    rank: Int,
    fields: Fields,
    base_path: Text,
}

impl FileMapper {
    /// A mapper below `root_dir`, which is taken as it stands: a trailing slash stays.
    pub fn new(root_dir: &Text, arguments: &MapperArguments) -> Self {
        let fields = arguments.fields();
        let mut base_path = root_dir.clone();
        base_path.push_text(&"/".into());
        base_path.push_text(&arguments.model_name.replace_ascii(b'/', b'_'));
        base_path.push_text(&format!("_{}", fields.digest()).into());
        Self { rank: arguments.effective_rank(), fields, base_path }
    }

    /// The worker's number in block paths.
    pub fn rank(&self) -> &Int {
        &self.rank
    }

    /// The hashed fields: what `config.json` holds, and what two peers compare before they exchange rows.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// `<root_dir>/<model>_<digest>`.
    pub fn base_path(&self) -> &Text {
        &self.base_path
    }

    /// Path of the `config.json` that all ranks share.
    pub fn config_path(&self) -> Text {
        self.below_base(&format!("/{CONFIG_FILE_NAME}"))
    }

    /// Path of a block's file.
    pub fn block_path(&self, key: &BlockKey) -> Text {
        self.below_base(&format!("_r{}/{}", self.rank, key.path()))
    }

    fn below_base(&self, suffix: &str) -> Text {
        let mut path = self.base_path.clone();
        path.push_text(&suffix.into());
        path
    }
}
