//! Keys of blocks and where each lies below its namespace: `hhh/hh_g<group>/<hash>.bin`.
//!
//! Pure: no IO, no descriptor. The same relative path serves a directory and an object store's prefix.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::error::{Error, ErrorKind, Result};

/// Shortest block hash in bytes: the two directory levels need five hex digits.
pub const MIN_HASH_BYTES: usize = 3;
/// Longest block hash in bytes.
pub const MAX_HASH_BYTES: usize = 64;
/// Bytes of the big-endian group index behind the hash.
pub const GROUP_BYTES: usize = 4;
/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = MAX_HASH_BYTES + GROUP_BYTES;

/// A block's key: its hash (3 to 64 bytes) and the 4-byte big-endian index of its KV-cache group.
///
/// Held inline, so that copying a key allocates nothing.
#[derive(Clone, Copy)]
pub struct BlockKey {
    len: u8,
    bytes: [u8; MAX_KEY_BYTES],
}

impl BlockKey {
    /// Takes the engine's key bytes (`hash + group`).
    pub fn new(key: &[u8]) -> Result<Self> {
        let hash_len = key.len().checked_sub(GROUP_BYTES).unwrap_or_default();
        if !(MIN_HASH_BYTES..=MAX_HASH_BYTES).contains(&hash_len) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "key has {} bytes; a key is a block hash of {MIN_HASH_BYTES} to {MAX_HASH_BYTES} bytes followed by \
                     {GROUP_BYTES} bytes of big-endian group index",
                    key.len()
                ),
            ));
        }
        let mut bytes = [0; MAX_KEY_BYTES];
        bytes[..key.len()].copy_from_slice(key);
        Ok(Self { len: key.len() as u8, bytes })
    }

    /// Puts a key together from a block hash and a group index.
    pub fn from_parts(hash: &[u8], group: u32) -> Result<Self> {
        Self::new(&[hash, &group.to_be_bytes()].concat())
    }

    /// The whole key: hash, then group.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The block hash.
    pub fn hash_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len) - GROUP_BYTES]
    }

    /// The index of the KV-cache group.
    pub fn group(&self) -> u32 {
        let start = usize::from(self.len) - GROUP_BYTES;
        self.bytes[start..start + GROUP_BYTES].iter().fold(0, |n, b| n << 8 | u32::from(*b))
    }
}

impl PartialEq for BlockKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for BlockKey {}

impl Hash for BlockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.as_bytes());
    }
}

/// Lower-case hex of the whole key, as it appears in errors and logs.
impl fmt::Display for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockKey({self})")
    }
}
