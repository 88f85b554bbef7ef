//! Which segment is reclaimed next, and which of its blocks are worth writing again.
//!
//! Pure, so that a simulator can drive it over a trace (`tests/packed_policy.rs`).

use std::fmt;

/// What is known about a segment that could be reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// When its generation began, in seconds; of another clock than nothing but the other fields.
    pub born: u64,
    /// When a block of it was last used by anybody, in the same seconds; at least `born`.
    pub used: u64,
}

/// How often a block was used lately, as far as it matters. Kept in memory, never on storage.
pub type Heat = u8;

/// Uses beyond this count no more.
pub const HOTTEST: Heat = 3;

/// An order of segments, and a bar for blocks.
pub trait Policy: Send + Sync + fmt::Debug {
    /// The name in documentation and benchmarks.
    fn name(&self) -> &'static str;

    /// Lower is reclaimed first.
    fn rank(&self, candidate: &Candidate) -> u64;

    /// Whether a block of this heat is written again when its segment is reclaimed.
    fn keeps(&self, heat: Heat) -> bool;

    /// Of all slots of a reclaimed segment, the share (in hundredths) that may be written again.
    fn most_kept(&self) -> u32 {
        50
    }
}

/// First in, first out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo;

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn rank(&self, candidate: &Candidate) -> u64 {
        candidate.born
    }

    fn keeps(&self, _: Heat) -> bool {
        false
    }
}

/// The segment that was used longest ago.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lru;

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn rank(&self, candidate: &Candidate) -> u64 {
        candidate.used
    }

    fn keeps(&self, _: Heat) -> bool {
        false
    }
}

/// First in, first out, with a second chance for each block that was used since it was written: its counter falls by one,
/// and it moves to the newest segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct SecondChance;

impl Policy for SecondChance {
    fn name(&self) -> &'static str {
        "second chance"
    }

    fn rank(&self, candidate: &Candidate) -> u64 {
        candidate.born
    }

    fn keeps(&self, heat: Heat) -> bool {
        heat > 0
    }
}

/// As [`SecondChance`], but a segment that is still in use waits its turn: the order is that of the last use.
#[derive(Clone, Copy, Debug, Default)]
pub struct ColdestFirst;

impl Policy for ColdestFirst {
    fn name(&self) -> &'static str {
        "coldest first"
    }

    fn rank(&self, candidate: &Candidate) -> u64 {
        candidate.used
    }

    fn keeps(&self, heat: Heat) -> bool {
        heat > 0
    }
}
