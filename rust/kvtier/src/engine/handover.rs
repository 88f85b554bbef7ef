//! How a caller that works in steps hands over what a step has asked and submitted, without waking anybody.
//!
//! Waking a thread that sleeps is a system call, and on virtual processors one of tens of microseconds: more than all
//! else that a step costs the caller's thread. So while steps with something to begin keep coming, the caller only leaves
//! word, which is one atomic exchange. The engine's clock looks for it at every [`tick`] and begins the step in the caller's
//! place, which adds a tick at most to what the step's blocks take.
//!
//! After [`LINGER`] without word the clock sleeps until the next deadline, and an idle engine costs nothing. The caller
//! begins the next step itself then, and the pump that it wakes wakes the clock. It also begins a step itself when it
//! shows that it doesn't want to wait a tick: by waiting for results, or by asking for them while its word still lies there.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

/// The shortest and the longest time from one look for word to the next.
const TICKS: (Duration, Duration) = (Duration::from_micros(250), Duration::from_millis(1));

/// For how long after the last word the clock goes on looking. A caller whose steps are further apart wakes a thread at
/// each, and that is a small part of such a step.
pub(super) const LINGER: Duration = Duration::from_millis(50);

/// How long the clock waits until it looks again, from the time since the last word. Each look wakes the clock, so it
/// looks less often when steps are far apart, for which a wait counts less.
pub(super) fn tick(since: Duration) -> Duration {
    (since / 4).clamp(TICKS.0, TICKS.1)
}

/// The clock sleeps.
const ASLEEP: u8 = 0;
/// The clock sleeps, and somebody other than the caller shall wake it.
const WANTED: u8 = 1;
/// The clock looks for word, and there is none.
const AWAKE: u8 = 2;
/// The clock looks for word, and will find some.
const WORD: u8 = 3;

/// See the [module](self). Only used where the caller works in steps.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// Whether something was asked or submitted that nobody was told of.
    held: AtomicBool,
    clock: AtomicU8,
}

impl Handover {
    /// Something was asked or submitted.
    pub(super) fn hold(&self) {
        self.held.store(true, Ordering::Release);
    }

    /// The step is over. Returns whether the caller has to begin what it holds.
    pub(super) fn end_step(&self) -> bool {
        self.takes_held() && !self.leaves_word()
    }

    /// Results are asked for. Returns whether the caller has to begin what they come from.
    pub(super) fn ask(&self) -> bool {
        let held = self.takes_held();
        // Who comes back within a tick is waiting for something.
        self.take_word() || (held && !self.leaves_word())
    }

    /// The caller waits, and begins everything itself.
    pub(super) fn insist(&self) {
        self.takes_held();
        self.take_word();
    }

    /// Whether the clock sleeps and the caller wants it to look for word.
    pub(super) fn wants_clock(&self) -> bool {
        self.clock.load(Ordering::Acquire) == WANTED
    }

    /// Whether the clock looks for word.
    pub(super) fn is_watched(&self) -> bool {
        self.clock.load(Ordering::Acquire) >= AWAKE
    }

    /// The clock begins to look if it is wanted. Returns whether it is.
    pub(super) fn begin_to_look(&self) -> bool {
        self.moves(WANTED, AWAKE)
    }

    /// Takes the caller's word. Returns whether there was some: whoever has it begins the step.
    pub(super) fn take_word(&self) -> bool {
        self.moves(WORD, AWAKE)
    }

    /// The clock wants to sleep. Returns whether it may: there is no word.
    pub(super) fn sleep(&self) -> bool {
        self.moves(AWAKE, ASLEEP)
    }

    fn takes_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) && self.held.swap(false, Ordering::AcqRel)
    }

    /// Leaves word if the clock is there to find it.
    fn leaves_word(&self) -> bool {
        let next = |clock| Some(if clock >= AWAKE { WORD } else { WANTED });
        self.clock.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok_and(|clock| clock >= AWAKE)
    }

    fn moves(&self, from: u8, to: u8) -> bool {
        self.clock.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_caller_begins_what_nobody_looks_for() {
        let handover = Handover::default();
        assert!(!handover.end_step() && !handover.ask() && !handover.wants_clock(), "nothing is held");
        handover.hold();
        assert!(handover.end_step() && !handover.end_step());
        assert!(handover.wants_clock() && !handover.is_watched());
        handover.hold();
        assert!(handover.ask(), "the clock is still on its way");
    }

    #[test]
    fn word_is_found_once() {
        let handover = Handover::default();
        handover.hold();
        handover.end_step();
        assert!(!handover.take_word() && handover.begin_to_look() && handover.is_watched());
        assert!(!handover.take_word(), "the caller has begun that step");
        handover.hold();
        assert!(!handover.end_step() && !handover.end_step(), "the clock does it");
        assert!(handover.take_word() && !handover.take_word() && !handover.begin_to_look());
        handover.hold();
        assert!(!handover.ask() && handover.ask() && !handover.ask(), "who asks twice begins it");
        assert!(!handover.take_word());
        handover.hold();
        assert!(!handover.end_step());
        handover.insist();
        assert!(!handover.take_word() && !handover.ask(), "who waits has begun everything");
    }

    #[test]
    fn the_clock_does_not_sleep_over_word() {
        let handover = Handover::default();
        assert!(!handover.sleep());
        handover.hold();
        handover.end_step();
        assert!(handover.begin_to_look());
        handover.hold();
        assert!(!handover.end_step() && !handover.sleep());
        assert!(handover.take_word() && handover.sleep() && !handover.is_watched());
        handover.hold();
        assert!(handover.end_step());
    }

    #[test]
    fn no_step_is_lost_whenever_it_ends() {
        // A clock that falls asleep as often as it can, and a caller who sees to it that each step is begun before the next
        // one ends.
        const STEPS: usize = 50_000;
        let handover = Handover::default();
        let (ended, last_begun, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let begin = || last_begun.fetch_max(ended.load(Ordering::Acquire), Ordering::AcqRel);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    handover.begin_to_look();
                    if handover.take_word() {
                        begin();
                    }
                    handover.sleep();
                }
            });
            for step in 1..=STEPS {
                ended.store(step, Ordering::Release);
                handover.hold();
                if handover.end_step() {
                    begin();
                }
                let until = Instant::now() + Duration::from_secs(20);
                while last_begun.load(Ordering::Acquire) < step {
                    if Instant::now() > until {
                        over.store(true, Ordering::Release);
                        panic!("step {step} was never begun");
                    }
                }
            }
            over.store(true, Ordering::Release);
        });
    }
}
