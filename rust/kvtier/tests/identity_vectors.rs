//! The mapper against vectors made with the engine's own mapper. They never change.

#![allow(clippy::unwrap_used, reason = "a vector that can't be read is a failed test")]

use std::collections::BTreeMap;

use kvtier::identity::{Fields, FileMapper, Int, MapperArguments, Text, Value};
use kvtier::layout::BlockKey;

const VECTORS: &str = include_str!("../../../tests/vectors/identity.json");

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
        inference_engine: given.get("inference_engine").map_or("vllm".into(), |engine| text(engine.clone())),
        parallel_agnostic: given.flag("parallel_agnostic"),
        replicated_layout: given.flag("replicated_layout"),
        canonical_format: given.get("canonical_format").map(|format| text(format.clone())),
    }
}

#[test]
fn the_mapper_gives_what_the_engines_own_gives() {
    let vectors = objects(Value::from_json(VECTORS.as_bytes()).unwrap());
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
