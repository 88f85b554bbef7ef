//! Between a row and the bytes of requests.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::Extensions;
use object_store::PutPayload;
use tokio::sync::oneshot;

use super::http::Filter;
use super::{Objects, Provider};
use crate::buffer::{RowAccess, RowLease};
use crate::config::UploadChecksum;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{BlockFormat, ChecksumAlgorithm, Hasher, Verify};
use crate::layout::BlockKey;
use crate::store::{check_source, check_target};
use crate::sync::Mutex;

/// A block on its way out: its bytes, which requests share and repeat.
pub(super) struct Outgoing {
    /// The row's segments, and the block's tail.
    pieces: Vec<Bytes>,
    /// What fills the tail while the block is sent, where it wasn't filled before.
    sealing: Option<Filter>,
}

/// Ends when no request holds the row any more.
#[derive(Debug)]
pub(super) struct Returned(oneshot::Receiver<Infallible>);

/// The row's lease, entered for as long as any piece lives.
///
/// The operation's result waits for that. It doesn't wait for connections: they send copies, and get no more of them
/// when their request is over (`http.rs`). So nothing is ever sent that the engine has put into the row meanwhile.
struct Lent {
    row: RowAccess,
    /// Dropped after `row`.
    _returned: oneshot::Sender<Infallible>,
}

struct LentSegment {
    lent: Arc<Lent>,
    segment: usize,
}

impl AsRef<[u8]> for LentSegment {
    fn as_ref(&self) -> &[u8] {
        self.lent.row.segments().nth(self.segment).unwrap_or_default()
    }
}

impl Objects {
    /// The block that is in `row`, ready to be sent.
    ///
    /// # Errors
    /// `Timeout` when the lease has ended, `InvalidInput` when the row has another length than a block.
    pub(super) fn outgoing(&self, key: BlockKey, row: RowLease) -> Result<(Outgoing, Returned)> {
        let format = &self.config.format;
        check_source(&row, format)?;
        let row = row.enter()?;
        let mut tail = vec![0; format.tail_bytes()];
        let sealing = if self.sends_what_it_reads() {
            format.algorithm().map(|algorithm| sealing(format.clone(), algorithm, key))
        } else {
            format.seal(key, row.segments(), SystemTime::now(), &mut tail);
            None
        };
        let segments = row.segments().count();
        let (returned, wait) = oneshot::channel();
        let lent = Arc::new(Lent { row, _returned: returned });
        let mut pieces: Vec<_> =
            (0..segments).map(|segment| Bytes::from_owner(LentSegment { lent: Arc::clone(&lent), segment })).collect();
        pieces.push(tail.into());
        Ok((Outgoing { pieces, sealing }, Returned(wait)))
    }

    /// Whether a block is read once, in order, while it is sent: no parts, and no signature or checksum that the library
    /// computes before.
    fn sends_what_it_reads(&self) -> bool {
        let object = &self.config.object;
        let signed = self.place.provider == Provider::S3 && !object.unsigned_payload && !object.anonymous;
        self.parts().len() == 1 && !signed && object.upload_checksum == UploadChecksum::None
    }
}

/// Computes a payload's checksum while its copy is in the core's cache, which saves a pass over memory, and fills the
/// tail that comes last.
fn sealing(format: BlockFormat, algorithm: ChecksumAlgorithm, key: BlockKey) -> Filter {
    Filter(Arc::new(move || {
        let (format, mut hasher, mut left) = (format.clone(), algorithm.hasher(), format.payload_bytes());
        Box::new(move |slice| {
            if left > 0 {
                hasher.update(slice);
                left -= slice.len();
            } else {
                format.seal_sum(key, hasher.finish(), SystemTime::now(), slice);
            }
        })
    }))
}

impl Outgoing {
    /// All of it, with what goes beside it into the request.
    pub(super) fn whole(&self) -> (PutPayload, Extensions) {
        let mut extensions = Extensions::new();
        if let Some(sealing) = &self.sealing {
            extensions.insert(sealing.clone());
        }
        (self.pieces.iter().cloned().collect(), extensions)
    }

    /// A part of it.
    pub(super) fn part(&self, range: &Range<u64>) -> PutPayload {
        let (mut skip, mut left) = (range.start as usize, (range.end - range.start) as usize);
        let mut taken = Vec::new();
        for piece in &self.pieces {
            let begin = skip.min(piece.len());
            skip -= begin;
            let len = left.min(piece.len() - begin);
            left -= len;
            if len > 0 {
                taken.push(piece.slice(begin..begin + len));
            }
        }
        taken.into_iter().collect()
    }
}

impl Returned {
    pub(super) async fn wait(self) {
        // Nothing is ever sent: the sender's end is the message.
        let _ = self.0.await;
    }
}

/// A row that a block is read into, in pieces that may come in any order.
///
/// The row is touched for the moment of a copy only, so a deadline is exact, and nothing lands after it.
#[derive(Debug)]
pub(super) struct Incoming<'a> {
    format: &'a BlockFormat,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None` after the lease has ended.
    row: Option<RowLease>,
    tail: Vec<u8>,
    sum: Option<Sum>,
}

/// The payload's checksum, as long as its bytes come in order: computed while they are in the cache.
#[derive(Debug)]
struct Sum {
    algorithm: ChecksumAlgorithm,
    hasher: Hasher,
    bytes: usize,
}

impl<'a> Incoming<'a> {
    /// # Errors
    /// `InvalidInput` when the row has another length than a block, `ReadOnly` when it can't be written.
    pub(super) fn new(row: RowLease, format: &'a BlockFormat) -> Result<Self> {
        check_target(&row, format)?;
        let inner = Inner { row: Some(row), tail: vec![0; format.tail_bytes()], sum: None };
        Ok(Self { format, inner: Mutex::new(inner) })
    }

    /// The block's bytes come once more, from the first on. `verify` says whether their checksum will be wanted.
    pub(super) fn begin(&self, verify: Verify) {
        let wanted = self.format.algorithm().filter(|_| verify == Verify::Always);
        self.inner.lock().sum = wanted.map(|algorithm| Sum { algorithm, hasher: algorithm.hasher(), bytes: 0 });
    }

    /// Takes bytes of the block from `offset` on.
    ///
    /// # Errors
    /// `Timeout` when the lease has ended, `Long` when they go beyond a block's end.
    pub(super) fn take(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let offset = offset as usize;
        if offset + bytes.len() > self.format.block_bytes() {
            return Err(Error::new(ErrorKind::Io, "the answer has more bytes than it announced"));
        }
        let payload_bytes = self.format.payload_bytes();
        let (payload, tail) = bytes.split_at(payload_bytes.saturating_sub(offset).min(bytes.len()));
        let inner = &mut *self.inner.lock();
        if !payload.is_empty() {
            let mut row = inner.row.take().ok_or_else(over)?.enter()?;
            row.copy_at(offset, payload)?;
            inner.row = Some(row.leave()?);
            match &mut inner.sum {
                Some(sum) if sum.bytes == offset => {
                    sum.hasher.update(payload);
                    sum.bytes += payload.len();
                }
                out_of_order => *out_of_order = None,
            }
        }
        let at = (offset + payload.len()).saturating_sub(payload_bytes);
        inner.tail[at..at + tail.len()].copy_from_slice(tail);
        Ok(())
    }

    /// Whether what was taken is the block of `key`.
    ///
    /// # Errors
    /// As [`BlockFormat::verify`]; `Timeout` when the lease has ended.
    pub(super) fn verify(&self, key: BlockKey, verify: Verify) -> Result<()> {
        let inner = &mut *self.inner.lock();
        let Inner { row, tail, sum } = inner;
        self.format.verify_sum(key, tail, verify, |algorithm| match sum {
            Some(sum) if sum.algorithm == algorithm && sum.bytes == self.format.payload_bytes() => {
                Ok(sum.hasher.finish())
            }
            _ => {
                let access = row.take().ok_or_else(over)?.enter()?;
                let found = algorithm.of(access.segments());
                *row = Some(access.leave()?);
                Ok(found)
            }
        })
    }
}

fn over() -> Error {
    Error::new(ErrorKind::Timeout, "the operation's time is over")
}
