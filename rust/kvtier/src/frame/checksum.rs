//! Checksums over a block's payload.

use std::fmt;
use std::hash::Hasher as _;
use std::str::FromStr;

use crc_fast::CrcAlgorithm;
use twox_hash::XxHash3_64;

use crate::buffer::prefetch;
use crate::error::{Error, ErrorKind, Result};

/// How a payload's checksum is computed. Every build reads both; a tier's option says which one it writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChecksumAlgorithm {
    /// XXH3-64 with the default secret and seed 0: as fast as memory on one core.
    #[default]
    Xxh3,
    /// CRC-64/NVME, which object stores can verify too.
    Crc64Nvme,
}

impl ChecksumAlgorithm {
    /// The number in a trailer.
    pub const fn code(self) -> u16 {
        match self {
            Self::Xxh3 => 1,
            Self::Crc64Nvme => 2,
        }
    }

    /// The algorithm with that number in a trailer.
    pub const fn from_code(code: u16) -> Option<Self> {
        match code {
            1 => Some(Self::Xxh3),
            2 => Some(Self::Crc64Nvme),
            _ => None,
        }
    }

    /// The stable name, as options spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Xxh3 => "xxh3",
            Self::Crc64Nvme => "crc64nvme",
        }
    }

    /// A checksum to be fed piece by piece.
    pub fn hasher(self) -> Hasher {
        Hasher(match self {
            Self::Xxh3 => State::Xxh3(XxHash3_64::new()),
            Self::Crc64Nvme => State::Crc64Nvme(crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme)),
        })
    }

    /// The checksum of the concatenated segments.
    pub fn of<'a>(self, segments: impl IntoIterator<Item = &'a [u8]>) -> u64 {
        let mut hasher = self.hasher();
        segments.into_iter().for_each(|s| hasher.update(s));
        hasher.finish()
    }
}

impl fmt::Display for ChecksumAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ChecksumAlgorithm {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        [Self::Xxh3, Self::Crc64Nvme].into_iter().find(|a| a.as_str() == name).ok_or_else(|| {
            Error::new(
                ErrorKind::Config,
                format!("there is no checksum {name:?}; \"xxh3\" and \"crc64nvme\" are accepted"),
            )
        })
    }
}

/// A checksum in the making. How the payload is cut into pieces doesn't change it.
pub struct Hasher(State);

enum State {
    Xxh3(XxHash3_64),
    Crc64Nvme(crc_fast::Digest),
}

impl Hasher {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Xxh3(state) => write_prefetching(state, bytes),
            State::Crc64Nvme(state) => state.update(bytes),
        }
    }

    /// The checksum of all bytes taken so far.
    pub fn finish(&self) -> u64 {
        match &self.0 {
            State::Xxh3(state) => state.finish(),
            State::Crc64Nvme(state) => state.finalize(),
        }
    }
}

/// Rows come from a device or another processor and lie in no near cache; asking for them early takes a tenth to a quarter
/// off the time of hashing them.
fn write_prefetching(state: &mut XxHash3_64, bytes: &[u8]) {
    const PIECE: usize = 4096;
    const AHEAD: usize = 1024;
    let (head, rest) = bytes.split_at(bytes.len().min(AHEAD));
    prefetch(head);
    let mut ahead = rest.chunks(PIECE);
    for piece in bytes.chunks(PIECE) {
        prefetch(ahead.next().unwrap_or_default());
        state.write(piece);
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Xxh3(_) => "Hasher(xxh3)",
            State::Crc64Nvme(_) => "Hasher(crc64nvme)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_check_values() {
        // The catalogue of CRC algorithms gives ae8b14860a799888 for CRC-64/NVME of the nine digits; the XXH3 values are
        // those of the reference implementation (xxhsum -H3).
        let digits = b"123456789".as_slice();
        assert_eq!(ChecksumAlgorithm::Crc64Nvme.of([digits]), 0xae8b_1486_0a79_9888);
        assert_eq!(ChecksumAlgorithm::Xxh3.of([digits]), 0x72dc_b18b_67a1_7dff);
        assert_eq!(ChecksumAlgorithm::Xxh3.of([]), 0x2d06_8005_38d3_94c2);
    }

    #[test]
    fn pieces_do_not_matter() {
        let payload: Vec<u8> = (0..100_000_u32).map(|i| (i.wrapping_mul(i) >> 5) as u8).collect();
        for algorithm in [ChecksumAlgorithm::Xxh3, ChecksumAlgorithm::Crc64Nvme] {
            let whole = algorithm.of([payload.as_slice()]);
            for cut in [0, 1, 63, 64, 255, 256, 257, 4096, 99_999] {
                let (a, b) = payload.split_at(cut);
                assert_eq!(algorithm.of([a, b]), whole, "{algorithm} cut at {cut}");
            }
            assert_eq!(algorithm.of(payload.chunks(7)), whole, "{algorithm}");
        }
    }

    #[test]
    fn names_and_codes_lead_back() {
        for algorithm in [ChecksumAlgorithm::Xxh3, ChecksumAlgorithm::Crc64Nvme] {
            assert_eq!(ChecksumAlgorithm::from_code(algorithm.code()), Some(algorithm));
            assert_eq!(algorithm.as_str().parse::<ChecksumAlgorithm>().unwrap(), algorithm);
        }
        assert_eq!(ChecksumAlgorithm::from_code(0), None);
        assert!("md5".parse::<ChecksumAlgorithm>().is_err_and(|e| e.to_string().contains("crc64nvme")));
    }
}
