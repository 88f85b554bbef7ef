//! The first page of a segment: whose blocks lie in it, and which generation of them.

use super::page::{self, Page, array, put, u16_at, u32_at, u64_at};
use super::superblock::PoolId;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::MAX_COMPONENT_BYTES;

const MAGIC: [u8; 8] = *b"\x89KVSEGM\n";
const WHAT: &str = "the segment's header";

/// Offset of the namespace's name.
const NAME: usize = 128;

/// What a segment is, until it is reclaimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// Its number, as in its file's name.
    pub segment: u32,
    /// How many slots there are.
    pub slots: u32,
    /// Bytes of a slot: a whole framed block.
    pub slot_bytes: u64,
    /// Bytes of each block's payload.
    pub payload_bytes: u64,
    /// Counts up whenever the segment is reclaimed. A block in it whose trailer has another placement is none.
    pub generation: u64,
    /// The namespace's epoch then. A segment of an earlier epoch than its namespace's is empty.
    pub epoch: u64,
    /// When this generation began, in nanoseconds since 1970.
    pub born_unix_ns: u64,
    /// A random number of the pool object that began it.
    pub owner: [u8; 16],
    /// SHA-256 of the identity of all blocks in it.
    pub identity: [u8; 32],
    /// The namespace: the name that its blocks' directory has in the layout `files`.
    pub namespace: String,
}

impl Header {
    /// Its page.
    pub fn encode(&self) -> Page {
        let mut page = page::begin(MAGIC);
        put(&mut page, 16, &self.pool.0);
        put(&mut page, 32, &self.segment.to_le_bytes());
        put(&mut page, 36, &self.slots.to_le_bytes());
        put(&mut page, 40, &self.slot_bytes.to_le_bytes());
        put(&mut page, 48, &self.payload_bytes.to_le_bytes());
        put(&mut page, 56, &self.generation.to_le_bytes());
        put(&mut page, 64, &self.epoch.to_le_bytes());
        put(&mut page, 72, &self.born_unix_ns.to_le_bytes());
        put(&mut page, 80, &self.owner);
        put(&mut page, 96, &self.identity);
        put_name(&mut page, NAME, &self.namespace);
        page::seal(&mut page);
        page
    }

    /// Reads a page.
    ///
    /// # Errors
    /// `Foreign` when it is no header or a damaged one, `UnsupportedVersion` when it is a newer kvtier's.
    pub fn decode(page: &Page) -> Result<Self> {
        page::check(page, MAGIC, WHAT)?;
        Ok(Self {
            pool: PoolId(array(page, 16)),
            segment: u32_at(page, 32),
            slots: u32_at(page, 36),
            slot_bytes: u64_at(page, 40),
            payload_bytes: u64_at(page, 48),
            generation: u64_at(page, 56),
            epoch: u64_at(page, 64),
            born_unix_ns: u64_at(page, 72),
            owner: array(page, 80),
            identity: array(page, 96),
            namespace: name_at(page, NAME, WHAT)?,
        })
    }
}

/// Writes a name: its length in two bytes, then its bytes.
pub(super) fn put_name(page: &mut Page, at: usize, name: &str) {
    let name = &name.as_bytes()[..name.len().min(MAX_COMPONENT_BYTES)];
    put(page, at, &(name.len() as u16).to_le_bytes());
    put(page, at + 2, name);
}

/// Reads what [`put_name`] wrote.
pub(super) fn name_at(page: &Page, at: usize, what: &str) -> Result<String> {
    let length = usize::from(u16_at(page, at));
    let name = (length <= MAX_COMPONENT_BYTES).then(|| page[at + 2..at + 2 + length].to_vec());
    let name = name.and_then(|name| String::from_utf8(name).ok());
    name.ok_or_else(|| Error::new(ErrorKind::Foreign, format!("{what} holds no possible name")))
}
