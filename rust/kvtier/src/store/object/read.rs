//! Loads: one GET, or ranges side by side, streamed into the row and verified.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::future::{Either, select, try_join_all};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta};
use tokio::time::sleep;

use super::failure::{Failure, ServerError};
use super::row::Incoming;
use super::{Loaded, Objects};
use crate::buffer::RowLease;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::TRAILER_BYTES;
use crate::layout::BlockKey;

/// A block that was not loaded.
#[derive(Debug)]
pub(super) enum Unread {
    /// Nothing is known about the object.
    Failed(Error),
    /// The object with this `ETag` is not the block.
    Damaged(Error, Option<String>),
}

/// What an answer says about the object that it is of.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) size: u64,
    pub(super) etag: Option<String>,
}

impl From<&ObjectMeta> for Found {
    fn from(meta: &ObjectMeta) -> Self {
        Self { size: meta.size, etag: meta.e_tag.clone() }
    }
}

impl Objects {
    pub(super) async fn get_block(self: Arc<Self>, key: BlockKey, row: RowLease) -> Result<Loaded> {
        let path = self.path_of(&key)?;
        let watch = row.watch();
        let row = Incoming::new(row, &self.config.format)?;
        self.while_wanted(Some(&watch), self.read_or_heal(key, &path, &row)).await?;
        Ok(Loaded { bytes: self.config.format.payload_bytes() as u64 })
    }

    /// Reads the object at `path` into `row`, once, and verifies it.
    pub(super) async fn read(&self, key: BlockKey, path: &Path, row: &Incoming<'_>) -> Result<(), Unread> {
        let parts = self.parts();
        row.begin(self.config.verify);
        let found = try_join_all(parts.iter().map(|part| self.read_part(path, part, parts.len() == 1, row)));
        let found = found.await.map_err(Unread::Failed)?;
        if let Some(other) = found.iter().find(|found| found.size != self.block_bytes()) {
            return Err(self.wrong_length(path, other).await);
        }
        let [first, others @ ..] = found.as_slice() else {
            return Err(Unread::Failed(Error::new(ErrorKind::Internal, "a block without parts")));
        };
        if others.iter().any(|other| other.etag != first.etag) {
            let error = Error::new(ErrorKind::Io, "the object was replaced while it was read");
            return Err(Unread::Failed(self.about(path, error)));
        }
        row.verify(key, self.config.verify).map_err(|error| {
            let proof = error.kind().is_proof_of_damage();
            let error = self.about(path, error);
            if proof { Unread::Damaged(error, first.etag.clone()) } else { Unread::Failed(error) }
        })
    }

    /// Reads one part, as often as needs be. When the object has another length than a block, nothing was read.
    async fn read_part(&self, path: &Path, part: &Range<u64>, whole: bool, row: &Incoming<'_>) -> Result<Found> {
        let read = self.attempts(path, move |tries| async move {
            self.downloads.turn(part.end - part.start).await;
            let range = (!whole).then(|| GetRange::Bounded(part.clone()));
            let answer = match self.respond(path, GetOptions { range, ..GetOptions::default() }).await {
                Ok(answer) => answer,
                // The object ends before this part begins.
                Err(failure) if failure.is(ServerError::is_wrong_range) => {
                    return self.head(path).await.map(|meta| Found::from(&meta));
                }
                Err(failure) => return Err(failure),
            };
            let found = Found::from(&answer.meta);
            if found.size != self.block_bytes() {
                return Ok(found);
            }
            if whole && tries > 0 {
                row.begin(self.config.verify);
            }
            let GetResultPayload::Stream(mut body) = answer.payload;
            let mut at = part.start;
            while let Some(bytes) = body.next().await {
                let bytes = bytes.map_err(|e| Failure::of("GET", &e))?;
                row.take(at, &bytes).map_err(Failure::last)?;
                at += bytes.len() as u64;
            }
            if at == part.end {
                return Ok(found);
            }
            let message = format!("GET: the answer ended after {} of {} bytes", at - part.start, part.end - part.start);
            Err(Failure::passing(Error::new(ErrorKind::Io, message)))
        });
        read.await.map_err(|failure| failure.error)
    }

    /// Sends a GET and waits for its answer to begin; where that takes unusually long, sends another and takes whichever
    /// answer begins first.
    async fn respond(&self, path: &Path, options: GetOptions) -> Result<GetResult, Failure> {
        let begun = Instant::now();
        let Some(hedge) = &self.hedge else { return self.get(path, options).await };
        let first = pin!(self.get(path, options.clone()));
        let answer = match hedge.patience() {
            None => first.await,
            Some(patience) => match select(first, pin!(sleep(patience))).await {
                Either::Left((answer, _)) => answer,
                Either::Right(((), first)) => match self.requests.try_acquire() {
                    // Everything is busy: more requests would make it worse.
                    Err(_) => first.await,
                    Ok(_permit) => match select(first, pin!(self.get(path, options))).await {
                        Either::Left((Err(_), second)) => second.await,
                        Either::Right((Err(_), first)) => first.await,
                        Either::Left((answer, _)) | Either::Right((answer, _)) => answer,
                    },
                },
            },
        };
        hedge.observe(begun.elapsed());
        answer
    }

    async fn get(&self, path: &Path, options: GetOptions) -> Result<GetResult, Failure> {
        self.client.get_opts(path, options).await.map_err(|e| Failure::of("GET", &e))
    }

    pub(super) async fn head(&self, path: &Path) -> Result<ObjectMeta, Failure> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        self.client.get_opts(path, options).await.map(|found| found.meta).map_err(|e| Failure::of("HEAD", &e))
    }

    /// What to make of an object that is longer or shorter than a block.
    async fn wrong_length(&self, path: &Path, found: &Found) -> Unread {
        match self.attempts(path, |_| self.length_error(path, found)).await {
            Ok(error) if error.kind().is_proof_of_damage() => {
                Unread::Damaged(self.about(path, error), found.etag.clone())
            }
            Ok(error) => Unread::Failed(self.about(path, error)),
            Err(failure) => Unread::Failed(failure.error),
        }
    }

    /// What is wrong with an object that is longer or shorter than a block: its length, unless its last page says that it
    /// is a newer format's.
    pub(super) async fn length_error(&self, path: &Path, found: &Found) -> Result<Error, Failure> {
        let format = &self.config.format;
        let page_bytes = TRAILER_BYTES as u64;
        if !format.is_framed() || found.size < page_bytes {
            return Ok(format.wrong_length(found.size, None));
        }
        let range = Some(GetRange::Bounded(found.size - page_bytes..found.size));
        let options = GetOptions { range, if_match: found.etag.clone(), ..GetOptions::default() };
        let page = self.get(path, options).await?.bytes().await.map_err(|e| Failure::of("GET", &e))?;
        Ok(format.wrong_length(found.size, page.as_ref().try_into().ok()))
    }
}
