//! One operation's hold on one row.

use std::fmt;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::gate::Gate;
use super::region::Region;
use crate::error::{Error, ErrorKind, Result};

/// One operation's hold on one row: keeps the memory mapped, and allows touching it only while the operation is open.
///
/// The gates of a job lie in one allocation that its leases share.
pub struct RowLease {
    region: Arc<Region>,
    row: usize,
    gates: Arc<[Gate]>,
    operation: usize,
}

impl RowLease {
    /// A lease of `row` for operation number `operation` of the job that owns `gates`.
    ///
    /// # Errors
    /// `InvalidInput` when the row does not exist, `Internal` when the operation doesn't.
    pub fn new(region: Arc<Region>, row: usize, gates: Arc<[Gate]>, operation: usize) -> Result<Self> {
        if row >= region.num_rows() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("row {row} is out of range: the tier has rows 0 to {}", region.num_rows() - 1),
            ));
        }
        if operation >= gates.len() {
            return Err(Error::new(ErrorKind::Internal, format!("operation {operation} of {}", gates.len())));
        }
        Ok(Self { region, row, gates, operation })
    }

    /// A lease that no clock ever ends, for driving a store without an engine.
    pub fn unbounded(region: &Arc<Region>, row: usize) -> Result<Self> {
        Self::new(Arc::clone(region), row, Arc::new([Gate::default()]), 0)
    }

    /// Bytes of the row.
    pub fn row_bytes(&self) -> usize {
        self.region.row_bytes()
    }

    /// Whether loads may write into the row.
    pub fn is_writable(&self) -> bool {
        self.region.is_writable()
    }

    /// Whether the operation is still wanted. Once false, it stays false, and whatever was done is discarded.
    ///
    /// A store asks this after the last byte of the row was read and before it publishes: an open operation proves
    /// that the engine had not yet reused the row, so the bytes read are the block's.
    pub fn is_open(&self) -> bool {
        self.gate().is_open()
    }

    /// What to ask whether the operation is still wanted while the lease itself is elsewhere.
    pub fn watch(&self) -> LeaseWatch {
        LeaseWatch { gates: Arc::clone(&self.gates), operation: self.operation }
    }

    /// Takes the right to touch the row's bytes. The operation's result is withheld until the access has ended, so hold
    /// it for computing, copying, or a transfer on storage that is trusted not to stall, and for nothing else.
    ///
    /// # Errors
    /// `Timeout` when the operation is over.
    pub fn enter(self) -> Result<RowAccess> {
        if self.gate().enter() { Ok(RowAccess { lease: Some(self) }) } else { Err(over()) }
    }

    /// Whether the row's segments all begin and end at multiples of `align`.
    pub fn is_aligned_to(&self, align: usize) -> bool {
        self.segments().all(|(base, len)| base.addr().get().is_multiple_of(align) && len.is_multiple_of(align))
    }

    pub(super) fn segments(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> + '_ {
        self.region.segments(self.row)
    }

    fn gate(&self) -> &Gate {
        &self.gates[self.operation]
    }
}

impl fmt::Debug for RowLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowLease(row {}, {:?})", self.row, self.gate())
    }
}

/// Tells whether the operation of a [`RowLease`] is still wanted.
#[derive(Clone, Debug)]
pub struct LeaseWatch {
    gates: Arc<[Gate]>,
    operation: usize,
}

impl LeaseWatch {
    /// As [`RowLease::is_open`].
    pub fn is_open(&self) -> bool {
        self.gates[self.operation].is_open()
    }
}

/// The right to touch a row's bytes now; the operation's result waits until it is dropped or left.
#[derive(Debug)]
pub struct RowAccess {
    /// `None` only after `leave` has taken it out.
    lease: Option<RowLease>,
}

impl RowAccess {
    /// Ends the access and goes on with the operation.
    ///
    /// # Errors
    /// `Timeout` when the operation's time ran out meanwhile: report that, and do nothing more.
    pub fn leave(mut self) -> Result<RowLease> {
        match self.lease.take() {
            Some(lease) if lease.gate().leave() => Ok(lease),
            _ => Err(over()),
        }
    }

    /// Bytes of the row.
    pub fn row_bytes(&self) -> usize {
        self.lease.as_ref().map_or(0, RowLease::row_bytes)
    }

    /// The row's bytes, one slice per segment, in order.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> + '_ {
        self.lease.iter().flat_map(RowLease::segments).map(|(base, len)| {
            // SAFETY: the lease's region keeps the memory mapped; the gate is held, so the result is not out and the
            // engine does not write to the row (contract of `Region::from_parts`); `&self` excludes `copy_from`.
            unsafe { slice::from_raw_parts(base.as_ptr(), len) }
        })
    }

    /// Copies the row into `payload`, which has exactly its length.
    ///
    /// # Errors
    /// `Internal` when the lengths differ.
    pub fn copy_to(&self, payload: &mut [u8]) -> Result<()> {
        if payload.len() != self.row_bytes() {
            return Err(wrong_length(payload.len(), self.row_bytes()));
        }
        let mut rest = payload;
        for segment in self.segments() {
            let (part, tail) = rest.split_at_mut(segment.len());
            part.copy_from_slice(segment);
            rest = tail;
        }
        Ok(())
    }

    /// Fills the row from `payload`, which has exactly its length and isn't part of the same region.
    ///
    /// # Errors
    /// `ReadOnly` when the rows are read-only, `Internal` when the lengths differ.
    pub fn copy_from(&mut self, payload: &[u8]) -> Result<()> {
        if payload.len() != self.row_bytes() {
            return Err(wrong_length(payload.len(), self.row_bytes()));
        }
        self.copy_at(0, payload)
    }

    /// Writes `part`, which isn't part of the same region, into the row from byte `offset` on.
    ///
    /// # Errors
    /// `ReadOnly` when the rows are read-only, `Internal` when `part` goes beyond the row's end.
    pub fn copy_at(&mut self, offset: usize, part: &[u8]) -> Result<()> {
        let Some(lease) = &self.lease else { return Err(over()) };
        if !lease.is_writable() {
            return Err(Error::new(ErrorKind::ReadOnly, "the rows are read-only memory"));
        }
        if offset > lease.row_bytes() || part.len() > lease.row_bytes() - offset {
            let (len, row) = (part.len(), lease.row_bytes());
            return Err(Error::new(ErrorKind::Internal, format!("{len} bytes at {offset} of a row of {row}")));
        }
        let (mut skip, mut rest) = (offset, part);
        for (base, len) in lease.segments() {
            let begin = skip.min(len);
            skip -= begin;
            let (now, later) = rest.split_at(rest.len().min(len - begin));
            // SAFETY: `begin + now.len()` is within the segment, which is mapped and writable (checked above) while the
            // region lives; the gate is held, so neither the engine nor another operation touches the row; `part` is a
            // live slice elsewhere.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), base.as_ptr().add(begin), now.len()) };
            rest = later;
        }
        Ok(())
    }

    /// The lease behind the access, for building a transfer whose target it is.
    pub(super) fn lease(&self) -> Option<&RowLease> {
        self.lease.as_ref()
    }
}

impl Drop for RowAccess {
    fn drop(&mut self) {
        if let Some(lease) = &self.lease {
            lease.gate().leave();
        }
    }
}

fn wrong_length(got: usize, want: usize) -> Error {
    Error::new(ErrorKind::Internal, format!("{got} bytes for a row of {want}"))
}

fn over() -> Error {
    Error::new(ErrorKind::Timeout, "the operation's time is over")
}
