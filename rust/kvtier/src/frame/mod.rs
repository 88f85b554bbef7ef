//! How a block lies in storage: raw, or framed by padding and a trailer page that proves it.
//!
//! Pure: bytes in, bytes out. `docs/format.md` is the normative text.
//!
//! ```text
//! raw      payload
//! framed   payload | zeros to a multiple of 4096 | trailer page (4096)
//!                  `------------- tail -----------------------------'
//! ```

mod checksum;
mod trailer;

use std::time::SystemTime;

pub use checksum::{ChecksumAlgorithm, Hasher};
pub use trailer::{FORMAT_VERSION, MAGIC, TRAILER_BYTES, Trailer};

use crate::error::{Error, ErrorKind, Result};
use crate::layout::BlockKey;

/// Whether loads compare the payload's checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Always.
    #[default]
    Always,
    /// Never: length, key and identity are still compared, damage inside the payload goes unnoticed.
    Never,
}

/// How the blocks of one namespace lie in storage: raw or framed, and of which length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFormat {
    payload_bytes: usize,
    framing: Option<Framing>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Framing {
    identity: [u8; 32],
    algorithm: ChecksumAlgorithm,
}

impl BlockFormat {
    /// Blocks that are their payload and nothing else. Their bytes can't be verified, only their length.
    pub fn raw(payload_bytes: usize) -> Self {
        Self { payload_bytes, framing: None }
    }

    /// Blocks of the identity with this SHA-256, written with checksums of `algorithm` and read with any.
    pub fn framed(payload_bytes: usize, identity: [u8; 32], algorithm: ChecksumAlgorithm) -> Self {
        Self { payload_bytes, framing: Some(Framing { identity, algorithm }) }
    }

    /// How the checksums of blocks that are written are computed; `None` where blocks have none.
    pub fn algorithm(&self) -> Option<ChecksumAlgorithm> {
        self.framing.as_ref().map(|framing| framing.algorithm)
    }

    /// Whether blocks have a trailer.
    pub fn is_framed(&self) -> bool {
        self.framing.is_some()
    }

    /// Bytes of the payload.
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// Bytes behind the payload: padding and trailer, or none.
    pub fn tail_bytes(&self) -> usize {
        if self.is_framed() { self.padding_bytes() + TRAILER_BYTES } else { 0 }
    }

    /// Bytes of a whole block in storage.
    pub fn block_bytes(&self) -> usize {
        self.payload_bytes + self.tail_bytes()
    }

    /// Fills `tail` ([`BlockFormat::tail_bytes`] long) for the payload that `payload`'s segments are, in order.
    pub fn seal<'a>(
        &self,
        key: BlockKey,
        payload: impl IntoIterator<Item = &'a [u8]>,
        created: SystemTime,
        tail: &mut [u8],
    ) {
        if let Some(algorithm) = self.algorithm() {
            self.seal_sum(key, algorithm.of(payload), created, tail);
        }
    }

    /// As [`BlockFormat::seal`], for a block that lies in a slot of a segment at generation `placement`.
    pub fn seal_in_slot<'a>(
        &self,
        key: BlockKey,
        payload: impl IntoIterator<Item = &'a [u8]>,
        created: SystemTime,
        placement: u64,
        tail: &mut [u8],
    ) {
        if let Some(algorithm) = self.algorithm() {
            self.write_tail(key, algorithm.of(payload), created, placement, tail);
        }
    }

    /// As [`BlockFormat::seal`], for whoever has computed the payload's checksum by [`BlockFormat::algorithm`] on the way.
    pub fn seal_sum(&self, key: BlockKey, payload_checksum: u64, created: SystemTime, tail: &mut [u8]) {
        self.write_tail(key, payload_checksum, created, 0, tail);
    }

    fn write_tail(&self, key: BlockKey, payload_checksum: u64, created: SystemTime, placement: u64, tail: &mut [u8]) {
        let (Some(framing), Some((padding, page))) = (&self.framing, tail.split_last_chunk_mut()) else { return };
        padding.fill(0);
        let since_1970 = created.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Trailer {
            algorithm: framing.algorithm,
            payload_bytes: self.payload_bytes as u64,
            payload_checksum,
            key,
            identity: framing.identity,
            created_unix_ns: since_1970.as_nanos() as u64,
            placement,
            writer: WRITER,
        }
        .encode(page);
    }

    /// Whether a stored block has the right length.
    ///
    /// # Errors
    /// `Short` or `Long`.
    pub fn check_length(&self, found: u64) -> Result<()> {
        let expected = self.block_bytes() as u64;
        let kind = match found.cmp(&expected) {
            std::cmp::Ordering::Less => ErrorKind::Short,
            std::cmp::Ordering::Equal => return Ok(()),
            std::cmp::Ordering::Greater => ErrorKind::Long,
        };
        Err(Error::new(kind, format!("the stored block has {found} bytes, a block of this tier has {expected}")))
    }

    /// Whether payload and tail are the block of `key`. Raw blocks always are.
    ///
    /// # Errors
    /// `Foreign`, `UnsupportedVersion`, `WrongKey`, `WrongIdentity`, `Short`, `Long` or `Checksum`, in this order.
    pub fn verify<'a>(
        &self,
        key: BlockKey,
        payload: impl IntoIterator<Item = &'a [u8]>,
        tail: &[u8],
        verify: Verify,
    ) -> Result<()> {
        self.verify_sum(key, tail, verify, |algorithm| Ok(algorithm.of(payload)))
    }

    /// As [`BlockFormat::verify`], for a block in a slot of a segment at generation `placement`.
    ///
    /// # Errors
    /// Those, and `Missing` before all that is about the block: one of another generation is none.
    pub fn verify_in_slot<'a>(
        &self,
        key: BlockKey,
        payload: impl IntoIterator<Item = &'a [u8]>,
        placement: u64,
        tail: &[u8],
        verify: Verify,
    ) -> Result<()> {
        self.check_tail(key, tail, Some(placement), verify, |algorithm| Ok(algorithm.of(payload)))
    }

    /// As [`BlockFormat::verify`], for whoever has computed the payload's checksum while reading it: `sum` gives it.
    ///
    /// # Errors
    /// Those, and what `sum` fails with.
    pub fn verify_sum(
        &self,
        key: BlockKey,
        tail: &[u8],
        verify: Verify,
        sum: impl FnOnce(ChecksumAlgorithm) -> Result<u64>,
    ) -> Result<()> {
        self.check_tail(key, tail, None, verify, sum)
    }

    fn check_tail(
        &self,
        key: BlockKey,
        tail: &[u8],
        placement: Option<u64>,
        verify: Verify,
        sum: impl FnOnce(ChecksumAlgorithm) -> Result<u64>,
    ) -> Result<()> {
        let Some(framing) = &self.framing else { return Ok(()) };
        let Some((padding, page)) = tail.split_last_chunk() else {
            return Err(Error::new(ErrorKind::Internal, format!("a block's tail of {} bytes", tail.len())));
        };
        let trailer = Trailer::decode(page)?;
        if let Some(placement) = placement.filter(|placement| *placement != trailer.placement) {
            let message =
                format!("the slot's block is of generation {}, its segment of {placement}", trailer.placement);
            return Err(Error::new(ErrorKind::Missing, message));
        }
        if trailer.key != key {
            return Err(Error::new(ErrorKind::WrongKey, format!("the stored block is that of key {}", trailer.key)));
        }
        if trailer.identity != framing.identity {
            let (found, expected) = (hex(&trailer.identity), hex(&framing.identity));
            let message = format!("the stored block has identity {found}, this tier has {expected}");
            return Err(Error::new(ErrorKind::WrongIdentity, message));
        }
        if trailer.payload_bytes != self.payload_bytes as u64 {
            let (found, expected) = (trailer.payload_bytes, self.payload_bytes);
            let kind = if found < expected as u64 { ErrorKind::Short } else { ErrorKind::Long };
            return Err(Error::new(kind, format!("the block's payload has {found} bytes, a row has {expected}")));
        }
        if padding.iter().any(|b| *b != 0) {
            return Err(Error::new(ErrorKind::Foreign, "the block's padding is not zero"));
        }
        if verify == Verify::Always {
            let found = sum(trailer.algorithm)?;
            if found != trailer.payload_checksum {
                let (algorithm, expected) = (trailer.algorithm, trailer.payload_checksum);
                let message =
                    format!("the payload's {algorithm} checksum is {found:016x}, its trailer says {expected:016x}");
                return Err(Error::new(ErrorKind::Checksum, message));
            }
        }
        Ok(())
    }

    /// The failure of a stored block of the wrong length, whose last page (if it has that many bytes) is `last_page`.
    ///
    /// Another length alone is proof of damage, unless an intact trailer says that it is a newer format's business.
    pub fn wrong_length(&self, found: u64, last_page: Option<&[u8; TRAILER_BYTES]>) -> Error {
        let newer = last_page.filter(|_| self.is_framed()).and_then(|page| Trailer::decode(page).err());
        match (newer, self.check_length(found)) {
            (Some(newer), _) if newer.kind() == ErrorKind::UnsupportedVersion => newer,
            (_, Err(length)) => length,
            (_, Ok(())) => Error::new(ErrorKind::Internal, format!("{found} bytes are the right length")),
        }
    }

    fn padding_bytes(&self) -> usize {
        self.payload_bytes.next_multiple_of(TRAILER_BYTES) - self.payload_bytes
    }
}

/// What this build writes as the trailer's writer.
const WRITER: [u8; 16] = {
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let mut writer = [0; 16];
    let mut i = 0;
    while i < version.len() && i < writer.len() {
        writer[i] = version[i];
        i += 1;
    }
    writer
};

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: [u8; 32] = [0x11; 32];

    fn key(byte: u8) -> BlockKey {
        BlockKey::from_parts(&[byte; 32], 0).unwrap()
    }

    fn sealed(format: &BlockFormat, payload: &[u8]) -> Vec<u8> {
        let mut tail = vec![0xEE; format.tail_bytes()];
        format.seal(key(1), [payload], SystemTime::now(), &mut tail);
        tail
    }

    fn failure(format: &BlockFormat, key: BlockKey, payload: &[u8], tail: &[u8]) -> Option<ErrorKind> {
        format.verify(key, [payload], tail, Verify::Always).err().map(|e| e.kind())
    }

    #[test]
    fn lengths() {
        for (payload, tail) in [(1, 4095 + 4096), (4095, 1 + 4096), (4096, 4096), (4097, 4095 + 4096), (1 << 21, 4096)]
        {
            let format = BlockFormat::framed(payload, IDENTITY, ChecksumAlgorithm::Xxh3);
            assert_eq!((format.tail_bytes(), format.block_bytes()), (tail, payload + tail));
            assert_eq!(format.check_length((payload + tail) as u64).err().map(|e| e.kind()), None);
            assert_eq!(format.check_length((payload + tail - 1) as u64).unwrap_err().kind(), ErrorKind::Short);
            assert_eq!(format.check_length((payload + tail + 1) as u64).unwrap_err().kind(), ErrorKind::Long);
        }
        assert_eq!(BlockFormat::raw(5000).block_bytes(), 5000);
    }

    #[test]
    fn each_failure_has_its_kind() {
        for algorithm in [ChecksumAlgorithm::Xxh3, ChecksumAlgorithm::Crc64Nvme] {
            let format = BlockFormat::framed(5000, IDENTITY, algorithm);
            let payload: Vec<u8> = (0..5000_u32).map(|i| (i % 251) as u8).collect();
            let tail = sealed(&format, &payload);
            assert_eq!(failure(&format, key(1), &payload, &tail), None);
            assert_eq!(failure(&format, key(2), &payload, &tail), Some(ErrorKind::WrongKey));
            let other = BlockFormat::framed(5000, [0x22; 32], algorithm);
            assert_eq!(failure(&other, key(1), &payload, &tail), Some(ErrorKind::WrongIdentity));
            // 4999 and 5001 bytes of payload are padded to the same length in storage.
            let other = |n| BlockFormat::framed(n, IDENTITY, algorithm);
            assert_eq!(failure(&other(5001), key(1), &payload, &tail[1..]), Some(ErrorKind::Short));
            assert_eq!(
                failure(&other(4999), key(1), &payload, &[&[0], tail.as_slice()].concat()),
                Some(ErrorKind::Long)
            );
            let flipped = |bytes: &[u8], at: usize| {
                let mut bytes = bytes.to_vec();
                bytes[at] ^= 0x40;
                bytes
            };
            for at in [0, 1, 2500, 4999] {
                let damaged = flipped(&payload, at);
                assert_eq!(failure(&format, key(1), &damaged, &tail), Some(ErrorKind::Checksum), "byte {at}");
                assert!(format.verify(key(1), [damaged.as_slice()], &tail, Verify::Never).is_ok());
            }
            for at in [0, tail.len() - TRAILER_BYTES - 1, tail.len() - TRAILER_BYTES, tail.len() - 1] {
                assert_eq!(failure(&format, key(1), &payload, &flipped(&tail, at)), Some(ErrorKind::Foreign), "{at}");
            }
        }
    }

    #[test]
    fn either_algorithm_reads_the_other() {
        let [xxh3, crc] =
            [ChecksumAlgorithm::Xxh3, ChecksumAlgorithm::Crc64Nvme].map(|a| BlockFormat::framed(8192, IDENTITY, a));
        let payload = vec![3; 8192];
        assert_eq!(failure(&xxh3, key(1), &payload, &sealed(&crc, &payload)), None);
        assert_eq!(failure(&crc, key(1), &payload, &sealed(&xxh3, &payload)), None);
    }

    #[test]
    fn a_block_of_another_length_may_be_a_newer_formats() {
        let format = BlockFormat::framed(4096, IDENTITY, ChecksumAlgorithm::Xxh3);
        let mut page = [0; TRAILER_BYTES];
        page.copy_from_slice(&sealed(&format, &[0; 4096]));
        assert_eq!(format.wrong_length(100, None).kind(), ErrorKind::Short);
        assert_eq!(format.wrong_length(1 << 20, Some(&page)).kind(), ErrorKind::Long);
        page[8] = 2;
        page[TRAILER_BYTES - 4..].fill(0);
        let crc = crc_fast::crc32_iscsi(page.as_slice());
        page[TRAILER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(format.wrong_length(1 << 20, Some(&page)).kind(), ErrorKind::UnsupportedVersion);
        assert_eq!(BlockFormat::raw(4096).wrong_length(1 << 20, Some(&page)).kind(), ErrorKind::Long);
    }
}
