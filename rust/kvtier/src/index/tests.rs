use std::time::{Duration, Instant};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(2);
const HERE: Location = Location(7);

fn key(n: u64) -> BlockKey {
    BlockKey::from_parts(&n.to_be_bytes(), 0).expect("8-byte hash")
}

/// An index with a clock that only moves when told to.
struct Bench {
    index: Index,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Self { index: Index::new(IndexConfig { lookup_timeout: TIMEOUT }), now: Instant::now() }
    }

    fn ask(&mut self, n: u64, request: u64) -> Lookup {
        let now = self.now;
        self.index.lookup(&key(n), Some(RequestId(request)), false, || now).lookup
    }

    fn ask_anonymously(&mut self, n: u64) -> Lookup {
        let now = self.now;
        self.index.lookup(&key(n), None, false, || now).lookup
    }

    fn begin(&mut self) -> ProbeBatch {
        self.index.begin_probes().expect("a question waits")
    }

    fn answer(&mut self, batch: &ProbeBatch, answer: ProbeAnswer) {
        for key in &batch.keys {
            self.index.probed(key, batch.ticket, answer, self.now);
        }
    }

    fn later(&mut self, by: Duration) {
        self.now += by;
    }
}

#[test]
fn unknown_keys_are_probed_once_and_answered_to_everybody_who_waits() {
    let mut b = Bench::new();
    assert_eq!(
        (b.ask(1, 1), b.ask(1, 2), b.ask(2, 1), b.ask(1, 1)),
        (Lookup::Retry, Lookup::Retry, Lookup::Retry, Lookup::Retry)
    );
    let batch = b.begin();
    assert_eq!(batch.keys, [key(1), key(2)]);
    assert!(b.index.begin_probes().is_none());
    b.index.probed(&key(1), batch.ticket, ProbeAnswer::Present(HERE), b.now);
    b.index.probed(&key(2), batch.ticket, ProbeAnswer::Absent, b.now);
    b.later(Duration::from_millis(100));
    assert_eq!((b.ask(1, 1), b.ask(1, 2), b.ask(2, 1)), (Lookup::Hit, Lookup::Hit, Lookup::Miss));
    assert_eq!(b.index.location(&key(1)), Some(HERE));
    assert_eq!(b.ask(2, 3), Lookup::Retry, "another request's question, later, is a new one");
}

#[test]
fn anonymous_answers_are_worth_their_moment() {
    let mut b = Bench::new();
    assert_eq!(b.ask_anonymously(1), Lookup::Retry);
    let batch = b.begin();
    b.answer(&batch, ProbeAnswer::Absent);
    b.later(Duration::from_secs(1));
    assert_eq!(b.ask_anonymously(1), Lookup::Miss, "however late it is asked for");
    assert_eq!(b.ask_anonymously(1), Lookup::Retry, "and then asked anew");
    let batch = b.begin();
    b.answer(&batch, ProbeAnswer::Present(HERE));
    assert_eq!(b.ask_anonymously(1), Lookup::Hit);
}

#[test]
fn a_probe_that_never_answers_is_a_miss_after_the_timeout() {
    let mut b = Bench::new();
    assert_eq!((b.ask(1, 1), b.ask_anonymously(2)), (Lookup::Retry, Lookup::Retry));
    let batch = b.begin();
    b.later(TIMEOUT + Duration::from_millis(1));
    assert_eq!((b.ask(1, 1), b.ask_anonymously(2)), (Lookup::Miss, Lookup::Miss));
    b.answer(&batch, ProbeAnswer::Present(HERE));
    assert_eq!(b.ask(1, 1), Lookup::Miss, "the request's verdict stays");
    assert_eq!(b.ask(1, 2), Lookup::Hit);
}

#[test]
fn verdicts_stay_until_release() {
    let mut b = Bench::new();
    b.index.stored(&key(1), HERE);
    assert_eq!(b.ask(1, 1), Lookup::Hit);
    b.index.removed(&key(1));
    assert_eq!((b.ask(1, 1), b.ask(1, 2)), (Lookup::Hit, Lookup::Retry), "eviction doesn't change what was said");
    b.index.release(RequestId(1));
    assert_eq!(b.ask(1, 1), Lookup::Retry);
}

#[test]
fn a_completed_store_turns_misses_to_hits() {
    let mut b = Bench::new();
    b.ask(1, 1);
    let batch = b.begin();
    b.answer(&batch, ProbeAnswer::Absent);
    assert_eq!(b.ask(1, 1), Lookup::Miss);
    b.index.found(b.index.tags.of(&key(1)), HERE);
    assert_eq!(b.ask(1, 1), Lookup::Miss, "a block found by another's probe doesn't");
    b.index.stored(&key(1), HERE);
    assert_eq!(b.ask(1, 1), Lookup::Hit);
}

#[test]
fn a_failed_load_turns_hits_to_misses_for_all_who_hold_them() {
    let mut b = Bench::new();
    b.index.stored(&key(1), HERE);
    assert_eq!((b.ask(1, 1), b.ask(1, 2)), (Lookup::Hit, Lookup::Hit));
    assert!(b.index.load_failed(&key(1), Presence::Gone));
    assert_eq!((b.ask(1, 1), b.ask(1, 2)), (Lookup::Miss, Lookup::Miss));
    let before = b.ask(1, 3);
    assert_eq!(before, Lookup::Retry, "a new request asks the storage");
    b.index.stored(&key(1), HERE);
    assert_eq!((b.ask(1, 1), b.ask(1, 3)), (Lookup::Hit, Lookup::Hit));
    assert!(!b.index.load_failed(&key(1), Presence::Unchanged), "a failure that isn't about the block leaves it here");
    assert_eq!((b.ask(1, 1), b.ask(1, 4)), (Lookup::Miss, Lookup::Hit));
}

#[test]
fn later_events_win_over_a_running_probe() {
    for stored in [true, false] {
        let mut b = Bench::new();
        b.ask(1, 1);
        let batch = b.begin();
        if stored {
            b.index.stored(&key(1), HERE);
            b.answer(&batch, ProbeAnswer::Absent);
            assert_eq!(b.ask(1, 1), Lookup::Hit);
        } else {
            b.index.removed(&key(1));
            b.answer(&batch, ProbeAnswer::Present(HERE));
            assert_eq!(b.ask(1, 1), Lookup::Retry, "the question is asked again");
        }
    }
}

#[test]
fn clearing_voids_probes_under_way() {
    let mut b = Bench::new();
    b.ask(1, 1);
    let old = b.begin();
    b.index.clear();
    assert_eq!(b.ask(1, 1), Lookup::Retry);
    let new = b.begin();
    b.answer(&old, ProbeAnswer::Present(HERE));
    assert_eq!(b.ask(1, 1), Lookup::Retry);
    b.answer(&new, ProbeAnswer::Absent);
    assert_eq!(b.ask(1, 1), Lookup::Miss);
}

#[test]
fn complete_knowledge_answers_at_once() {
    let mut b = Bench::new();
    let scan = b.index.scan_begins();
    b.index.stored(&key(3), HERE);
    b.index.removed(&key(3));
    b.index.stored(&key(4), HERE);
    b.index.removed(&key(4));
    b.index.stored(&key(4), Location(9));
    assert!(b.index.scan_found(scan, &[1, 3, 4].map(|n| (key(n), HERE))));
    assert_eq!(b.ask(2, 1), Lookup::Retry, "not before the scan is done");
    b.index.scan_ends(scan, true);
    assert_eq!((b.ask(1, 2), b.ask(2, 2)), (Lookup::Hit, Lookup::Miss));
    assert_eq!(b.ask(3, 2), Lookup::Miss, "what was removed while the scan ran doesn't come back");
    assert_eq!(b.index.location(&key(4)), Some(Location(9)), "what was stored again keeps its place");
}

#[test]
fn a_degraded_tier_says_miss_to_new_questions_only() {
    let mut b = Bench::new();
    b.index.stored(&key(1), HERE);
    assert_eq!(b.ask(1, 1), Lookup::Hit);
    let now = b.now;
    let mut ask = |request| b.index.lookup(&key(1), Some(RequestId(request)), true, || now).lookup;
    assert_eq!((ask(1), ask(2)), (Lookup::Hit, Lookup::Miss));
}

#[test]
fn answers_are_counted_once_per_request() {
    let mut b = Bench::new();
    b.index.stored(&key(1), HERE);
    let now = b.now;
    let fresh: Vec<_> = [Some(1), Some(1), Some(2), None, None]
        .into_iter()
        .map(|r| b.index.lookup(&key(1), r.map(RequestId), false, || now).fresh)
        .collect();
    assert_eq!(fresh, [true, false, true, true, true]);
}

#[test]
fn memory_of_failures_and_answers_is_bounded() {
    let mut b = Bench::new();
    for request in 0..10 {
        b.index.stored(&key(request), HERE);
        b.ask(request, request);
    }
    for n in 100..20_000 {
        b.index.load_failed(&key(n), Presence::Gone);
        if n % 1000 == 0 {
            let oldest = n / 1000 - 1;
            b.index.release(RequestId(oldest));
            b.ask(1, n);
        }
    }
    for n in 0..3_000 {
        b.ask_anonymously(n + 50_000);
        if n % 60 == 59 {
            let batch = b.begin();
            b.answer(&batch, ProbeAnswer::Absent);
            b.later(TIMEOUT);
        }
    }
    assert!(b.index.probes.len() < 300, "{}", b.index.probes.len());
    for request in (0..10).chain((1_000..20_000).step_by(1_000)) {
        b.index.release(RequestId(request));
    }
    assert_eq!((b.index.open_requests(), b.index.failures.len()), (0, 0));
}

#[test]
fn doubt_about_a_block_is_settled_by_a_probe_and_where_none_is_made_it_stays() {
    let mut b = Bench::new();
    b.index.stored(&key(1), HERE);
    b.index.load_failed(&key(1), Presence::Doubtful);
    assert_eq!(b.ask(1, 1), Lookup::Retry);
    let scan = b.index.scan_begins();
    b.index.stored(&key(2), HERE);
    b.index.load_failed(&key(2), Presence::Doubtful);
    b.index.scan_ends(scan, true);
    assert_eq!(b.ask(2, 2), Lookup::Hit);
    b.index.load_failed(&key(2), Presence::Doubtful);
    assert_eq!((b.ask(2, 2), b.ask(2, 3)), (Lookup::Miss, Lookup::Hit));
    b.index.load_failed(&key(2), Presence::Gone);
    assert_eq!(b.ask(2, 4), Lookup::Miss);
}

#[test]
fn questions_to_a_storage_that_is_stuck_do_not_pile_up() {
    let mut b = Bench::new();
    // One probe is stuck, and whoever asks is told RETRY and then MISS.
    b.ask(0, 0);
    let stuck = b.begin();
    for n in 1..20_000_u64 {
        assert_eq!(b.ask(n, n), Lookup::Retry);
        b.later(Duration::from_millis(10));
        if n % 7 == 0 && n > 300 {
            let before = n - 201;
            assert_eq!(b.ask(before, before), Lookup::Miss, "{n}");
        }
        b.index.release(RequestId(n.saturating_sub(250)));
    }
    assert!(b.index.probes.len() < 1_000 && b.index.waiting_probes() < 1_000, "{}", b.index.waiting_probes());
    b.answer(&stuck, ProbeAnswer::Absent);
    let mut answers = Vec::new();
    for _ in 0..1_000 {
        answers.push(b.ask_anonymously(50_000));
        b.later(Duration::from_millis(10));
    }
    assert!(answers.contains(&Lookup::Miss), "whoever asks again and again without a request is answered, too");
}

#[test]
fn a_scan_that_was_overtaken_counts_no_more() {
    let overtake: [fn(&mut Index); 4] =
        [Index::clear, Index::stop_scan, Index::knows_all, |index| assert!(index.scan_begins() > 0)];
    for overtake in overtake {
        let mut b = Bench::new();
        let scan = b.index.scan_begins();
        assert!(b.index.scan_found(scan, &[(key(1), HERE)]));
        overtake(&mut b.index);
        let complete = b.index.is_complete();
        assert!(!b.index.scan_found(scan, &[(key(2), HERE)]), "what it met is of another time");
        assert_eq!(b.index.location(&key(2)), None);
        b.index.scan_ends(scan, true);
        assert_eq!(b.index.is_complete(), complete);
    }
}

#[test]
fn a_scan_that_failed_leaves_the_questions_to_probes() {
    let mut b = Bench::new();
    let scan = b.index.scan_begins();
    b.index.stored(&key(1), HERE);
    b.index.removed(&key(1));
    b.index.scan_ends(scan, false);
    assert_eq!((b.ask(1, 1), b.ask(2, 1)), (Lookup::Retry, Lookup::Retry));
    let batch = b.begin();
    b.answer(&batch, ProbeAnswer::Present(HERE));
    assert_eq!((b.ask(1, 1), b.ask(2, 1)), (Lookup::Hit, Lookup::Hit));
}

#[test]
fn a_completed_store_makes_up_for_a_failure_that_nobody_saw() {
    let mut b = Bench::new();
    b.index.stored(&key(1), HERE);
    assert_eq!(b.ask(1, 1), Lookup::Hit);
    b.index.load_failed(&key(1), Presence::Gone);
    b.index.stored(&key(1), HERE);
    assert_eq!(b.ask(1, 1), Lookup::Hit);
}

#[test]
fn an_answer_from_before_the_question_is_none_unless_it_is_fresh() {
    for (age, expected) in [(1, Lookup::Miss), (100, Lookup::Retry)] {
        let mut b = Bench::new();
        b.ask(1, 1);
        let batch = b.begin();
        let answered = b.now;
        b.later(Duration::from_millis(1));
        assert_eq!(b.ask(1, 2), Lookup::Retry);
        b.index.probed(&key(1), batch.ticket, ProbeAnswer::Absent, answered);
        b.later(Duration::from_millis(age));
        assert_eq!((b.ask(1, 1), b.ask(1, 2)), (Lookup::Miss, expected), "{age} ms");
    }
}

#[test]
fn memory_of_released_requests_is_kept_within_bounds() {
    let mut b = Bench::new();
    b.index.knows_all();
    let ask_all = |b: &mut Bench, requests: std::ops::Range<u64>, keys: u64| {
        for request in requests.clone() {
            (10..10 + keys).for_each(|n| assert_eq!(b.ask(n, request), Lookup::Miss));
        }
        requests.for_each(|request| b.index.release(RequestId(request)));
    };
    ask_all(&mut b, 0..100, 500);
    let kept = b.index.verdicts.spare_verdicts();
    assert!((500..100 * 500).contains(&kept), "{kept}");
    b.index.stored(&key(1), HERE);
    assert_eq!((b.ask(1, 100), b.ask(2, 100)), (Lookup::Hit, Lookup::Miss), "nothing is left of what was said");
    ask_all(&mut b, 200..203, 100_000);
    assert!(b.index.verdicts.spare_verdicts() <= kept, "large tables are not kept");
}
