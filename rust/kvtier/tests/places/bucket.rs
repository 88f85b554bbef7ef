//! A bucket of its own prefix, on the server in this process or a real one.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kvtier::config::{ObjectConfig, Secret};
use kvtier::error::Result;
use kvtier::layout::BlockKey;
use kvtier::store::BlockStore;
use kvtier::store::object::{BucketConfig, BucketStore, ObjectPlace, Provider};
use kvtier::store::url::format_of;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};

use super::stub::{BUCKET, Server};
use super::weed::Weed;
use super::{Open, Place, key};

/// How a store reaches a server on loopback.
pub fn config_for(endpoint: &str) -> ObjectConfig {
    ObjectConfig {
        endpoint: Some(endpoint.to_owned()),
        allow_http: true,
        access_key: Some("kvtier".into()),
        secret_key: Some(Secret::new("kvtier-secret")),
        region: Some("us-east-1".into()),
        ..ObjectConfig::default()
    }
}

pub struct BucketPlace {
    provider: Provider,
    /// Where the bucket is in this process.
    server: Option<Server>,
    pub config: ObjectConfig,
    prefix: String,
}

impl BucketPlace {
    pub fn stub() -> Self {
        let server = Server::start();
        let config = config_for(&server.endpoint());
        Self { provider: Provider::S3, config, server: Some(server), prefix: "a prefix/x".into() }
    }

    /// The same, spoken to as Google's.
    pub fn gcs_stub() -> Self {
        let place = Self { provider: Provider::Gcs, ..Self::stub() };
        place.with(|config| {
            (config.access_key, config.secret_key, config.region) = (None, None, None);
            config.session_token = Some(Secret::new("token"));
        })
    }

    /// The same, spoken to as Azure's.
    pub fn azure_stub() -> Self {
        let place = Self { provider: Provider::Azure, ..Self::stub() };
        place.with(|config| {
            config.region = None;
            config.secret_key = Some(Secret::new("a2V5"));
        })
    }

    pub fn at(server: &Weed) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("conformance/{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        Self { provider: Provider::S3, config: config_for(&server.endpoint()), server: None, prefix }
    }

    pub fn with(mut self, change: impl FnOnce(&mut ObjectConfig)) -> Self {
        change(&mut self.config);
        self
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub fn try_open(&self, open: &Open) -> Result<BucketStore> {
        let namespace = open.namespace();
        let config = BucketConfig {
            format: format_of(&namespace),
            verify: open.verify,
            read_only: open.read_only,
            probe_timeout: Duration::from_secs(5),
            object: self.config.clone(),
        };
        let place = ObjectPlace { provider: self.provider, bucket: BUCKET.into(), prefix: self.prefix.clone() };
        BucketStore::open(&place, &namespace, config)
    }

    /// The name of a block's object.
    pub fn name(&self, open: &Open, key: &BlockKey) -> String {
        [self.prefix.as_str(), open.namespace().blocks_dir(), key.path().as_str()].join("/")
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let (client, name) = (self.client(), Path::parse(name).unwrap());
        wait(client.put(&name, PutPayload::from(bytes.to_vec()))).unwrap();
    }

    /// The same as a path of the library.
    pub fn path(&self, open: &Open, key: &BlockKey) -> Path {
        Path::parse(self.name(open, key)).unwrap()
    }

    /// Another client of the same bucket.
    pub fn client(&self) -> AmazonS3 {
        AmazonS3Builder::new()
            .with_endpoint(self.config.endpoint.clone().unwrap())
            .with_allow_http(true)
            .with_bucket_name(BUCKET)
            .with_access_key_id("kvtier")
            .with_secret_access_key("kvtier-secret")
            .with_disable_bulk_delete(true)
            .with_unsigned_payload(true)
            .build()
            .unwrap()
    }
}

impl Place for BucketPlace {
    fn open(&self, open: &Open) -> Arc<dyn BlockStore> {
        Arc::new(self.try_open(open).unwrap())
    }

    fn read(&self, open: &Open, key: &BlockKey) -> Option<Vec<u8>> {
        let (client, name) = (self.client(), self.path(open, key));
        wait(async { Some(client.get(&name).await.ok()?.bytes().await.unwrap().to_vec()) })
    }

    fn write(&self, open: &Open, key: &BlockKey, bytes: Option<&[u8]>) {
        let name = self.name(open, key);
        match bytes {
            Some(bytes) => self.put(&name, bytes),
            None => {
                let _ = wait(self.client().delete(&Path::parse(name).unwrap()));
            }
        }
    }

    fn inode(&self, _: &Open, _: &BlockKey) -> Option<u64> {
        None
    }

    fn litter(&self, open: &Open) {
        let block = self.name(open, &key(0));
        let (leaf, name) = block.rsplit_once('/').unwrap();
        for stray in ["README", "00.bin", &name.to_uppercase(), &format!("{name}.tmp"), "ab\u{301}.bin"] {
            self.put(&format!("{leaf}/{stray}"), b"x");
        }
        let blocks = [self.prefix.as_str(), open.namespace().blocks_dir()].join("/");
        self.put(&format!("{blocks}/zzz/zz_g3/{name}"), b"x");
        // Another namespace whose name begins with this one's.
        self.put(&format!("{blocks}7/{}", key(99).path()), &vec![0; 12_288]);
    }

    fn unfinished(&self, _: &Open) -> usize {
        self.server.as_ref().map_or(0, |server| server.bucket().uploads.len())
    }
}

/// Makes a request by hand.
fn wait<T>(request: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(request)
}
