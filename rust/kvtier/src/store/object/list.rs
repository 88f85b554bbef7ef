//! All blocks of a namespace: listing them, deleting them.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use super::failure::{Failure, ServerError};
use super::{Location, Objects, object_path};
use crate::error::Result;
use crate::layout::BlockKey;

impl Objects {
    /// Calls `found` with each block of the right length, page by page, until it returns false or the store is closed.
    /// Blocks the calling thread.
    pub(super) fn list_blocks(self: &Arc<Self>, found: &mut dyn FnMut(BlockKey, Location) -> bool) -> Result<()> {
        let mut token = None;
        loop {
            let objects = Arc::clone(self);
            let listed = async move { objects.while_wanted(None, objects.page(token)).await };
            let (page, next) = self.runtime.wait(listed)??;
            for meta in page.iter().filter(|meta| meta.size == self.block_bytes()) {
                let wanted = self.key_of(&meta.location).is_none_or(|key| found(key, Location::default()));
                if !wanted {
                    return Ok(());
                }
            }
            token = next;
            if token.is_none() {
                return Ok(());
            }
        }
    }

    /// Deletes every block, whatever its length. Blocks the calling thread.
    pub(super) fn delete_blocks(self: &Arc<Self>) -> Result<()> {
        self.check_writable()?;
        let objects = Arc::clone(self);
        self.runtime.wait(async move { objects.while_wanted(None, objects.delete_pages()).await })?
    }

    async fn delete_pages(&self) -> Result<()> {
        let mut token = None;
        loop {
            let (page, next) = self.page(token).await?;
            let blocks = page.into_iter().map(|meta| meta.location).filter(|path| self.key_of(path).is_some());
            stream::iter(blocks)
                .map(|path| async move { self.delete(&path).await })
                .buffer_unordered(self.config.object.concurrency)
                .try_collect::<()>()
                .await?;
            token = next;
            if token.is_none() {
                return Ok(());
            }
        }
    }

    async fn delete(&self, path: &Path) -> Result<()> {
        let deleted = self.attempts(path, move |_| async move {
            match self.client.delete(path).await.map_err(|e| Failure::of("DELETE", &e)) {
                Err(failure) if failure.is(ServerError::is_missing_object) => Ok(()),
                deleted => deleted,
            }
        });
        deleted.await.map_err(|failure| failure.error)
    }

    async fn page(&self, page_token: Option<String>) -> Result<(Vec<ObjectMeta>, Option<String>)> {
        let namespace = object_path(&self.base)?;
        let page_token = &page_token;
        let listed = self.attempts(&namespace, move |_| async move {
            let page_token = page_token.clone();
            let options = PaginatedListOptions { page_token, ..PaginatedListOptions::default() };
            self.client.list_paginated(Some(&self.base), options).await.map_err(|e| Failure::of("listing", &e))
        });
        let page = listed.await.map_err(|failure| failure.error)?;
        Ok((page.result.objects, page.page_token))
    }

    fn key_of(&self, path: &Path) -> Option<BlockKey> {
        BlockKey::from_path(path.as_ref().strip_prefix(&self.base)?)
    }
}
