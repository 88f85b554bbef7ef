//! What lies in a pool's files besides blocks: pages of 4096 bytes, each with a magic or a place of its own and a CRC.
//!
//! Pure: bytes in, bytes out. `docs/format.md` is the normative text, `tests/vectors/pool` has golden bytes.
//!
//! ```text
//! super             superblock
//! <namespace>.ns    namespace record
//! <id>.seg          header | table pages | slots, each a framed block
//! ```

mod geometry;
mod header;
mod namespace;
mod page;
mod superblock;
mod table;

pub use geometry::Geometry;
pub use header::Header;
pub use namespace::NamespaceRecord;
pub use page::Page;
pub use superblock::{PoolId, Superblock};
pub use table::{ENTRIES_PER_PAGE, Entry, KeyName, SlotState, TablePage};

/// The version of the pool's format that this build writes, and the only one that it reads.
pub const POOL_VERSION: u16 = 1;
