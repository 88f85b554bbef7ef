//! The page that makes a directory a pool.

use std::fmt;

use super::page::{self, Page, array, put, u64_at};
use crate::error::{Error, ErrorKind, Result};

const MAGIC: [u8; 8] = *b"\x89KVPOOL\n";
const WHAT: &str = "the pool's superblock";

/// Bytes of a cap that are left for what is no segment: the superblock, namespace records, the hints, the directory.
const OVERHEAD: u64 = 64 << 10;

/// What tells a pool from every other one, so that no file of another pool is taken for its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolId(pub [u8; 16]);

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolId({self})")
    }
}

/// What holds for a whole pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The pool.
    pub pool: PoolId,
    /// Bytes of each segment file.
    pub segment_bytes: u64,
    /// What all files of the pool may take, together; 0 for no cap.
    pub max_bytes: u64,
    /// What is left free on the file system, for everybody else; 0 for nothing.
    pub min_free_bytes: u64,
    /// When the pool was made, in nanoseconds since 1970.
    pub created_unix_ns: u64,
}

impl Superblock {
    /// Its page.
    pub fn encode(&self) -> Page {
        let mut page = page::begin(MAGIC);
        put(&mut page, 16, &self.pool.0);
        put(&mut page, 32, &self.segment_bytes.to_le_bytes());
        put(&mut page, 40, &self.max_bytes.to_le_bytes());
        put(&mut page, 48, &self.min_free_bytes.to_le_bytes());
        put(&mut page, 56, &self.created_unix_ns.to_le_bytes());
        page::seal(&mut page);
        page
    }

    /// Reads a page.
    ///
    /// # Errors
    /// `Foreign` when it is no superblock or a damaged one, `UnsupportedVersion` when it is a newer kvtier's.
    pub fn decode(page: &Page) -> Result<Self> {
        page::check(page, MAGIC, WHAT)?;
        let found = Self {
            pool: PoolId(array(page, 16)),
            segment_bytes: u64_at(page, 32),
            max_bytes: u64_at(page, 40),
            min_free_bytes: u64_at(page, 48),
            created_unix_ns: u64_at(page, 56),
        };
        if found.segment_bytes == 0 || !found.segment_bytes.is_multiple_of(page.len() as u64) {
            let message = format!("{WHAT} states segments of {} bytes", found.segment_bytes);
            return Err(Error::new(ErrorKind::Foreign, message));
        }
        Ok(found)
    }

    /// How many segments there may be. Their numbers are those below it, and each is made by whoever comes first, so that
    /// no two processes together make more than the cap allows.
    pub fn most_segments(&self) -> u32 {
        match self.max_bytes {
            0 => u32::MAX,
            cap => u32::try_from(cap.saturating_sub(OVERHEAD) / self.segment_bytes).unwrap_or(u32::MAX),
        }
    }

    /// The smallest cap that allows `segments` of `segment_bytes`.
    pub fn cap_for(segments: u64, segment_bytes: u64) -> u64 {
        segments * segment_bytes + OVERHEAD
    }
}
