//! Callers that work in steps.

use super::*;

/// Longer than a step ever takes to begin.
const PATIENCE: Duration = Duration::from_secs(20);

fn stepping(config: EngineConfig) -> Bench {
    Bench::over(Script::new(2, false), EngineConfig { stepwise: true, ..config })
}

/// Waits for what happens without the caller's doing.
fn until(what: &str, reached: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

impl Bench {
    /// Submits a store, ends the step, and waits for the store's end, without asking for its result.
    fn step(&self, job: u64) {
        self.engine.submit(JobKind::Store, job, keys([job]), vec![0]).unwrap();
        self.engine.end_step().unwrap();
        until("the step was never begun", || self.engine.gauges().unwrap().open_jobs == 0);
        // A pump that is still looking for work would take what the next step submits.
        until("the pump goes on", || self.engine.shared.state.lock().pumps == 0);
    }

    fn wait_until_the_clock_sleeps(&self) {
        until("the clock doesn't go to sleep", || !self.engine.shared.handover.is_watched());
    }
}

#[test]
fn a_stepwise_engine_begins_nothing_before_the_step_ends() {
    let b = stepping(EngineConfig::default());
    assert_eq!(b.engine.lookup(&key(1), Some(RequestId(1))).unwrap(), Lookup::Retry);
    b.engine.submit(JobKind::Store, 1, keys([1_000]), vec![0]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(b.store.probes.lock().is_empty() && b.store.blocks.lock().is_empty());
    for n in 2..=PROBE_BATCH as u64 {
        assert_eq!(b.engine.lookup(&key(n), Some(RequestId(1))).unwrap(), Lookup::Retry);
    }
    b.engine.end_step().unwrap();
    assert!((1..=PROBE_BATCH as u64).all(|n| b.lookup(n, 1) == Lookup::Miss));
    assert_eq!(*b.store.probes.lock(), [PROBE_BATCH]);
    assert!(b.engine.wait(Some(1), Some(Duration::from_secs(30))).unwrap());
}

#[test]
fn asking_for_results_begins_what_a_stepwise_engine_holds() {
    let b = stepping(EngineConfig::default());
    let long = Some(Duration::from_secs(30));
    b.engine.submit(JobKind::Store, 1, keys([1]), vec![0]).unwrap();
    assert!(b.engine.wait(Some(1), long).unwrap());
    b.engine.submit(JobKind::Store, 2, keys([2]), vec![0]).unwrap();
    assert!(b.engine.drain(long).unwrap());
    b.engine.submit(JobKind::Store, 3, keys([3]), vec![0]).unwrap();
    let mut taken = Vec::new();
    while taken.len() < 3 {
        taken.extend(b.engine.poll().unwrap());
    }
    let region = Arc::clone(&b.rows);
    let moved = b.engine.transfer(JobKind::Load, keys([1]), &[(region, 5)], || false).unwrap();
    assert!(moved.is_success());
}

#[test]
fn while_steps_keep_coming_others_begin_them() {
    let b = stepping(EngineConfig::default());
    b.step(0);
    // A caller that is kept from its steps for long begins the next one itself, so not each can be judged.
    let caller = std::thread::current().id();
    let handed_over = (1..1_000).any(|job| {
        b.store.spawned_by.lock().clear();
        b.step(job);
        let spawned_by = b.store.spawned_by.lock();
        !spawned_by.contains(&caller) && !spawned_by.is_empty()
    });
    assert!(handed_over, "the caller woke the store's threads at each step");
}

#[test]
fn a_clock_that_nobody_needs_sleeps() {
    let b = stepping(EngineConfig::default());
    let handover = &b.engine.shared.handover;
    assert!(!handover.is_watched(), "nothing has happened yet");
    b.step(0);
    until("nobody wakes the clock", || !handover.wants_clock());
    b.wait_until_the_clock_sleeps();
    for _ in 0..100 {
        b.engine.end_step().unwrap();
        assert!(b.engine.poll().unwrap().len() <= 1);
        assert!(!handover.wants_clock() && !handover.is_watched(), "steps with nothing in them need no clock");
    }
    b.step(1);
    assert_eq!(b.engine.poll().unwrap().len(), 1);
}

#[test]
fn deadlines_hold_whether_the_clock_is_watching_or_asleep() {
    let b = stepping(soon(30));
    for job in 0..4 {
        // Never begun: its step doesn't end.
        b.engine.submit(JobKind::Load, job, keys([job]), vec![1]).unwrap();
        until("the job has no result", || b.engine.gauges().unwrap().open_jobs == 0);
        let results = b.engine.poll().unwrap();
        assert_eq!(results.len(), 1);
        assert_eq!(failures(&results[0]), [(0, ErrorKind::Timeout)]);
        assert!(results[0].transfer_time >= Duration::from_millis(30));
        if job % 2 == 0 {
            b.step(100 + job);
            b.engine.poll().unwrap();
        } else {
            b.wait_until_the_clock_sleeps();
        }
    }
}

#[test]
fn word_that_is_left_during_a_reset_is_acted_on_after_it() {
    let b = stepping(EngineConfig::default());
    b.store.script(0, Act::Stall);
    b.engine.submit(JobKind::Store, 0, keys([0]), vec![0]).unwrap();
    b.engine.end_step().unwrap();
    b.wait_until_stalled();
    std::thread::scope(|scope| {
        let reset = scope.spawn(|| b.engine.reset(Duration::from_secs(20), || false));
        until("the reset has not begun", || b.engine.gauges().unwrap().open_jobs == 0);
        b.engine.submit(JobKind::Store, 1, keys([1]), vec![1]).unwrap();
        b.engine.end_step().unwrap();
        // Long enough for the clock to find it.
        std::thread::sleep(Duration::from_millis(20));
        assert!(b.store.blocks.lock().is_empty());
        b.store.release();
        reset.join().unwrap().unwrap();
    });
    until("the job after the reset was never begun", || b.engine.gauges().unwrap().open_jobs == 0);
    assert!(b.store.blocks.lock().contains_key(&key(1)));
}

#[test]
fn a_shutdown_waits_for_no_tick() {
    for job in 0..20 {
        let b = stepping(EngineConfig::default());
        b.step(job);
        b.engine.submit(JobKind::Store, 100 + job, keys([100 + job]), vec![0]).unwrap();
        b.engine.end_step().unwrap();
        assert_eq!(b.engine.shutdown(Duration::from_secs(20), || false).unwrap(), 0);
        assert_eq!(b.engine.poll().unwrap().len(), 2, "each job has its result");
        b.engine.end_step().unwrap();
    }
}
