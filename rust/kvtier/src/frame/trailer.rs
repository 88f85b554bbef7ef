//! The last page of a framed block, byte for byte as `docs/format.md` has it.

use super::checksum::ChecksumAlgorithm;
use crate::buffer::PAGE;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{BlockKey, MAX_KEY_BYTES};

/// Bytes of the trailer page.
pub const TRAILER_BYTES: usize = PAGE;

/// First bytes of every trailer. The first is no text, the last is what a conversion of line ends would change.
pub const MAGIC: [u8; 8] = *b"\x89KVTIER\n";

/// The version of the format that this build writes, and the newest that it reads.
pub const FORMAT_VERSION: u16 = 1;

/// What the trailer of a block says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// How `payload_checksum` was computed.
    pub algorithm: ChecksumAlgorithm,
    /// Bytes of the payload, without the padding behind it.
    pub payload_bytes: u64,
    /// The checksum over the payload.
    pub payload_checksum: u64,
    /// The block's key.
    pub key: BlockKey,
    /// SHA-256 of the identity that the block belongs to.
    pub identity: [u8; 32],
    /// When the block was made, in nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// 0 in files and objects; in a pool's slot the generation of its segment.
    pub placement: u64,
    /// The version of kvtier that wrote the block, zero padded.
    pub writer: [u8; 16],
}

impl Trailer {
    /// Fills `page` with this trailer.
    pub fn encode(&self, page: &mut [u8; TRAILER_BYTES]) {
        page.fill(0);
        put(page, at::MAGIC, &MAGIC);
        put(page, at::VERSION, &FORMAT_VERSION.to_le_bytes());
        put(page, at::ALGORITHM, &self.algorithm.code().to_le_bytes());
        put(page, at::PAYLOAD_BYTES, &self.payload_bytes.to_le_bytes());
        put(page, at::PAYLOAD_CHECKSUM, &self.payload_checksum.to_le_bytes());
        let key = self.key.as_bytes();
        put(page, at::KEY_BYTES, &(key.len() as u16).to_le_bytes());
        put(page, at::KEY, key);
        put(page, at::IDENTITY, &self.identity);
        put(page, at::CREATED, &self.created_unix_ns.to_le_bytes());
        put(page, at::PLACEMENT, &self.placement.to_le_bytes());
        put(page, at::WRITER, &self.writer);
        let crc = crc_fast::crc32_iscsi(page.as_slice());
        put(page, at::CRC, &crc.to_le_bytes());
    }

    /// Reads a trailer page.
    ///
    /// # Errors
    /// `Foreign` when the page is damaged or no trailer at all; `UnsupportedVersion` when it is whole but says things
    /// that this build doesn't know (a newer version, a flag, another checksum), so that nothing may be concluded.
    pub fn decode(page: &[u8; TRAILER_BYTES]) -> Result<Self> {
        if array::<8>(page, at::MAGIC) != MAGIC {
            return Err(Error::new(ErrorKind::Foreign, "not a kvtier block: its last page has no trailer"));
        }
        // Magic, version and CRC keep their places in every version, so damage and novelty can be told apart.
        if crc_of(page) != u32::from_le_bytes(array(page, at::CRC)) {
            return Err(Error::new(ErrorKind::Foreign, "the block's trailer is damaged: its CRC does not match"));
        }
        let unsupported = |what: String| Error::new(ErrorKind::UnsupportedVersion, what);
        let version = u16::from_le_bytes(array(page, at::VERSION));
        if version != FORMAT_VERSION {
            let message = format!("the block has format version {version}, this kvtier reads {FORMAT_VERSION}");
            return Err(unsupported(message));
        }
        let flags = u32::from_le_bytes(array(page, at::FLAGS));
        if flags != 0 {
            return Err(unsupported(format!("the block has flags {flags:#x}, which this kvtier doesn't know")));
        }
        let code = u16::from_le_bytes(array(page, at::ALGORITHM));
        let algorithm = ChecksumAlgorithm::from_code(code).ok_or_else(|| {
            unsupported(format!("the block has a checksum of kind {code}, which this kvtier doesn't know"))
        })?;
        let key_bytes = usize::from(u16::from_le_bytes(array(page, at::KEY_BYTES))).min(MAX_KEY_BYTES + 1);
        let key = BlockKey::new(&page[at::KEY..at::KEY + key_bytes])
            .map_err(|e| Error::new(ErrorKind::Foreign, "the block's trailer holds no possible key").with_source(e))?;
        Ok(Self {
            algorithm,
            payload_bytes: u64::from_le_bytes(array(page, at::PAYLOAD_BYTES)),
            payload_checksum: u64::from_le_bytes(array(page, at::PAYLOAD_CHECKSUM)),
            key,
            identity: array(page, at::IDENTITY),
            created_unix_ns: u64::from_le_bytes(array(page, at::CREATED)),
            placement: u64::from_le_bytes(array(page, at::PLACEMENT)),
            writer: array(page, at::WRITER),
        })
    }
}

/// Offsets in the page.
mod at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 8;
    pub(super) const ALGORITHM: usize = 10;
    pub(super) const FLAGS: usize = 12;
    pub(super) const PAYLOAD_BYTES: usize = 16;
    pub(super) const PAYLOAD_CHECKSUM: usize = 24;
    pub(super) const KEY_BYTES: usize = 32;
    pub(super) const KEY: usize = 34;
    pub(super) const IDENTITY: usize = 104;
    pub(super) const CREATED: usize = 136;
    pub(super) const PLACEMENT: usize = 144;
    pub(super) const WRITER: usize = 152;
    pub(super) const CRC: usize = super::TRAILER_BYTES - 4;
}

fn put(page: &mut [u8; TRAILER_BYTES], at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}

fn array<const N: usize>(page: &[u8; TRAILER_BYTES], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&page[at..at + N]);
    bytes
}

/// CRC-32C of the page with its CRC field taken as zero.
fn crc_of(page: &[u8; TRAILER_BYTES]) -> u32 {
    let mut page = *page;
    put(&mut page, at::CRC, &[0; 4]);
    crc_fast::crc32_iscsi(page.as_slice())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trailer() -> Trailer {
        Trailer {
            algorithm: ChecksumAlgorithm::Xxh3,
            payload_bytes: 5000,
            payload_checksum: 0x0123_4567_89ab_cdef,
            key: BlockKey::from_parts(&[0xAB; 32], 7).unwrap(),
            identity: [0x11; 32],
            created_unix_ns: 1_700_000_000_000_000_000,
            placement: 0,
            writer: *b"0.1.0\0\0\0\0\0\0\0\0\0\0\0",
        }
    }

    fn page_of(trailer: &Trailer) -> Box<[u8; TRAILER_BYTES]> {
        let mut page = Box::new([0xFF; TRAILER_BYTES]);
        trailer.encode(&mut page);
        page
    }

    /// Changes bytes and makes the CRC right again.
    fn edited(at: usize, bytes: &[u8]) -> Box<[u8; TRAILER_BYTES]> {
        let mut page = page_of(&trailer());
        put(&mut page, at, bytes);
        let crc = crc_of(&page);
        put(&mut page, at::CRC, &crc.to_le_bytes());
        page
    }

    fn kind(page: &[u8; TRAILER_BYTES]) -> ErrorKind {
        Trailer::decode(page).unwrap_err().kind()
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let good = page_of(&trailer());
        for byte in (0..200).chain(TRAILER_BYTES - 8..TRAILER_BYTES) {
            for bit in 0..8 {
                let mut page = good.clone();
                page[byte] ^= 1 << bit;
                assert_eq!(kind(&page), ErrorKind::Foreign, "byte {byte}, bit {bit}");
            }
        }
        assert_eq!(kind(&[0; TRAILER_BYTES]), ErrorKind::Foreign);
        assert_eq!(kind(&edited(at::MAGIC, b"\x89KVTIER\r")), ErrorKind::Foreign, "a CRC alone makes no trailer");
    }

    #[test]
    fn what_is_newer_is_told_apart_from_what_is_damaged() {
        assert_eq!(kind(&edited(at::VERSION, &[2, 0])), ErrorKind::UnsupportedVersion);
        assert_eq!(kind(&edited(at::VERSION, &[0, 0])), ErrorKind::UnsupportedVersion);
        assert_eq!(kind(&edited(at::FLAGS, &[1])), ErrorKind::UnsupportedVersion);
        assert_eq!(kind(&edited(at::ALGORITHM, &[9, 0])), ErrorKind::UnsupportedVersion);
        assert!(!ErrorKind::UnsupportedVersion.is_proof_of_damage());
    }

    #[test]
    fn impossible_keys_are_foreign() {
        for bytes in [0_u16, 6, 69, u16::MAX] {
            assert_eq!(kind(&edited(at::KEY_BYTES, &bytes.to_le_bytes())), ErrorKind::Foreign, "{bytes}");
        }
    }

    #[test]
    fn unused_bytes_are_a_later_writers_to_use() {
        assert_eq!(Trailer::decode(&edited(2000, b"something newer")).unwrap(), trailer());
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(
            crc in any::<bool>(),
            hash in prop::collection::vec(any::<u8>(), 3..=64),
            group: u32,
            numbers: [u64; 4],
            identity: [u8; 32],
            writer: [u8; 16],
        ) {
            let trailer = Trailer {
                algorithm: if crc { ChecksumAlgorithm::Crc64Nvme } else { ChecksumAlgorithm::Xxh3 },
                payload_bytes: numbers[0],
                payload_checksum: numbers[1],
                key: BlockKey::from_parts(&hash, group).unwrap(),
                identity,
                created_unix_ns: numbers[2],
                placement: numbers[3],
                writer,
            };
            prop_assert_eq!(Trailer::decode(&page_of(&trailer)).unwrap(), trailer);
        }

        #[test]
        fn no_page_makes_it_panic(mut bytes in prop::collection::vec(any::<u8>(), TRAILER_BYTES), fix: bool) {
            if fix {
                bytes[..10].copy_from_slice(b"\x89KVTIER\n\x01\0");
            }
            let mut page: Box<[u8; TRAILER_BYTES]> = bytes.into_boxed_slice().try_into().unwrap();
            if fix {
                let crc = crc_of(&page);
                put(&mut page, at::CRC, &crc.to_le_bytes());
            }
            let _ = Trailer::decode(&page);
        }
    }
}
