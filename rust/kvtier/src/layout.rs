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
        let hash_len = key.len().saturating_sub(GROUP_BYTES);
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

    /// Where the block lies below its namespace's blocks directory.
    pub fn path(&self) -> BlockPath {
        let mut path = BlockPath { len: 0, bytes: [0; MAX_PATH_BYTES] };
        let mut hex = [0; 2 * MAX_HASH_BYTES];
        let hex = hex_of(self.hash_bytes(), &mut hex);
        path.push(&hex[..3]);
        path.push(b"/");
        path.push(&hex[3..5]);
        path.push(b"_g");
        path.push(decimal_of(self.group(), &mut [0; GROUP_DIGITS]));
        path.push(b"/");
        path.push(hex);
        path.push(SUFFIX);
        path
    }

    /// The key of the block at a path below its namespace's blocks directory; `None` when [`BlockKey::path`] never
    /// gives that path.
    pub fn from_path(path: &str) -> Option<Self> {
        let (directories, file) = path.rsplit_once('/')?;
        let hex = file.as_bytes().strip_suffix(SUFFIX)?;
        let (_, group) = directories.rsplit_once("_g")?;
        if hex.len() % 2 != 0 || hex.len() > 2 * MAX_HASH_BYTES {
            return None;
        }
        let mut hash = [0; MAX_HASH_BYTES];
        for (byte, digits) in hash.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = nibble(digits[0])? << 4 | nibble(digits[1])?;
        }
        let key = Self::from_parts(&hash[..hex.len() / 2], group.parse().ok()?).ok()?;
        // The directories repeat what the file name says, and numbers have more spellings than one.
        (key.path().as_str() == path).then_some(key)
    }
}

/// A block's path below its namespace's blocks directory: `hhh/hh_g<group>/<hash>.bin`, the first two names being the
/// hash's leading hex digits.
///
/// Held inline, so that making a path allocates nothing. Never starts with a slash.
#[derive(Clone, Copy)]
pub struct BlockPath {
    len: u8,
    bytes: [u8; MAX_PATH_BYTES],
}

impl BlockPath {
    /// The whole path.
    pub fn as_str(&self) -> &str {
        // Only ASCII is ever pushed.
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// The two directories and the file's name.
    pub fn split(&self) -> (&str, &str) {
        self.as_str().rsplit_once('/').unwrap_or_default()
    }

    fn push(&mut self, part: &[u8]) {
        let start = usize::from(self.len);
        self.bytes[start..start + part.len()].copy_from_slice(part);
        self.len += part.len() as u8;
    }
}

impl AsRef<std::path::Path> for BlockPath {
    fn as_ref(&self) -> &std::path::Path {
        self.as_str().as_ref()
    }
}

impl fmt::Display for BlockPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for BlockPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Decimal digits of the largest group index.
const GROUP_DIGITS: usize = 10;

/// End of a block file's name.
const SUFFIX: &[u8] = b".bin";

/// `hhh/hh_g<group>/<hash>.bin` with the longest group and hash.
const MAX_PATH_BYTES: usize = 3 + 1 + 2 + 2 + GROUP_DIGITS + 1 + 2 * MAX_HASH_BYTES + SUFFIX.len();

fn hex_of<'a>(bytes: &[u8], out: &'a mut [u8; 2 * MAX_HASH_BYTES]) -> &'a [u8] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (digits, byte) in out.chunks_exact_mut(2).zip(bytes) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 0xF)];
    }
    &out[..2 * bytes.len()]
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

fn decimal_of(mut n: u32, out: &mut [u8; GROUP_DIGITS]) -> &[u8] {
    let mut start = GROUP_DIGITS;
    loop {
        start -= 1;
        out[start] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &out[start..];
        }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn path_is_what_the_format_says(hash in prop::collection::vec(any::<u8>(), MIN_HASH_BYTES..=MAX_HASH_BYTES), group: u32) {
            let key = BlockKey::from_parts(&hash, group).unwrap();
            let hex = key.to_string()[..2 * hash.len()].to_owned();
            let path = key.path();
            prop_assert_eq!(path.as_str(), format!("{}/{}_g{group}/{hex}.bin", &hex[..3], &hex[3..5]));
            prop_assert_eq!(path.split(), (&*format!("{}/{}_g{group}", &hex[..3], &hex[3..5]), &*format!("{hex}.bin")));
            prop_assert_eq!(BlockKey::from_path(path.as_str()), Some(key));
        }

        #[test]
        fn foreign_paths_are_no_keys(path in "[0-9a-fA-F_g./+-]{0,40}") {
            if let Some(key) = BlockKey::from_path(&path) {
                let spelled = key.path();
                prop_assert_eq!(spelled.as_str(), path);
            }
        }
    }

    #[test]
    fn only_the_one_spelling_of_a_path_is_a_key() {
        assert!(BlockKey::from_path("00a/bc_g7/00abcd.bin").is_some());
        for path in [
            "00A/bc_g7/00Abcd.bin",
            "00a/bc_g07/00abcd.bin",
            "00a/bc_g+7/00abcd.bin",
            "00a/bd_g7/00abcd.bin",
            "00a/bc_g4294967296/00abcd.bin",
            "00a/bc_g7/00abcd.bin.tmp",
            "00a/bc_g7/00abc.bin",
            "/00a/bc_g7/00abcd.bin",
            "00a/bc/00abcd.bin",
            ".tmp/00abcd.bin",
            "00abcd.bin",
            "",
        ] {
            assert_eq!(BlockKey::from_path(path), None, "{path}");
        }
    }

    #[test]
    fn hash_lengths_outside_3_to_64_are_refused() {
        for hash_len in [0, 1, 2, 65, 1000] {
            let error = BlockKey::from_parts(&vec![0; hash_len], 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.message().contains("3 to 64 bytes"), "{error}");
        }
        assert!(BlockKey::new(&[]).is_err());
    }

    #[test]
    fn hash_and_group_are_read_back() {
        let key = BlockKey::from_parts(&[1, 2, 3], 0x0405_0607).unwrap();
        assert_eq!(key.as_bytes(), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((key.hash_bytes(), key.group()), (&[1, 2, 3][..], 0x0405_0607));
        assert_eq!(key.to_string(), "01020304050607");
    }
}
