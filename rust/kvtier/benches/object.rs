//! Blocks to and from a real S3 server on this machine: how fast, and at what price on this side.
//!
//! `cargo bench -p kvtier --bench object [-- BYTES [CONCURRENCY]]`, or `-- tail` for what hedging and parts do on a server
//! that has a slow tail, and connections of limited speed. The server takes part of the same cores, so figures say more
//! about the ratio of two runs than about a network.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_precision_loss, reason = "a program that prints")]
#![allow(missing_docs, reason = "a benchmark")]

#[path = "../tests/places/mod.rs"]
mod places;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream;
use kvtier::buffer::HostRows;
use kvtier::engine::{Engine, EngineConfig, JobKind};
use kvtier::layout::BlockKey;
use object_store::{ObjectStoreExt, PutPayload};
use places::bucket::BucketPlace;
use places::stub::What;
use places::weed::Weed;
use places::{Harness, Open, Place, key, payload_of};

/// Blocks of one job.
const JOB: usize = 32;
const ROUNDS: usize = 5;

fn main() {
    if std::env::args().any(|word| word == "tail") {
        hedging();
        parts();
        return;
    }
    let numbers: Vec<usize> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    let sizes = numbers.first().map_or(vec![64 << 10, 256 << 10, 2 << 20], |bytes| vec![*bytes]);
    let depths = numbers.get(1).map_or(vec![8, 32], |depth| vec![*depth]);
    let Some(server) = Weed::start() else { return };
    println!("rows of bytes at a depth; kvtier / object_store alone, medians of {ROUNDS}");
    for bytes in sizes {
        for depth in &depths {
            let mut ours: [Vec<Measured>; 3] = Default::default();
            let mut plain: [Vec<Measured>; 3] = Default::default();
            for _ in 0..ROUNDS {
                let place = || BucketPlace::at(&server).with(|config| config.concurrency = *depth);
                for (measured, all) in round(&place(), bytes).into_iter().zip(&mut ours) {
                    all.push(measured);
                }
                for (measured, all) in plain_round(&place(), bytes, *depth).into_iter().zip(&mut plain) {
                    all.push(measured);
                }
            }
            for ((what, ours), plain) in ["store", "load", "lookup"].iter().zip(ours).zip(plain) {
                let (ours, plain) = (median(ours), median(plain));
                println!(
                    "{bytes:>8} x {depth:<3} {what:<7} {:>7.0} / {:>7.0} blocks/s = {:>4.2}   {:>4.0} / {:>4.0} us CPU a block = {:>4.2}   {:>5.3} GB/s, {:>4.2} / {:>4.2} CPU s/GB",
                    ours.blocks_per_second(),
                    plain.blocks_per_second(),
                    ours.blocks_per_second() / plain.blocks_per_second(),
                    ours.cpu_per_block(),
                    plain.cpu_per_block(),
                    ours.cpu_per_block() / plain.cpu_per_block(),
                    ours.gb_per_second(),
                    ours.cpu_per_gb(),
                    plain.cpu_per_gb(),
                );
            }
        }
    }
}

/// One answer in fifty comes 300 ms late.
fn hedging() {
    println!("latency of loads of 64 KiB when 2 % of the answers are 300 ms late");
    for quantile in [None, Some(0.9), Some(0.95)] {
        let place = BucketPlace::stub().with(|config| config.hedge_quantile = quantile);
        let open = Open { payload_bytes: 64 << 10, ..Open::default() };
        let harness = Harness::open(&place, &open, 1);
        harness.store(0).unwrap();
        let mut answers = 0;
        place.server().on_request(move |head| {
            answers += usize::from(head.method == "GET");
            (answers % 50 == 49).then_some(What::Late(Duration::from_millis(300)))
        });
        let mut latencies: Vec<_> = (0..1000)
            .map(|_| {
                let begun = Instant::now();
                harness.load(0).unwrap();
                begun.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        latencies.sort_by(f64::total_cmp);
        let requests = place.server().requests("GET", ".bin");
        println!(
            "hedge_quantile {quantile:?}: median {:.2} ms, 95 % {:.2} ms, 99 % {:.2} ms, {requests} requests for 1000",
            latencies[500], latencies[950], latencies[990],
        );
    }
}

/// Each connection gives about 90 MB/s, as those of a public cloud do.
fn parts() {
    println!("loads of one block over connections of 90 MB/s");
    for bytes in [4 << 20, 16 << 20, 64 << 20] {
        for part in [5 << 20, 8 << 20, 16 << 20, 1 << 30] {
            let place = BucketPlace::stub().with(|config| config.part_bytes = part);
            let open = Open { payload_bytes: bytes, ..Open::default() };
            let harness = Harness::open(&place, &open, 1);
            harness.store(0).unwrap();
            place.server().on_request(|_| Some(What::Trickle(900_000, Duration::from_millis(10))));
            let begun = Instant::now();
            harness.load(0).unwrap();
            let seconds = begun.elapsed().as_secs_f64();
            println!("{:>3} MiB in parts of {:>4} MiB: {:.3} s", bytes >> 20, part >> 20, seconds);
        }
    }
}

/// What a program would do that uses the library by itself: the fastest that it offers, whole objects in memory.
fn plain_round(place: &BucketPlace, bytes: usize, depth: usize) -> [Measured; 3] {
    let blocks = blocks_of(bytes);
    let client = place.client();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let payloads: Vec<Bytes> = (0..blocks).map(|n| payload_of(n, bytes).into()).collect();
    let names: Vec<_> = (0..blocks).map(|n| place.path(&Open::default(), &key(n))).collect();
    let run = |work: &dyn Fn(usize) -> BoxFuture<'static, ()>| {
        let tasks: Vec<_> = (0..blocks).map(work).collect();
        let spawned = stream::iter(tasks).map(|task| runtime.spawn(task)).buffer_unordered(depth);
        runtime.block_on(spawned.for_each(|done| async { done.unwrap() }));
    };
    let store = measure(blocks, bytes, || {
        run(&|n| {
            let (client, name, payload) = (client.clone(), names[n].clone(), payloads[n].clone());
            Box::pin(async move { drop(client.put(&name, PutPayload::from_bytes(payload)).await.unwrap()) })
        });
    });
    let lookup = measure(blocks, 0, || {
        run(&|n| {
            let (client, name) = (client.clone(), names[n].clone());
            Box::pin(async move { drop(client.head(&name).await.unwrap()) })
        });
    });
    let load = measure(blocks, bytes, || {
        run(&|n| {
            let (client, name) = (client.clone(), names[n].clone());
            Box::pin(async move { drop(client.get(&name).await.unwrap().bytes().await.unwrap()) })
        });
    });
    [store, load, lookup]
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    blocks: usize,
    bytes: usize,
    wall: f64,
    cpu: f64,
}

impl Measured {
    fn blocks_per_second(&self) -> f64 {
        self.blocks as f64 / self.wall
    }

    fn cpu_per_block(&self) -> f64 {
        self.cpu / self.blocks as f64 * 1e6
    }

    fn gb_per_second(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.wall
    }

    fn cpu_per_gb(&self) -> f64 {
        self.cpu / (self.bytes as f64 / 1e9)
    }
}

fn round(place: &BucketPlace, bytes: usize) -> [Measured; 3] {
    let blocks = blocks_of(bytes);
    let open = Open { payload_bytes: bytes, ..Open::default() };
    let rows = HostRows::new(blocks, bytes).unwrap();
    let region = rows.region();
    for n in 0..blocks {
        kvtier::buffer::RowLease::unbounded(&region, n)
            .unwrap()
            .enter()
            .unwrap()
            .copy_from(&payload_of(n, bytes))
            .unwrap();
    }
    let engine = || Engine::start(place.open(&open), Arc::clone(&region), EngineConfig::default()).unwrap();
    let writer = engine();
    let store = measure(blocks, bytes, || jobs(&writer, JobKind::Store, blocks));
    drop(writer);
    // Another process would not know what is there.
    let reader = engine();
    let keys: Vec<BlockKey> = (0..blocks).map(key).collect();
    let lookup = measure(blocks, 0, || {
        let mut unknown = keys.clone();
        while !unknown.is_empty() {
            unknown.retain(|key| reader.lookup(key, None).unwrap() == kvtier::index::Lookup::Retry);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let load = measure(blocks, bytes, || jobs(&reader, JobKind::Load, blocks));
    [store, load, lookup]
}

/// Enough for a second or so.
fn blocks_of(bytes: usize) -> usize {
    ((64 << 20) / bytes).clamp(2 * JOB, 512)
}

fn jobs(engine: &Engine, kind: JobKind, blocks: usize) {
    for first in (0..blocks).step_by(JOB) {
        let numbers = first..(first + JOB).min(blocks);
        let rows = numbers.clone().map(|n| n as u32).collect();
        engine.submit(kind, first as u64, numbers.map(key).collect(), rows).unwrap();
    }
    assert!(engine.drain(Some(Duration::from_secs(120))).unwrap());
    for result in engine.poll().unwrap() {
        assert!(result.is_success(), "{:?}", result.failures[0]);
    }
}

fn measure(blocks: usize, bytes: usize, work: impl FnOnce()) -> Measured {
    let (wall, cpu) = (Instant::now(), cpu_seconds());
    work();
    Measured { blocks, bytes: blocks * bytes, wall: wall.elapsed().as_secs_f64(), cpu: cpu_seconds() - cpu }
}

/// Of this process: the server is another one.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn median(mut rounds: Vec<Measured>) -> Measured {
    rounds.sort_by(|a, b| a.wall.total_cmp(&b.wall));
    rounds[rounds.len() / 2]
}
