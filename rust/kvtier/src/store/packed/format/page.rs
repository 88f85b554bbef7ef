//! One page: fields at fixed offsets, a CRC at the end.

use super::POOL_VERSION;
use crate::buffer::PAGE;
use crate::error::{Error, ErrorKind, Result};

/// The unit in which all but blocks is read and written.
pub type Page = [u8; PAGE];

/// Where the CRC-32C of the page with this field zero stands.
const CRC: usize = PAGE - 4;

pub(super) fn put(page: &mut Page, at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}

pub(super) fn array<const N: usize>(page: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&page[at..at + N]);
    bytes
}

pub(super) fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(page, at))
}

pub(super) fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(page, at))
}

pub(super) fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(page, at))
}

/// Writes the CRC.
pub(super) fn seal(page: &mut Page) {
    put(page, CRC, &[0; 4]);
    let crc = crc_fast::crc32_iscsi(page.as_slice());
    put(page, CRC, &crc.to_le_bytes());
}

/// Whether the CRC is right.
pub(super) fn is_whole(page: &Page) -> bool {
    let mut zeroed = *page;
    put(&mut zeroed, CRC, &[0; 4]);
    crc_fast::crc32_iscsi(zeroed.as_slice()) == u32_at(page, CRC)
}

/// Begins a page of its own kind: `magic`, then the version.
pub(super) fn begin(magic: [u8; 8]) -> Page {
    let mut page = [0; PAGE];
    put(&mut page, 0, &magic);
    put(&mut page, 8, &POOL_VERSION.to_le_bytes());
    page
}

/// Whether `page` is one of this kind that this build understands.
///
/// # Errors
/// `Foreign` when it is damaged or something else, `UnsupportedVersion` when it is whole but newer.
pub(super) fn check(page: &Page, magic: [u8; 8], what: &str) -> Result<()> {
    if page[..8] != magic {
        return Err(Error::new(ErrorKind::Foreign, format!("not {what} of kvtier's")));
    }
    if !is_whole(page) {
        return Err(Error::new(ErrorKind::Foreign, format!("{what} is damaged: its CRC does not match")));
    }
    let (version, flags) = (u16_at(page, 8), u16_at(page, 10));
    if version != POOL_VERSION || flags != 0 {
        let message =
            format!("{what} has format version {version} and flags {flags:#x}, this kvtier reads {POOL_VERSION} and 0");
        return Err(Error::new(ErrorKind::UnsupportedVersion, message));
    }
    Ok(())
}
