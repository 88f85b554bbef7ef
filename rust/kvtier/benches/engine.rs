//! What the engine itself costs: a store that does nothing, so that all time is the engine's.

#![allow(clippy::unwrap_used)] // a benchmark that cannot go on stops

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvtier::buffer::{HostRows, RowLease};
use kvtier::engine::{Engine, EngineConfig, JobKind};
use kvtier::error::Result;
use kvtier::index::RequestId;
use kvtier::io::{IoEngine, Task, ThreadEngine};
use kvtier::layout::BlockKey;
use kvtier::store::{BlockStore, Done, Loaded, Location, Probed, StoreInfo, Stored};

const JOB: usize = 32;
const RESIDENT: u64 = 100_000;

struct Nothing(Arc<ThreadEngine>);

impl BlockStore for Nothing {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "nothing",
            place: "nowhere".into(),
            payload_bytes: 4096,
            concurrency: self.0.depth(),
            threads: self.0.depth(),
            turn: usize::MAX,
            io_engine: "threads",
            read_only: false,
            exclusive: false,
            listed: false,
        }
    }

    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }

    fn store(&self, _key: BlockKey, _row: RowLease, done: Done<Stored>) {
        done.give(Ok(Stored { location: Location::default(), bytes: 4096 }));
    }

    fn load(&self, _key: BlockKey, _row: RowLease, done: Done<Loaded>) {
        done.give(Ok(Loaded { bytes: 4096 }));
    }

    fn probe(&self, keys: Vec<BlockKey>, done: Done<Vec<Probed>>) {
        done.give(Ok(keys.iter().map(|_| Probed::Present(Location::default())).collect()));
    }

    fn scan(&self, _found: &mut dyn FnMut(BlockKey, Location) -> bool) -> Result<()> {
        Ok(())
    }

    fn reset(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self, timeout: Duration) -> usize {
        self.0.stop(timeout)
    }
}

fn key(n: u64) -> BlockKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    BlockKey::from_parts(&hash, 0).unwrap()
}

fn engine(threads: usize) -> Engine {
    let rows = HostRows::new(JOB, 4096).unwrap().region();
    let store = Nothing(ThreadEngine::start("bench", threads).unwrap());
    Engine::start(Arc::new(store), rows, EngineConfig::default()).unwrap()
}

fn jobs(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine");
    group.throughput(Throughput::Elements(JOB as u64));
    let rows: Vec<u32> = (0..JOB as u32).collect();
    for threads in [1, 4] {
        let engine = engine(threads);
        let mut next = 0;
        let mut submit_and_drain = |iterations: u64, whole: bool| {
            let mut spent = Duration::ZERO;
            for _ in 0..iterations {
                let keys: Vec<_> = (0..JOB as u64).map(|n| key(next * JOB as u64 + n)).collect();
                let rows = rows.clone();
                let begin = Instant::now();
                engine.submit(JobKind::Load, next, keys, rows).unwrap();
                let submitted = begin.elapsed();
                engine.drain(None).unwrap();
                spent += if whole { begin.elapsed() } else { submitted };
                black_box(engine.poll().unwrap());
                next += 1;
            }
            spent
        };
        group.bench_function(format!("submit 32 blocks, {threads} threads"), |b| {
            b.iter_custom(|n| submit_and_drain(n, false));
        });
        group.bench_function(format!("job of 32 blocks to its result, {threads} threads"), |b| {
            b.iter_custom(|n| submit_and_drain(n, true));
        });
    }
    group.finish();
}

fn lookups(c: &mut Criterion) {
    let engine = engine(2);
    for first in (0..RESIDENT).step_by(JOB) {
        let keys = (first..first + JOB as u64).map(key).collect();
        engine.submit(JobKind::Store, first, keys, (0..JOB as u32).collect()).unwrap();
    }
    engine.drain(None).unwrap();
    engine.poll().unwrap();
    let keys: Vec<_> = (0..RESIDENT).map(key).collect();
    let mut group = c.benchmark_group("lookup of a resident block");
    let mut at = 0;
    let mut next = || {
        at = (at + 7919) % keys.len();
        &keys[at]
    };
    group.bench_function("anonymous", |b| b.iter(|| engine.lookup(next(), None).unwrap()));
    let mut n = 0_u64;
    group.bench_function("of a request of 100 blocks", |b| {
        b.iter(|| {
            n += 1;
            let request = RequestId(n / 100);
            let answer = engine.lookup(next(), Some(request)).unwrap();
            if n % 100 == 99 {
                engine.release(request).unwrap();
            }
            answer
        });
    });
    group.finish();
}

criterion_group!(benches, jobs, lookups);
criterion_main!(benches);
