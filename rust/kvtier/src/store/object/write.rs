//! Stores: one PUT, or the parts of a multipart upload side by side.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::try_join_all;
use object_store::path::Path;
use object_store::{MultipartId, PutMode, PutOptions};

use super::failure::{Failure, ServerError};
use super::provider::Client;
use super::read::Found;
use super::row::Outgoing;
use super::{Location, Objects, RunningOperation, Stored};
use crate::buffer::RowLease;
use crate::error::{ErrorKind, Result};
use crate::layout::BlockKey;
use crate::sync::Mutex;

/// A multipart upload that has begun and not ended: the server keeps its parts until it is told.
type Unfinished = Mutex<Option<MultipartId>>;

/// What stands under a block's name. A block of a newer format is an error instead.
enum Standing {
    Nothing,
    Block,
    /// Something of another length, which a store replaces.
    Other,
}

impl Objects {
    pub(super) async fn put_block(self: Arc<Self>, key: BlockKey, row: RowLease) -> Result<Stored> {
        self.check_writable()?;
        let path = self.path_of(&key)?;
        let watch = row.watch();
        let (block, returned) = self.outgoing(key, row)?;
        let unfinished = Unfinished::default();
        let stored = self
            .while_wanted(Some(&watch), async {
                // Owned here, so that giving up drops it.
                let block = block;
                if self.parts().len() == 1 {
                    self.put_whole(&path, &block).await
                } else {
                    self.put_parts(&path, &block, &unfinished).await
                }
            })
            .await;
        if let Some(id) = unfinished.lock().take() {
            Self::abort(&self, path, id);
        }
        returned.wait().await;
        let payload_bytes = self.config.format.payload_bytes() as u64;
        stored.map(|new| Stored { location: Location::default(), bytes: if new { payload_bytes } else { 0 } })
    }

    /// Returns whether the object is new.
    async fn put_whole(&self, path: &Path, block: &Outgoing) -> Result<bool> {
        self.uploads.turn(self.block_bytes()).await;
        let may_overwrite = &AtomicBool::new(false);
        // Whether a try may have stored the block without our hearing of it.
        let answer_lost = &AtomicBool::new(false);
        let put = self.attempts(path, move |_| async move {
            let overwrite = may_overwrite.load(Ordering::Relaxed);
            let conditional = !overwrite && self.conditional_put.load(Ordering::Relaxed);
            if !overwrite && !conditional {
                // The next best to a server that doesn't overwrite: looking first.
                match self.standing(path).await? {
                    Standing::Block => return Ok(answer_lost.load(Ordering::Relaxed)),
                    Standing::Nothing | Standing::Other => {}
                }
            }
            let mode = if conditional { PutMode::Create } else { PutMode::Overwrite };
            let (payload, extensions) = block.whole();
            let options = PutOptions { mode, extensions, ..PutOptions::default() };
            let (client, checksum) = self.uploader();
            let failure = match client.put_opts(path, payload, options).await {
                Ok(_) => return Ok(true),
                Err(error) => self.unless_for_checksum(checksum, Failure::of("PUT", &error))?,
            };
            if conditional && failure.is(ServerError::is_unsupported) {
                log::warn!("{}: the server can't be asked not to overwrite blocks: {}", self.place, failure.error);
                self.conditional_put.store(false, Ordering::Relaxed);
                return Err(Failure::passing(failure.error));
            }
            if !(conditional && failure.is(ServerError::is_precondition)) {
                answer_lost.fetch_or(failure.answer.as_ref().is_none_or(|a| a.status >= 500), Ordering::Relaxed);
                return Err(failure);
            }
            match self.standing(path).await? {
                Standing::Block => return Ok(answer_lost.load(Ordering::Relaxed)),
                Standing::Other => may_overwrite.store(true, Ordering::Relaxed),
                Standing::Nothing => {}
            }
            Err(Failure::passing(failure.error))
        });
        put.await.map_err(|failure| failure.error)
    }

    /// The client for the next upload, and whether that will carry a checksum.
    fn uploader(&self) -> (&Arc<dyn Client>, bool) {
        match &self.checksums {
            Some(client) if self.upload_checksums.load(Ordering::Relaxed) => (client, true),
            _ => (&self.client, false),
        }
    }

    /// The failure of an upload, unless the server may have refused it for its checksum: then it is sent again without.
    fn unless_for_checksum(&self, checksum: bool, failure: Failure) -> Result<Failure, Failure> {
        if !(checksum && failure.is(ServerError::is_unsupported_checksum)) {
            return Ok(failure);
        }
        if self.upload_checksums.swap(false, Ordering::Relaxed) {
            log::warn!("{}: the server takes no CRC-64/NVME with uploads: {}", self.place, failure.error);
        }
        Err(Failure::passing(failure.error))
    }

    async fn standing(&self, path: &Path) -> Result<Standing, Failure> {
        match self.head(path).await {
            Ok(meta) if meta.size == self.block_bytes() => Ok(Standing::Block),
            Ok(meta) => match self.length_error(path, &Found::from(&meta)).await? {
                newer if newer.kind() == ErrorKind::UnsupportedVersion => Err(Failure::last(newer)),
                _ => Ok(Standing::Other),
            },
            Err(failure) if failure.is(ServerError::is_missing_object) => Ok(Standing::Nothing),
            Err(failure) => Err(failure),
        }
    }

    /// Returns whether the object is new.
    async fn put_parts(&self, path: &Path, block: &Outgoing, unfinished: &Unfinished) -> Result<bool> {
        // Parts are paid for before anybody can say that the block is there, so ask first.
        let standing = self.attempts(path, |_| self.standing(path)).await;
        if let Standing::Block = standing.map_err(|failure| failure.error)? {
            return Ok(false);
        }
        let begun = self.attempts(path, move |_| async move {
            let (client, checksum) = self.uploader();
            match client.create_multipart(path).await {
                Ok(id) => Ok((client, id)),
                Err(e) => Err(self.unless_for_checksum(checksum, Failure::of("beginning a multipart upload", &e))?),
            }
        });
        // One client to its end: either each part has a checksum, or none.
        let (client, id) = &begun.await.map_err(|failure| failure.error)?;
        *unfinished.lock() = Some(id.clone());
        let ranges = self.parts();
        let parts = try_join_all(ranges.iter().enumerate().map(|(number, range)| async move {
            self.uploads.turn(range.end - range.start).await;
            let part = self.attempts(path, move |_| async move {
                let part = block.part(range);
                client.put_part(path, id, number, part).await.map_err(|e| Failure::of("PUT of a part", &e))
            });
            part.await
        }));
        let parts = &parts.await.map_err(|failure| failure.error)?;
        let completed = self.attempts(path, move |tries| async move {
            let done = client.complete_multipart(path, id, parts.clone()).await;
            match done.map_err(|e| Failure::of("completing a multipart upload", &e)) {
                // A try whose answer was lost has completed it.
                Err(failure) if tries > 0 && failure.is(|answer| answer.code == "NoSuchUpload") => {
                    match self.standing(path).await? {
                        Standing::Block => Ok(()),
                        _ => Err(failure),
                    }
                }
                done => done.map(drop),
            }
        });
        completed.await.map_err(|failure| failure.error)?;
        *unfinished.lock() = None;
        Ok(true)
    }

    /// Tells the server, in the background, that a multipart upload will not be completed.
    fn abort(self: &Arc<Self>, path: Path, id: MultipartId) {
        let objects = Arc::clone(self);
        let running = RunningOperation::begin(self);
        self.runtime.spawn(async move {
            let (client, path, id) = (&objects.client, &path, &id);
            let aborted = objects.attempts(path, move |_| async move {
                client.abort_multipart(path, id).await.map_err(|e| Failure::of("aborting an upload", &e))
            });
            if let Err(failure) = aborted.await {
                log::warn!("the server may keep parts of a block for some time: {}", failure.error);
            }
            drop(running);
        });
    }
}
