//! The engine's host rows and kvtier's own scratch memory: the only raw pointers of the crate.
//!
//! A [`Region`] is all rows of one tier, as the engine handed them over. One operation touches one row through a
//! [`RowLease`], which keeps the region alive and knows by its [`Gate`] whether the operation is still open: once an
//! operation's result is out, the row belongs to the engine again and nobody here may touch it.
//! [`IoMemory`] puts a row and scratch pages together into the segments of one vectored transfer, and owns both until
//! the transfer has ended. What a fork could do to a transfer under way is said in `host` for rows and in `scratch` for
//! scratch pages; rows in memory of the engine's own are as safe as that memory is (shared, or kept from children).

mod gate;
mod host;
mod huge;
mod lease;
mod prefetch;
mod region;
mod scratch;
mod transfer;

pub use gate::{Expiry, Gate};
pub use host::HostRows;
pub(crate) use huge::HugePages;
pub use lease::{LeaseWatch, RowAccess, RowLease};
pub(crate) use prefetch::prefetch;
pub use region::{Region, RowPart};
pub use scratch::{Scratch, ScratchPool};
pub use transfer::IoMemory;

/// Page size that memory for direct IO is aligned to; every supported file system accepts a multiple of it.
pub const PAGE: usize = 4096;
