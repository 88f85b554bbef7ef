//! `config.json` in the bucket: written by whoever comes first, compared by everybody else. Reading it is also how a
//! store finds out that the bucket is there and answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::path::Path;
use object_store::{GetOptions, PutMode, PutOptions, PutPayload};
use tokio::time::sleep;

use super::Objects;
use super::failure::{Failure, ServerError};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::{ConfigCheck, Namespace, NamespaceKind};

/// For how long an object that the engine's own tier may just be writing is read again.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// More than any identity needs; a longer object is something else.
const MOST_BYTES: u64 = 16 << 20;

impl Objects {
    /// Makes sure that the namespace is this identity's, and that the service answers: now, or in the background where
    /// the start is not to wait for it.
    pub(super) fn check_identity(self: &Arc<Self>, namespace: &Namespace) -> Result<()> {
        let objects = Arc::clone(self);
        let namespace = namespace.clone();
        if self.config.object.startup_check {
            return self.runtime.wait(async move { objects.settle(&namespace).await })?;
        }
        self.runtime.spawn(async move {
            let checked = objects.while_wanted(None, objects.settle(&namespace)).await;
            if let Err(error) = checked {
                log::error!("{}: {error}", objects.place);
                if error.kind() == ErrorKind::IdentityMismatch {
                    let _ = objects.refusal.set(error.to_string());
                }
            }
        });
        Ok(())
    }

    /// Compares the namespace's `config.json`, and writes it if there is none.
    async fn settle(&self, namespace: &Namespace) -> Result<()> {
        let path = &self.config_path;
        let give_up = Instant::now() + PATIENCE;
        loop {
            let Some(text) = self.read_config(path).await? else {
                if self.config.read_only || self.write_config(path, namespace.config_text()).await? {
                    return Ok(());
                }
                // Somebody else was quicker.
                continue;
            };
            match namespace.check_config(&text) {
                ConfigCheck::Same => return Ok(()),
                ConfigCheck::Different(error) => return Err(self.about(path, error)),
                ConfigCheck::Unreadable(error) if namespace.kind() == NamespaceKind::Kvtier => {
                    let message = format!("{}; nothing is known about the blocks beside it", error.message());
                    return Err(self.about(path, Error::new(ErrorKind::IdentityMismatch, message).with_source(error)));
                }
                ConfigCheck::Unreadable(_) if Instant::now() < give_up => sleep(PAUSE).await,
                ConfigCheck::Unreadable(error) => {
                    log::warn!("{path} in {}: {error}; its blocks are used all the same", self.place);
                    return Ok(());
                }
            }
        }
    }

    /// Makes sure that a name is missing in a bucket that exists: an answer to HEAD doesn't say which of both is
    /// missing. Asked once in a while.
    pub(super) async fn check_bucket(&self) -> Result<()> {
        if self.bucket.is_recent() {
            return Ok(());
        }
        let _one_at_a_time = self.bucket_check.lock().await;
        if self.bucket.is_recent() {
            return Ok(());
        }
        self.read_config(&self.config_path).await.map(drop)
    }

    async fn read_config(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        let read = self.attempts(path, move |_| async move {
            let found = match self.client.get_opts(path, GetOptions::default()).await {
                Ok(found) => found,
                Err(error) => return Err(Failure::of("reading config.json", &error)),
            };
            if found.meta.size > MOST_BYTES {
                let message = format!("config.json has {} bytes: it is not a namespace's", found.meta.size);
                return Err(Failure::last(Error::new(ErrorKind::IdentityMismatch, message)));
            }
            found.bytes().await.map(|text| text.to_vec()).map_err(|e| Failure::of("reading config.json", &e))
        });
        match read.await {
            Ok(text) => Ok(Some(text)),
            Err(failure) if failure.is(ServerError::is_missing_object) => {
                self.bucket.now();
                Ok(None)
            }
            Err(failure) => Err(failure.error),
        }
    }

    /// Returns whether it was written; false when somebody else has written one meanwhile.
    async fn write_config(&self, path: &Path, text: String) -> Result<bool> {
        let text = &PutPayload::from(text);
        let written = self.attempts(path, move |_| async move {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let failure = match self.client.put_opts(path, text.clone(), options).await {
                Ok(_) => return Ok(true),
                Err(error) => Failure::of("writing config.json", &error),
            };
            if failure.is(ServerError::is_precondition) {
                return Ok(false);
            }
            if !failure.is(ServerError::is_unsupported) {
                return Err(failure);
            }
            let put = self.client.put_opts(path, text.clone(), PutOptions::default()).await;
            put.map(|_| true).map_err(|e| Failure::of("writing config.json", &e))
        });
        written.await.map_err(|failure| failure.error)
    }
}
