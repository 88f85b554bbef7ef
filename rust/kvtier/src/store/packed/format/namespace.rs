//! The page that says which of a namespace's segments still count.

use super::header::{name_at, put_name};
use super::page::{self, Page, array, put, u64_at};
use super::superblock::PoolId;
use crate::error::Result;

const MAGIC: [u8; 8] = *b"\x89KVNAME\n";
const WHAT: &str = "the namespace's record";

/// What a pool knows about a namespace beside its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRecord {
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// Counts up with every reset: segments of an earlier epoch are empty.
    pub epoch: u64,
    /// SHA-256 of the identity.
    pub identity: [u8; 32],
    /// The namespace's name.
    pub name: String,
}

impl NamespaceRecord {
    /// Its page.
    pub fn encode(&self) -> Page {
        let mut page = page::begin(MAGIC);
        put(&mut page, 16, &self.pool.0);
        put(&mut page, 32, &self.epoch.to_le_bytes());
        put(&mut page, 40, &self.identity);
        put_name(&mut page, 72, &self.name);
        page::seal(&mut page);
        page
    }

    /// Reads a page.
    ///
    /// # Errors
    /// `Foreign` when it is no record or a damaged one, `UnsupportedVersion` when it is a newer kvtier's.
    pub fn decode(page: &Page) -> Result<Self> {
        page::check(page, MAGIC, WHAT)?;
        Ok(Self {
            pool: PoolId(array(page, 16)),
            epoch: u64_at(page, 32),
            identity: array(page, 40),
            name: name_at(page, 72, WHAT)?,
        })
    }
}
