//! Ten thousand jobs against a bucket whose server fails at random: one result each, true for every block, and nothing
//! left behind.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]

mod places;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier::buffer::{HostRows, RowLease};
use kvtier::engine::{Engine, EngineConfig, JobKind};
use kvtier::error::ErrorKind;
use kvtier::index::{Lookup, RequestId};
use places::bucket::BucketPlace;
use places::stub::{Answer, What};
use places::{Open, Place, key, payload_of};

const JOBS: usize = 10_000;
const BLOCKS_PER_JOB: usize = 4;
const KEYS: usize = 500;
const ROWS: usize = 256;
const PAYLOAD: usize = 4096;
const CONCURRENCY: usize = 16;

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

/// One request in twelve goes wrong.
fn misfortune(dice: &mut Dice) -> Option<What> {
    let answer = |status, code| Some(What::Answer(Answer::error(status, code)));
    match dice.roll(12 * 12) {
        0 => answer(500, "InternalError"),
        1 => answer(503, "SlowDown"),
        2 => answer(429, "TooManyRequests"),
        3 => answer(403, "AccessDenied"),
        4 => Some(What::ResetBefore),
        5 => Some(What::ResetInRequest(1000)),
        6 => Some(What::ResetAfter),
        7 => Some(What::ResetInAnswer(1000)),
        8 => Some(What::Truncated(5000)),
        9 => Some(What::Trickle(1000, Duration::from_millis(5))),
        10 => Some(What::Late(Duration::from_millis(30))),
        // Rare: it takes as long as the store's patience.
        11 if dice.roll(10) == 0 => Some(What::StallInAnswer(1000)),
        _ => None,
    }
}

#[test]
fn every_job_has_one_true_result_and_nothing_is_left() {
    let place = BucketPlace::stub().with(|config| {
        config.concurrency = CONCURRENCY;
        config.read_timeout = Duration::from_millis(200);
        config.retries = 2;
    });
    let open = Open { payload_bytes: PAYLOAD, ..Open::default() };
    let rows = HostRows::new(ROWS, PAYLOAD).unwrap();
    let region = rows.region();
    let timeout = Duration::from_secs(2);
    let config = EngineConfig { load_timeout: timeout, store_timeout: timeout, ..EngineConfig::default() };
    let engine = Engine::start(place.open(&open), Arc::clone(&region), config).unwrap();
    let mut fate = Dice(7);
    place.server().on_request(move |_| misfortune(&mut fate));

    let mut dice = Dice(1);
    let mut idle: Vec<Vec<u32>> = (0..ROWS / BLOCKS_PER_JOB)
        .map(|job| (0..BLOCKS_PER_JOB).map(|n| (job * BLOCKS_PER_JOB + n) as u32).collect())
        .collect();
    // What was begun, by job; and which keys are known to be stored, known not to be, or neither.
    let mut begun: HashMap<u64, (JobKind, Vec<usize>, Vec<u32>)> = HashMap::new();
    let mut stored: HashMap<usize, bool> = HashMap::new();
    let (mut submitted, mut done, mut failed) = (0, 0, 0);
    let mut resident_early = 0;
    let deadline = Instant::now() + Duration::from_secs(240);
    while done < JOBS {
        assert!(Instant::now() < deadline, "{done} jobs done");
        while submitted < JOBS
            && let Some(job_rows) = idle.pop()
        {
            let keys: Vec<usize> = (0..BLOCKS_PER_JOB).map(|_| dice.roll(KEYS)).collect();
            let kind = if dice.roll(2) == 0 { JobKind::Store } else { JobKind::Load };
            for (row, n) in job_rows.iter().zip(&keys) {
                let content = if kind == JobKind::Store { payload_of(*n, PAYLOAD) } else { vec![0; PAYLOAD] };
                set(&rows, *row, &content);
            }
            let id = submitted as u64;
            engine.submit(kind, id, keys.iter().map(|n| key(*n)).collect(), job_rows.clone()).unwrap();
            engine.lookup(&key(keys[0]), Some(RequestId(id))).unwrap();
            engine.release(RequestId(id)).unwrap();
            assert!(begun.insert(id, (kind, keys, job_rows)).is_none());
            submitted += 1;
        }
        engine.wait(None, Some(Duration::from_secs(1))).unwrap();
        for result in engine.poll().unwrap() {
            let (kind, keys, job_rows) = begun.remove(&result.job_id).unwrap();
            assert_eq!(result.kind, kind);
            for (i, (n, row)) in keys.iter().zip(&job_rows).enumerate() {
                let failure = result.failures.iter().find(|(at, _)| *at == i).map(|(_, error)| error.kind());
                match (kind, failure) {
                    (JobKind::Store, None) => {
                        stored.insert(*n, true);
                    }
                    (JobKind::Load, None) => {
                        assert!(get(&rows, *row) == payload_of(*n, PAYLOAD), "job {} row {row}", result.job_id);
                    }
                    (_, Some(kind)) => {
                        failed += 1;
                        let possible = [
                            ErrorKind::Io,
                            ErrorKind::Missing,
                            ErrorKind::Permission,
                            ErrorKind::Timeout,
                            ErrorKind::Unavailable,
                        ];
                        assert!(possible.contains(&kind), "{kind}: {:?}", result.failures);
                        if kind == ErrorKind::Missing {
                            // A store of it may have ended since; nothing ever takes one away.
                            assert!(matches!(result.kind, JobKind::Load));
                        }
                    }
                }
            }
            idle.push(job_rows);
            done += 1;
        }
        if done > JOBS / 4 && resident_early == 0 {
            resident_early = resident_bytes();
        }
    }
    assert!(failed > 100, "{failed} blocks failed: the faults don't happen");
    assert!(begun.is_empty() && engine.poll().unwrap().is_empty());
    assert!(place.server().clients() <= CONCURRENCY + 8, "{} connections", place.server().clients());
    let grown = resident_bytes().saturating_sub(resident_early);
    assert!(grown < 32 << 20, "memory grew by {grown} bytes in the last three quarters");

    // What was reported stored is there, and whole.
    place.server().on_request(|_| None);
    let there: Vec<usize> = stored.keys().copied().collect();
    for n in &there {
        let bytes = place.server().bucket().objects[&place.name(&open, &key(*n))].bytes.clone();
        assert!(bytes[..PAYLOAD] == payload_of(*n, PAYLOAD) && bytes.len() == PAYLOAD + 4096);
    }
    for some in there.chunks(ROWS) {
        let job_rows = (0..some.len() as u32).collect();
        engine.submit(JobKind::Load, u64::MAX, some.iter().map(|n| key(*n)).collect(), job_rows).unwrap();
        assert!(engine.drain(Some(Duration::from_secs(20))).unwrap());
        assert!(engine.poll().unwrap()[0].is_success());
    }
    let last = there[0];
    assert_eq!(engine.lookup(&key(last), None).unwrap(), Lookup::Hit);
    drop(engine);
    assert_eq!(Arc::strong_count(&region), 1, "a lease is left");
}

fn set(rows: &HostRows, row: u32, content: &[u8]) {
    RowLease::unbounded(&rows.region(), row as usize).unwrap().enter().unwrap().copy_from(content).unwrap();
}

fn get(rows: &HostRows, row: u32) -> Vec<u8> {
    let mut content = vec![0; PAYLOAD];
    RowLease::unbounded(&rows.region(), row as usize).unwrap().enter().unwrap().copy_to(&mut content).unwrap();
    content
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
