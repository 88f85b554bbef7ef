//! A segment's table: what lies in each slot, 63 entries a page.

use std::fmt;

use sha2::{Digest, Sha256};

use super::page::{self, Page, array, put, u32_at, u64_at};
use super::superblock::PoolId;
use crate::buffer::PAGE;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::Trailer;
use crate::layout::BlockKey;

/// Bytes of an entry, and of what a page says about itself.
const ENTRY_BYTES: usize = 64;

/// Entries on one page.
pub const ENTRIES_PER_PAGE: usize = PAGE / ENTRY_BYTES - 1;

/// Where a page says what it is.
const FOOTER: usize = PAGE - ENTRY_BYTES;
const MAGIC: [u8; 4] = *b"KVTB";

/// Longest key that an entry holds whole.
const WHOLE_KEY_BYTES: usize = 40;
/// In place of a key's length: what follows is its SHA-256.
const DIGEST: u8 = 0xFF;

/// What an entry calls a block: its key if that has up to 40 bytes, else the key's SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyName {
    length: u8,
    bytes: [u8; WHOLE_KEY_BYTES],
}

impl KeyName {
    /// No block's: keys are not empty.
    pub const NONE: Self = Self { length: 0, bytes: [0; WHOLE_KEY_BYTES] };

    /// The name of `key`.
    pub fn of(key: &BlockKey) -> Self {
        let (key, mut bytes) = (key.as_bytes(), [0; WHOLE_KEY_BYTES]);
        if let Some(whole) = bytes.get_mut(..key.len()) {
            whole.copy_from_slice(key);
            return Self { length: key.len() as u8, bytes };
        }
        bytes[..32].copy_from_slice(&Sha256::digest(key));
        Self { length: DIGEST, bytes }
    }

    /// The key, where the name is one.
    pub fn key(&self) -> Option<BlockKey> {
        BlockKey::new(self.bytes.get(..usize::from(self.length))?).ok()
    }

    fn is_possible(&self) -> bool {
        let used = if self.length == DIGEST { 32 } else { usize::from(self.length) };
        (self.length == DIGEST || self.key().is_some()) && self.bytes[used..].iter().all(|b| *b == 0)
    }
}

impl fmt::Debug for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key() {
            Some(key) => write!(f, "KeyName({key})"),
            None => f.write_str("KeyName(digest)"),
        }
    }
}

/// What lies in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Nothing that anybody may read.
    Free,
    /// A block.
    Block,
    /// A block that failed verification twice: of no use until the segment is reclaimed.
    Dead,
}

/// One slot's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// A block, or a dead one; free slots have no entry.
    pub state: SlotState,
    /// Which block.
    pub name: KeyName,
    /// Bytes of its payload.
    pub payload_bytes: u32,
    /// The segment's generation when it was written.
    pub generation: u64,
    /// When it was made, in nanoseconds since 1970, as in its trailer.
    pub created_unix_ns: u64,
}

impl Entry {
    /// The entry of a block with this trailer, in a segment.
    pub fn of(trailer: &Trailer) -> Self {
        Self {
            state: SlotState::Block,
            name: KeyName::of(&trailer.key),
            payload_bytes: trailer.payload_bytes as u32,
            generation: trailer.placement,
            created_unix_ns: trailer.created_unix_ns,
        }
    }
}

/// One page of a segment's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePage {
    /// The pool.
    pub pool: PoolId,
    /// The segment.
    pub segment: u32,
    /// Which page of its table.
    pub number: u32,
    /// The segment's generation. A page of an earlier one is as good as an empty one.
    pub generation: u64,
    /// Counts up with each change.
    pub sequence: u64,
    /// What its slots hold.
    pub entries: [Option<Entry>; ENTRIES_PER_PAGE],
}

impl TablePage {
    /// A page without entries.
    pub fn empty(pool: PoolId, segment: u32, number: u32, generation: u64) -> Self {
        Self { pool, segment, number, generation, sequence: 0, entries: [None; ENTRIES_PER_PAGE] }
    }

    /// Its bytes.
    pub fn encode(&self) -> Page {
        let mut page = [0; PAGE];
        for (i, entry) in self.entries.iter().enumerate() {
            if let Some(entry) = entry {
                encode_entry(&mut page, i * ENTRY_BYTES, entry);
            }
        }
        put(&mut page, FOOTER, &MAGIC);
        put(&mut page, FOOTER + 4, &self.segment.to_le_bytes());
        put(&mut page, FOOTER + 8, &self.pool.0);
        put(&mut page, FOOTER + 24, &self.number.to_le_bytes());
        put(&mut page, FOOTER + 32, &self.generation.to_le_bytes());
        put(&mut page, FOOTER + 40, &self.sequence.to_le_bytes());
        page::seal(&mut page);
        page
    }

    /// Reads page `number` of the table of a segment at `generation`. One that was never written, or that was written for
    /// another generation, is empty.
    ///
    /// # Errors
    /// `Foreign` when it is damaged, or another segment's.
    pub fn decode(bytes: &Page, pool: PoolId, segment: u32, number: u32, generation: u64) -> Result<Self> {
        let damaged = |why| Error::new(ErrorKind::Foreign, format!("the segment's table page {number} {why}"));
        let empty = Self::empty(pool, segment, number, generation);
        if bytes.iter().all(|b| *b == 0) {
            return Ok(empty);
        }
        if bytes[FOOTER..FOOTER + 4] != MAGIC || !page::is_whole(bytes) {
            return Err(damaged("is damaged"));
        }
        let found = (PoolId(array(bytes, FOOTER + 8)), u32_at(bytes, FOOTER + 4), u32_at(bytes, FOOTER + 24));
        if found != (pool, segment, number) {
            return Err(damaged("is that of another place"));
        }
        if u64_at(bytes, FOOTER + 32) != generation {
            return Ok(empty);
        }
        let mut page = Self { sequence: u64_at(bytes, FOOTER + 40), ..empty };
        for (i, entry) in page.entries.iter_mut().enumerate() {
            *entry = decode_entry(&bytes[i * ENTRY_BYTES..(i + 1) * ENTRY_BYTES], generation)
                .map_err(|()| damaged("has an entry that can't be"))?;
        }
        Ok(page)
    }
}

fn encode_entry(page: &mut Page, at: usize, entry: &Entry) {
    let state = match entry.state {
        SlotState::Free => return,
        SlotState::Block => 1,
        SlotState::Dead => 2,
    };
    put(page, at, &[state, entry.name.length]);
    put(page, at + 4, &entry.payload_bytes.to_le_bytes());
    put(page, at + 8, &entry.generation.to_le_bytes());
    put(page, at + 16, &entry.created_unix_ns.to_le_bytes());
    put(page, at + 24, &entry.name.bytes);
}

fn decode_entry(bytes: &[u8], generation: u64) -> Result<Option<Entry>, ()> {
    let state = match bytes[0] {
        0 => return Ok(None),
        1 => SlotState::Block,
        2 => SlotState::Dead,
        _ => return Err(()),
    };
    let entry = Entry {
        state,
        name: KeyName { length: bytes[1], bytes: array(bytes, 24) },
        payload_bytes: u32_at(bytes, 4),
        generation: u64_at(bytes, 8),
        created_unix_ns: u64_at(bytes, 16),
    };
    if entry.generation == generation && entry.name.is_possible() { Ok(Some(entry)) } else { Err(()) }
}
