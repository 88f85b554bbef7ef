//! What lies below a prefix, looked at without changing anything: `kvtier doctor`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::ObjectStoreExt;
use object_store::list::{PaginatedListOptions, PaginatedListResult};

use super::failure::ServerError;
use super::inspect::Bucket;
use super::object_path;
use crate::error::Result;
use crate::identity::StoredConfig;
use crate::layout::BlockKey;
use crate::store::files::{Contents, FoundBlocks, FoundNamespace, Unfinished};

impl Bucket {
    /// Looks at all namespaces below the prefix; reads no further page of blocks when `patience` is over. Blocks the
    /// calling thread.
    ///
    /// # Errors
    /// What the service says, when the prefix can't be listed.
    pub fn survey(self: &Arc<Self>, patience: Duration) -> Result<Vec<FoundNamespace>> {
        let bucket = Arc::clone(self);
        self.runtime.wait(async move { bucket.find_namespaces(Instant::now() + patience).await })?
    }

    async fn find_namespaces(&self, give_up: Instant) -> Result<Vec<FoundNamespace>> {
        let names = self.directories().await?;
        let mut namespaces = Vec::new();
        for name in &names {
            let Some(config) = self.config(name).await else { continue };
            let mut ranks: Vec<_> = names.iter().filter_map(|n| Some((rank_of(n, name)?, n))).collect();
            ranks.sort_unstable();
            let mut found = Vec::new();
            for (_, blocks_dir) in ranks {
                found.push(FoundBlocks {
                    blocks_dir: blocks_dir.clone(),
                    contents: self.count(blocks_dir, give_up).await,
                });
            }
            namespaces.push(FoundNamespace { base_dir: name.clone(), config, ranks: found });
        }
        Ok(namespaces)
    }

    /// What stands between the prefix and the next slash.
    async fn directories(&self) -> Result<Vec<String>> {
        let prefix = self.place.object_name("");
        let (mut names, mut token) = (Vec::new(), None);
        loop {
            let page = self.page(&prefix, Some("/"), token).await?;
            let below = |path: &object_store::path::Path| path.as_ref().strip_prefix(&prefix).map(str::to_owned);
            names.extend(page.result.common_prefixes.iter().filter_map(below));
            token = page.page_token;
            if token.is_none() {
                return Ok(names);
            }
        }
    }

    /// What the `config.json` of a directory says; `None` where there is none.
    async fn config(&self, name: &str) -> Option<Result<StoredConfig>> {
        let path = object_path(&self.place.object_name(&format!("{name}/config.json"))).ok()?;
        let read = self.send("reading config.json", async { self.client.get(&path).await?.bytes().await }).await;
        match read {
            Ok(text) => Some(StoredConfig::from_json(&text)),
            Err(failure) if failure.is(ServerError::is_missing_object) => None,
            Err(failure) => Some(Err(failure.error)),
        }
    }

    async fn count(&self, blocks_dir: &str, give_up: Instant) -> Result<Contents> {
        let base = self.place.object_name(&format!("{blocks_dir}/"));
        let unfinished = Unfinished::default();
        let mut found = Contents { blocks: 0, bytes: 0, exact: true, unfinished, quarantined: 0 };
        let mut token = None;
        loop {
            let page = self.page(&base, None, token).await?;
            let is_block = |name: &str| name.strip_prefix(&base).and_then(BlockKey::from_path).is_some();
            for object in page.result.objects.iter().filter(|object| is_block(object.location.as_ref())) {
                found.blocks += 1;
                found.bytes += object.size;
            }
            token = page.page_token;
            if token.is_none() {
                return Ok(found);
            }
            if Instant::now() >= give_up {
                found.exact = false;
                return Ok(found);
            }
        }
    }

    async fn page(
        &self,
        prefix: &str,
        delimiter: Option<&'static str>,
        page_token: Option<String>,
    ) -> Result<PaginatedListResult> {
        let options = PaginatedListOptions {
            page_token,
            delimiter: delimiter.map(Into::into),
            ..PaginatedListOptions::default()
        };
        self.ask("listing", self.client.list_paginated(Some(prefix), options)).await
    }
}

fn rank_of(name: &str, base_dir: &str) -> Option<u32> {
    name.strip_prefix(base_dir)?.strip_prefix("_r")?.parse().ok()
}
