//! The hashed facts of an identity, and the one list of all facts that there are.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::namespace::NamespaceKind;
use super::text::Text;
use super::value::Value;

/// Hex digits of the SHA-256 that go into a directory's name.
const DIGEST_LEN: usize = 12;

/// What an identity knows about one of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name, as it is hashed.
    pub name: &'static str,
    /// What goes wrong between two engines that differ in it and don't know.
    pub protects_from: &'static str,
}

/// Every field, in the order of reading. A name that is here once never means anything else.
pub const FIELDS: [Field; 23] = [
    field("model_name", "blocks of another model under the same hash"),
    field("tokens_per_hash", "a hash that covers another number of tokens"),
    field("blocks_per_file", "files that hold another number of blocks"),
    field("tp_size", "rows whose heads are split between another number of workers"),
    field("pp_size", "rows whose layers are split between another number of stages"),
    field("pcp_size", "rows whose prompt tokens are split between another number of workers"),
    field("dcp_size", "rows whose cached tokens are split between another number of workers"),
    field("dtype", "elements of another type"),
    field("kv_cache_groups", "other layers, layers in another order, or blocks of another number of tokens"),
    field("inference_engine", "the memory layout of another engine"),
    field("parallel_agnostic", "rows of one parallel layout taken for rows that are the same in each"),
    field("replicated_layout", "one rank's whole row taken for the joined rows of all ranks"),
    field("canonical_format", "another version or family of the engine's canonical byte format"),
    field("storage_format", "files of another program, or blocks stored in another format"),
    field("row_bytes", "rows of another length"),
    field("worker_bytes", "rows in which each worker's part has another length"),
    field("blocks_per_chunk", "rows joined from another number of blocks"),
    field("kv_cache_layout", "heads and tokens in another order (HND, NHD) or layers packed in another way"),
    field("model_revision", "KV computed by other weights of the same name"),
    field("rope", "positions encoded with other parameters"),
    field("kv_scales", "quantised values that were scaled by other factors"),
    field("model_runner", "a generation of the engine's runner that packs layers in another way"),
    field("namespace", "blocks that the operator keeps apart: tenants, experiments, weight updates"),
];

const fn field(name: &'static str, protects_from: &'static str) -> Field {
    Field { name, protects_from }
}

/// Hashed facts by name: what a digest is taken over and what `config.json` holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fields(BTreeMap<Text, Value>);

impl Fields {
    /// The value of a field; `None` when it is absent, which is not the same as null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name.as_bytes())
    }

    /// Name and value of each field: those of [`FIELDS`] in its order, then any others by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Text, &Value)> {
        let known = FIELDS.iter().filter_map(|field| self.0.get_key_value(field.name.as_bytes()));
        let unknown = self.0.iter().filter(|(name, _)| FIELDS.iter().all(|field| **name != *field.name));
        known.chain(unknown)
    }

    /// The kind of namespace that hashes such fields: only kvtier's own names its storage format.
    pub fn kind(&self) -> NamespaceKind {
        if self.get("storage_format").is_some() { NamespaceKind::Kvtier } else { NamespaceKind::Vllm }
    }

    /// The text that is hashed: `json.dumps(fields, sort_keys=True, separators=(",", ":"))` in Python.
    pub fn canonical_json(&self) -> String {
        Value::Map(self.0.clone()).to_canonical_json()
    }

    /// SHA-256 over [`Fields::canonical_json`].
    pub fn sha256(&self) -> [u8; 32] {
        Sha256::digest(self.canonical_json()).into()
    }

    /// The whole SHA-256 as 64 lower-case hex digits: peers may exchange rows only if theirs are equal.
    pub fn fingerprint(&self) -> String {
        self.sha256().iter().fold(String::with_capacity(64), |mut hex, byte| {
            // Writing to a String can't fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }

    /// The first 12 hex digits of the SHA-256, which name the directory.
    pub fn digest(&self) -> String {
        let mut digest = self.fingerprint();
        digest.truncate(DIGEST_LEN);
        digest
    }

    /// Writes a field; an earlier value goes.
    pub(super) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        debug_assert!(FIELDS.iter().any(|field| field.name == name), "{name} is missing in FIELDS");
        self.0.insert(name.into(), value.into());
    }

    /// Writes a field that is hashed only when it is given.
    pub(super) fn set_if_given(&mut self, name: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    pub(super) fn as_map(&self) -> &BTreeMap<Text, Value> {
        &self.0
    }
}

/// Fields read from outside, unknown names included.
impl From<BTreeMap<Text, Value>> for Fields {
    fn from(map: BTreeMap<Text, Value>) -> Self {
        Self(map)
    }
}

impl From<Fields> for Value {
    fn from(fields: Fields) -> Self {
        Self::Map(fields.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_the_order_of_the_list_and_hashed_by_name() {
        let map = BTreeMap::from([
            ("a_new_field".into(), Value::Null),
            ("dtype".into(), "float16".into()),
            ("model_name".into(), "m".into()),
        ]);
        let fields = Fields::from(map);
        let names: Vec<_> = fields.iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(names, ["model_name", "dtype", "a_new_field"]);
        assert_eq!(fields.canonical_json(), r#"{"a_new_field":null,"dtype":"float16","model_name":"m"}"#);
    }

    #[test]
    fn digest_is_the_start_of_the_fingerprint() {
        let fields = Fields::default();
        // SHA-256 of `{}`.
        assert_eq!(fields.fingerprint(), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
        assert_eq!(fields.digest(), "44136fa355b3");
    }
}
