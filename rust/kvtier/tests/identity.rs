//! Digests and paths against vectors that were made without kvtier and never change.
//!
//! `identity.json` comes from the engine's own mapper, `identity-kvtier.json` from Python's `json` and `hashlib`.

#![allow(clippy::unwrap_used, reason = "a vector that can't be read is a failed test")]

use std::collections::BTreeMap;

use kvtier::identity::{Facts, Fields, FileMapper, Group, Identity, Int, MapperArguments, Namespace, Text, Value};
use kvtier::layout::BlockKey;

const ENGINE_VECTORS: &str = include_str!("../../../tests/vectors/identity.json");
const KVTIER_VECTORS: &str = include_str!("../../../tests/vectors/identity-kvtier.json");

/// One JSON object of the file, by member.
struct Object(BTreeMap<Text, Value>);

impl Object {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name.as_bytes())
    }

    fn value(&self, name: &str) -> Value {
        self.get(name).unwrap().clone()
    }

    fn text(&self, name: &str) -> Text {
        text(self.value(name))
    }

    fn int(&self, name: &str) -> Int {
        let Value::Int(int) = self.value(name) else { panic!("{name} is no integer") };
        int
    }

    fn flag(&self, name: &str) -> bool {
        self.get(name) == Some(&Value::Bool(true))
    }

    fn optional_text(&self, name: &str) -> Option<Text> {
        self.get(name).cloned().map(text)
    }

    fn optional_size(&self, name: &str) -> Option<u64> {
        self.get(name).map(|_| self.int(name).to_u64().unwrap())
    }

    fn size(&self, name: &str) -> u64 {
        self.optional_size(name).unwrap_or(1)
    }

    fn objects(&self, name: &str) -> Vec<Object> {
        objects(self.value(name))
    }
}

fn text(value: Value) -> Text {
    let Value::Text(text) = value else { panic!("{value:?} is no text") };
    text
}

fn object(value: Value) -> Object {
    let Value::Map(map) = value else { panic!("{value:?} is no object") };
    Object(map)
}

fn objects(value: Value) -> Vec<Object> {
    let Value::List(items) = value else { panic!("{value:?} is no list") };
    items.into_iter().map(object).collect()
}

fn hash_of(hex: &Text) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn arguments_of(given: &Object) -> MapperArguments {
    MapperArguments {
        model_name: given.text("model_name"),
        tokens_per_hash: given.value("tokens_per_hash"),
        blocks_per_file: given.value("blocks_per_file"),
        tp_size: given.value("tp_size"),
        pp_size: given.value("pp_size"),
        pcp_size: given.value("pcp_size"),
        dcp_size: given.value("dcp_size"),
        rank: given.int("rank"),
        dtype: given.text("dtype"),
        kv_cache_groups: given.get("kv_cache_groups").cloned().unwrap_or(Value::List(Vec::new())),
        inference_engine: given.optional_text("inference_engine").unwrap_or("vllm".into()),
        parallel_agnostic: given.flag("parallel_agnostic"),
        replicated_layout: given.flag("replicated_layout"),
        canonical_format: given.optional_text("canonical_format"),
    }
}

#[test]
fn the_mapper_gives_what_the_engines_own_gives() {
    let vectors = objects(Value::from_json(ENGINE_VECTORS.as_bytes()).unwrap());
    assert_eq!(vectors.len(), 29);
    for vector in vectors {
        let name = vector.text("name");
        let given = object(vector.value("arguments"));
        let mapper = FileMapper::new(&given.text("root_dir"), &arguments_of(&given));

        assert_eq!(*mapper.fields(), Fields::from(object(vector.value("fields")).0), "{name}");
        assert_eq!(mapper.fields().canonical_json(), vector.text("canonical_json").to_string(), "{name}");
        assert_eq!(*mapper.base_path(), vector.text("base_path"), "{name}");
        assert_eq!(mapper.config_path(), vector.text("config_path"), "{name}");
        assert_eq!(*mapper.rank(), vector.int("rank"), "{name}");
        for block in vector.objects("blocks") {
            let group = block.int("group").to_u64().unwrap().try_into().unwrap();
            let key = BlockKey::from_parts(&hash_of(&block.text("hash")), group).unwrap();
            assert_eq!(mapper.block_path(&key), block.text("path"), "{name}");
        }
    }
}

fn group_of(given: &Object) -> Group {
    let Value::List(layer_names) = given.value("layer_names") else { panic!("layer_names is no list") };
    Group { tokens_per_block: given.size("tokens_per_block"), layer_names: layer_names.into_iter().map(text).collect() }
}

fn facts_of(given: &Object) -> Facts {
    Facts {
        blocks_per_file: given.size("blocks_per_file"),
        tp_size: given.size("tp_size"),
        rank: given.optional_size("rank").unwrap_or(0).try_into().unwrap(),
        kv_cache_groups: given.objects("kv_cache_groups").iter().map(group_of).collect(),
        inference_engine: given.optional_text("inference_engine").unwrap_or("vllm".into()),
        parallel_agnostic: given.flag("parallel_agnostic"),
        replicated_layout: given.flag("replicated_layout"),
        canonical_format: given.optional_text("canonical_format"),
        row_bytes: given.optional_size("row_bytes"),
        payload_bytes: given.optional_size("payload_bytes"),
        worker_bytes: given.optional_size("worker_bytes"),
        blocks_per_chunk: given.optional_size("blocks_per_chunk"),
        kv_cache_layout: given.optional_text("kv_cache_layout"),
        model_id: given.optional_text("model_id"),
        model_revision: given.optional_text("model_revision"),
        rope: given.get("rope").cloned(),
        kv_scales: given.get("kv_scales").cloned(),
        model_runner: given.optional_text("model_runner"),
        namespace: given.optional_text("namespace"),
        ..Facts::new(given.text("model_name"), given.size("tokens_per_hash"), given.text("dtype"))
    }
}

#[test]
fn namespaces_are_where_they_always_were() {
    let vectors = objects(Value::from_json(KVTIER_VECTORS.as_bytes()).unwrap());
    assert_eq!(vectors.len(), 50);
    for vector in vectors {
        let kind = vector.text("kind").to_string();
        let name = format!("{}, {kind}", vector.text("name"));
        let identity = Identity::new(facts_of(&object(vector.value("arguments")))).unwrap();
        let namespace = Namespace::new(&identity, kind.parse().unwrap()).unwrap();

        assert_eq!(*namespace.fields(), Fields::from(object(vector.value("fields")).0), "{name}");
        assert_eq!(namespace.fields().canonical_json(), vector.text("canonical_json").to_string(), "{name}");
        assert_eq!(namespace.fields().fingerprint(), vector.text("sha256").to_string(), "{name}");
        assert_eq!(*namespace.sha256(), *hash_of(&vector.text("sha256")), "{name}");
        assert_eq!(namespace.base_dir(), vector.text("base_dir").to_string(), "{name}");
        assert_eq!(namespace.blocks_dir(), vector.text("blocks_dir").to_string(), "{name}");
    }
}
