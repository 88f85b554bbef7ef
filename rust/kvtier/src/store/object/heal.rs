//! Taking a block that is proven bad out of the way, and nothing else.

use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::Objects;
use super::failure::{Failure, ServerError};
use super::http::only_if_match;
use super::read::Unread;
use super::row::Incoming;
use crate::error::{ErrorKind, Result};
use crate::layout::BlockKey;

impl Objects {
    /// Reads the block of `key` into `row`. Where its object turns out not to be the block, it is read once more: what
    /// failed may have been replaced since, or damaged on its way here. Only the same object failing twice is removed.
    pub(super) async fn read_or_heal(&self, key: BlockKey, path: &Path, row: &Incoming<'_>) -> Result<()> {
        let etag = match self.read(key, path, row).await {
            Ok(()) => return Ok(()),
            Err(Unread::Failed(error)) => return Err(error),
            Err(Unread::Damaged(_, etag)) => etag,
        };
        match self.read(key, path, row).await {
            Ok(()) => Ok(()),
            Err(Unread::Failed(error)) => Err(error),
            Err(Unread::Damaged(error, again)) => {
                if let Some(etag) = again.filter(|again| etag.as_ref() == Some(again) && !self.config.read_only) {
                    self.remove_bad(path, &etag, error.kind()).await;
                }
                Err(error)
            }
        }
    }

    /// Removes the object if it still has this `ETag`. Failing at that is no failure of the load that found it bad.
    async fn remove_bad(&self, path: &Path, etag: &str, why: ErrorKind) {
        let removed = self.attempts(path, move |_| async move {
            match self.head(path).await {
                Ok(meta) if meta.e_tag.as_deref() == Some(etag) => {}
                Err(failure) if !failure.is(ServerError::is_missing_object) => return Err(failure),
                _ => return Ok(false),
            }
            let deleted = only_if_match(etag, self.client.delete(path)).await;
            match deleted.map_err(|e| Failure::of("DELETE", &e)) {
                Ok(()) => Ok(true),
                Err(failure) if failure.is(ServerError::is_precondition) => Ok(false),
                Err(failure) => Err(failure),
            }
        });
        match removed.await {
            Ok(true) => log::warn!("removed a block that failed verification ({why}): {path} in {}", self.place),
            Ok(false) => {}
            Err(failure) => log::warn!("a bad block can't be removed: {}", failure.error),
        }
    }
}
