//! Blocks to and from files, raw and framed, with one thread and with eight; the same in packed pools, by threads and
//! through a ring.
//!
//! Writes up to 20 GB below cargo's build directory, or below `KVTIER_BENCH_DIR`.

mod roots;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use kvtier::config::IoEngineChoice;
use kvtier::identity::NamespaceKind;
use roots::Roots;

const ROW_BYTES: [usize; 3] = [64 << 10, 256 << 10, 2 << 20];
const THREADS: [usize; 2] = [1, 8];

/// What is stored before loads are measured, at least: more than any device keeps in a cache of its own.
const LOADED_BYTES: usize = 256 << 20;

fn blocks(c: &mut Criterion) {
    let mut roots = Roots::new(20 << 30);
    for row_bytes in ROW_BYTES {
        let mut group = c.benchmark_group(format!("files/{}KiB", row_bytes >> 10));
        group.sampling_mode(SamplingMode::Flat).sample_size(10);
        group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(300));
        group.throughput(Throughput::Bytes(row_bytes as u64));
        for (format, kind) in [("framed", NamespaceKind::Kvtier), ("raw", NamespaceKind::Vllm)] {
            for threads in THREADS {
                let mut bench = roots.open(kind, row_bytes, threads);
                group.bench_function(BenchmarkId::new(format!("store/{format}"), threads), |b| {
                    b.iter_custom(|blocks| bench.store(blocks as usize));
                });
                bench.store(LOADED_BYTES / row_bytes);
                group.bench_function(BenchmarkId::new(format!("load/{format}"), threads), |b| {
                    b.iter_custom(|blocks| bench.load(blocks as usize));
                });
            }
        }
        group.finish();
    }

    for row_bytes in ROW_BYTES {
        let mut group = c.benchmark_group(format!("packed/{}KiB", row_bytes >> 10));
        group.sampling_mode(SamplingMode::Flat).sample_size(10);
        group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(300));
        group.throughput(Throughput::Bytes(row_bytes as u64));
        for engine in [IoEngineChoice::Threads, IoEngineChoice::Uring] {
            let mut bench = roots.open_packed(row_bytes, engine, 8);
            // Full once, so that what is measured goes into segments that were written before.
            bench.store((3 << 29) / row_bytes);
            group.bench_function(BenchmarkId::new("store", engine.as_str()), |b| {
                b.iter_custom(|blocks| bench.store(blocks as usize));
            });
            let last = LOADED_BYTES / row_bytes;
            bench.store(last);
            group.bench_function(BenchmarkId::new("load", engine.as_str()), |b| {
                b.iter_custom(|blocks| bench.load_last(last, blocks as usize));
            });
        }
        group.finish();
    }

    let mut group = c.benchmark_group("files/probe");
    let mut bench = roots.open(NamespaceKind::Kvtier, 64 << 10, 1);
    bench.store(1000);
    group.throughput(Throughput::Elements(1));
    for (name, there) in [("present", true), ("absent", false)] {
        // Batches of the size of a scheduler's step.
        group.bench_function(name, |b| {
            b.iter_custom(|keys| (0..keys.div_ceil(100)).map(|_| bench.probe(100, there)).sum());
        });
    }
    group.finish();
}

criterion_group!(benches, blocks);
criterion_main!(benches);
