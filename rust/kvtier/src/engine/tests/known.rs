//! Stores that have an index of their own.

use super::*;
use crate::store::Known;

/// Knows that block 1 is there and that block 2 isn't, and nothing else.
pub(super) struct Own;

impl Residency for Own {
    fn find(&self, asked: &BlockKey) -> Known {
        match [1, 2].iter().find(|n| key(**n) == *asked) {
            Some(1) => Known::Here(Location(1)),
            Some(2) => Known::Absent,
            _ => Known::Unknown,
        }
    }

    fn blocks(&self) -> usize {
        1
    }

    fn is_complete(&self) -> bool {
        false
    }

    fn touch(&self, _keys: &[BlockKey]) {}

    fn pin(&self, keys: &[BlockKey], _until: Option<SystemTime>) -> Result<Vec<bool>> {
        Ok(vec![false; keys.len()])
    }

    fn unpin(&self, _keys: &[BlockKey]) {}
}

fn knowing(config: EngineConfig) -> Bench {
    let store = Script::new(2, false);
    store.knows.store(true, Ordering::Relaxed);
    Bench::over(store, config)
}

#[test]
fn what_the_store_knows_is_the_answer_to_requests_and_to_nobody_in_particular() {
    let b = knowing(EngineConfig::default());
    // What it doesn't know is looked for, and may be answered by the next question.
    for (request, unknown) in [(None, 3), (Some(RequestId(1)), 4)] {
        let ask = |n| b.engine.lookup(&key(n), request).unwrap();
        assert_eq!((ask(1), ask(2), ask(unknown)), (Lookup::Hit, Lookup::Miss, Lookup::Retry));
    }
    let metrics = b.engine.metrics();
    assert_eq!((metrics.hits.get(), metrics.misses.get(), metrics.retries.get()), (2, 2, 2));
    assert_eq!(b.engine.gauges().unwrap().open_requests, 1);
}

#[test]
fn a_degraded_tier_answers_miss_whatever_the_store_knows() {
    let b = knowing(soon(50));
    b.run(JobKind::Store, 1, &[1], &[0]);
    assert_eq!(b.lookup(1, 1), Lookup::Hit);
    b.store.script(1, Act::StallInside);
    b.engine.submit(JobKind::Load, 2, keys([1]), vec![1]).unwrap();
    while !b.engine.gauges().unwrap().degraded {
        std::thread::yield_now();
    }
    assert_eq!(b.engine.lookup(&key(1), None).unwrap(), Lookup::Miss);
    assert_eq!(b.engine.lookup(&key(3), None).unwrap(), Lookup::Miss, "nothing is asked");
    b.store.release();
    b.result(2);
    assert_eq!(b.engine.lookup(&key(1), None).unwrap(), Lookup::Hit);
}
