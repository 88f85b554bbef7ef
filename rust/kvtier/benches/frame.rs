//! What framing computes: checksums of payloads that lie in memory or in a cache, and trailer pages.

#![allow(clippy::unwrap_used, reason = "a benchmark that can't go on stops")]

use std::hint::black_box;
use std::time::SystemTime;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvtier::buffer::{HostRows, RowLease};
use kvtier::frame::{BlockFormat, ChecksumAlgorithm, TRAILER_BYTES, Trailer, Verify};
use kvtier::layout::BlockKey;

const IDENTITY: [u8; 32] = [7; 32];

fn checksums(c: &mut Criterion) {
    let mut group = c.benchmark_group("checksum");
    for algorithm in [ChecksumAlgorithm::Xxh3, ChecksumAlgorithm::Crc64Nvme] {
        for bytes in [64 << 10, 256 << 10, 2 << 20] {
            group.throughput(Throughput::Bytes(bytes as u64));
            let payload = vec![0x5A; bytes];
            group.bench_function(BenchmarkId::new(format!("{algorithm}/cached"), bytes), |b| {
                b.iter(|| algorithm.of([black_box(payload.as_slice())]));
            });
            // Rows come from the device or another processor: what a block really costs is a pass over memory.
            let rows = HostRows::new((512 << 20) / bytes, bytes).unwrap();
            let region = rows.region();
            let rows: Vec<_> = (0..rows.num_rows())
                .map(|row| {
                    let mut access = RowLease::unbounded(&region, row).unwrap().enter().unwrap();
                    access.copy_from(&payload).unwrap();
                    access
                })
                .collect();
            let mut next = 0;
            group.bench_function(BenchmarkId::new(format!("{algorithm}/memory"), bytes), |b| {
                b.iter(|| {
                    next = (next + 1) % rows.len();
                    algorithm.of(rows[next].segments())
                });
            });
        }
    }
    group.finish();
}

fn trailers(c: &mut Criterion) {
    let mut group = c.benchmark_group("trailer");
    let key = BlockKey::from_parts(&[3; 32], 0).unwrap();
    let format = BlockFormat::framed(4096, IDENTITY, ChecksumAlgorithm::Xxh3);
    let payload = [1; 4096];
    let mut tail = vec![0; format.tail_bytes()];
    format.seal(key, [payload.as_slice()], SystemTime::now(), &mut tail);
    let page: &[u8; TRAILER_BYTES] = tail.last_chunk().unwrap();
    let trailer = Trailer::decode(page).unwrap();
    let mut encoded = [0; TRAILER_BYTES];
    group.bench_function("encode", |b| b.iter(|| black_box(&trailer).encode(&mut encoded)));
    group.bench_function("decode", |b| b.iter(|| Trailer::decode(black_box(page)).unwrap()));
    group.bench_function("verify/4096", |b| {
        b.iter(|| format.verify(key, [black_box(payload.as_slice())], &tail, Verify::Always).unwrap());
    });
    group.finish();
}

criterion_group!(benches, checksums, trailers);
criterion_main!(benches);
