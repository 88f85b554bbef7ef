//! Counters of one tier: written with relaxed atomics on every path, read without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::ErrorKind;

/// A counter that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Failures, by kind.
#[derive(Debug, Default)]
pub struct Failures([Counter; ErrorKind::ALL.len()]);

impl Failures {
    /// Counts one failure.
    pub fn count(&self, kind: ErrorKind) {
        self.0[kind.index()].add(1);
    }

    /// The kinds that occurred, with how often.
    pub fn counted(&self) -> Vec<(ErrorKind, u64)> {
        ErrorKind::ALL.into_iter().map(|k| (k, self.0[k.index()].get())).filter(|(_, n)| *n > 0).collect()
    }
}

/// Upper bounds in seconds of the latency histograms' buckets; one more bucket counts what is slower.
pub const LATENCY_BUCKETS: [f64; 14] =
    [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0];

/// Latencies of jobs, from submission to result.
#[derive(Debug, Default)]
pub struct Latencies {
    buckets: [Counter; LATENCY_BUCKETS.len() + 1],
    nanos: Counter,
}

impl Latencies {
    /// Counts one job.
    pub fn observe(&self, latency: Duration) {
        let seconds = latency.as_secs_f64();
        self.buckets[LATENCY_BUCKETS.partition_point(|bound| *bound < seconds)].add(1);
        self.nanos.add(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// How many jobs fell into each bucket; the last one counts those above the highest bound.
    pub fn buckets(&self) -> [u64; LATENCY_BUCKETS.len() + 1] {
        std::array::from_fn(|i| self.buckets[i].get())
    }

    /// The sum of all latencies in seconds.
    pub fn total_seconds(&self) -> f64 {
        Duration::from_nanos(self.nanos.get()).as_secs_f64()
    }
}

/// Counters of one direction.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Blocks that succeeded.
    pub blocks: Counter,
    /// Payload bytes that moved.
    pub bytes: Counter,
    /// Jobs that ended.
    pub jobs: Counter,
    /// Blocks that failed, by kind.
    pub failures: Failures,
    /// From submission to result.
    pub latency: Latencies,
}

/// All counters of one tier.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Stores. `blocks` counts those that were here already, too.
    pub stores: Traffic,
    /// Loads.
    pub loads: Traffic,
    /// Stores that found their block already here and moved nothing.
    pub already_here: Counter,
    /// Lookups answered HIT, once per key and request.
    pub hits: Counter,
    /// Lookups answered MISS, once per key and request.
    pub misses: Counter,
    /// Lookups first answered RETRY, once per key and request.
    pub retries: Counter,
    /// Keys that were probed.
    pub probes: Counter,
    /// Probes that the storage could not answer.
    pub probe_failures: Counter,
    /// Events that nobody took in time.
    pub events_lost: Counter,
}
