//! The pool's policies on small traces, by the simulator that `benches/policy.rs` runs over real ones.

#![allow(clippy::cast_precision_loss, missing_docs, dead_code, unreachable_pub, reason = "the simulator's")]

#[path = "../benches/simulator/mod.rs"]
mod simulator;

use kvtier::store::packed::policy::{ColdestFirst, Fifo, Lru, Policy, SecondChance};
use simulator::{Outcome, Plain, run, run_plain};

/// Conversations that go on: each turn asks for what was there before and two blocks more; now and then, a long prompt
/// that nobody asks for again.
fn conversations() -> Vec<Vec<u64>> {
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut turns = vec![0_u64; 400];
    let mut requests = Vec::new();
    for n in 0..6000_u64 {
        if n % 10 == 9 {
            requests.push((0..40).map(|i| 1 << 40 | n << 8 | i).collect());
            continue;
        }
        let talk = random(20).min(random(400));
        turns[talk as usize] = (turns[talk as usize] + 2).min(30);
        let system = 0..3;
        requests.push(system.chain((0..turns[talk as usize]).map(|i| 1000 * (talk + 1) + i)).collect());
    }
    requests
}

fn outcome(policy: &dyn Policy, slots: usize, segments: usize) -> Outcome {
    let requests = conversations();
    run(policy, slots, segments, requests.iter().map(Vec::as_slice))
}

#[test]
fn second_chances_beat_a_queue() {
    for (slots, segments) in [(20, 16), (30, 32), (60, 16)] {
        let [fifo, second] =
            [&Fifo as &dyn Policy, &SecondChance].map(|policy| outcome(policy, slots, segments).hit_rate());
        assert!(second > fifo + 0.02, "{slots} x {segments}: {second} against {fifo}");
    }
}

#[test]
fn what_is_written_again_is_bounded() {
    for policy in [&SecondChance as &dyn Policy, &ColdestFirst] {
        let outcome = outcome(policy, 30, 16);
        assert!(outcome.kept_share() < f64::from(policy.most_kept()) / 100.0, "{policy:?}: {outcome:?}");
        assert!(outcome.kept > 0);
    }
    assert_eq!(outcome(&Fifo, 30, 16).kept, 0);
}

#[test]
fn a_pool_with_room_for_all_loses_nothing() {
    for policy in [&Fifo as &dyn Policy, &Lru, &SecondChance, &ColdestFirst] {
        let outcome = outcome(policy, 1000, 100);
        assert_eq!(outcome.kept, 0);
        assert!(outcome.hit_rate() > 0.5, "{policy:?}: {outcome:?}");
    }
}

#[test]
fn blocks_that_go_by_themselves_go_in_the_order_of_storing_or_of_use() {
    let plain = |plain, room, requests: &[&[u64]]| run_plain(plain, room, requests.iter().copied());
    let used_again: &[&[u64]] = &[&[1], &[2], &[1], &[3], &[1]];
    assert_eq!(plain(Plain::Fifo, 2, used_again).found, 1);
    assert_eq!(plain(Plain::Lru, 2, used_again).found, 2);
    // What comes after a gap is of no use, and not a use.
    let with_gaps: &[&[u64]] = &[&[1, 2, 3], &[1, 2, 4, 3], &[9, 1]];
    assert_eq!(plain(Plain::Fifo, 100, with_gaps), Outcome { asked: 9, found: 2, stored: 5, kept: 0 });
}
