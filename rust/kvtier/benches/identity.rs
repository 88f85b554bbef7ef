//! What names cost: an identity once when a tier opens, a block's path for every file that is opened.

#![allow(clippy::unwrap_used)] // a benchmark that cannot go on stops

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kvtier::identity::{Facts, FileMapper, Group, Identity, MapperArguments, Namespace, NamespaceKind, Value};
use kvtier::layout::BlockKey;

/// A model of 61 layers in one group, with everything stated.
fn facts() -> Facts {
    let layer_names = (0..61).map(|layer| format!("model.layers.{layer}.self_attn.attn").into()).collect();
    Facts {
        kv_cache_groups: vec![Group { tokens_per_block: 64, layer_names }],
        row_bytes: Some(147_456),
        model_revision: Some("main".into()),
        rope: Some(Value::from([("factor", 40), ("original_max_position_embeddings", 4096)])),
        ..Facts::new("deepseek-ai/DeepSeek-V3", 64, "fp8_ds_mla")
    }
}

fn identity(c: &mut Criterion) {
    let identity = Identity::new(facts()).unwrap();
    let namespace = Namespace::new(&identity, NamespaceKind::Kvtier).unwrap();
    let config = namespace.config_text();
    let arguments = MapperArguments::from(identity.facts());
    let mapper = FileMapper::new(&"/mnt/kv".into(), &arguments);
    let key = BlockKey::from_parts(&[0xA5; 32], 3).unwrap();
    let path = key.path();

    let mut group = c.benchmark_group("identity");
    group.bench_function("open_namespace", |b| {
        b.iter(|| Namespace::new(black_box(&identity), NamespaceKind::Kvtier).unwrap());
    });
    group.bench_function("check_config", |b| b.iter(|| namespace.check_config(black_box(config.as_bytes()))));
    group.bench_function("block_path", |b| b.iter(|| black_box(&key).path()));
    group.bench_function("block_key_of_path", |b| b.iter(|| BlockKey::from_path(black_box(path.as_str())).unwrap()));
    group.bench_function("engines_file_name", |b| b.iter(|| mapper.block_path(black_box(&key))));
    group.finish();
}

criterion_group!(benches, identity);
criterion_main!(benches);
