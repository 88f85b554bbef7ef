//! The one place that turns a URL into a store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::BlockStore;
use super::files::{FilesConfig, FilesStore};
use super::memory::{MemoryConfig, MemoryStore};
use super::object::{BucketConfig, BucketStore, ObjectPlace, Provider};
use super::packed::{self, Bounds, Holds, PackedConfig, PackedStore};
use crate::config::{self, DirectIo, StorageLayout, TierConfig};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{BlockFormat, ChecksumAlgorithm};
use crate::identity::{Namespace, NamespaceKind};
use crate::io::{ThreadEngine, engine_for};

const ACCEPTED: &str = "file:///absolute/path, a plain path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or memory://name";

/// A place for blocks, as a URL names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `file:///path`, or a plain path.
    Files(PathBuf),
    /// `memory://name`, or `memory://` for memory of the tier's own.
    Memory(Option<String>),
    /// `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.
    Objects(ObjectPlace),
}

impl Place {
    /// Reads a URL. A text without a scheme is a path; a relative one is meant from the current directory.
    ///
    /// # Errors
    /// `Config` when the scheme or what follows it can't be used, with what is accepted.
    pub fn parse(url: &str) -> Result<Self> {
        let refused = |why: &str| Err(Error::new(ErrorKind::Config, format!("url {url:?}: {why}; give {ACCEPTED}")));
        let Some((scheme, rest)) = url.split_once("://") else {
            return match url {
                "" => refused("it is empty"),
                path if path.contains('\0') => refused("it contains a NUL character"),
                path => Ok(Self::Files(PathBuf::from(path))),
            };
        };
        match scheme {
            "file" => {
                let path = rest.strip_prefix("localhost").unwrap_or(rest);
                if !path.starts_with('/') {
                    return refused("a file URL has three slashes before the path");
                }
                match percent_decoded(path) {
                    Some(path) if !path.contains('\0') => Ok(Self::Files(PathBuf::from(path))),
                    _ => refused("its percent-encoding is not that of UTF-8 text"),
                }
            }
            "memory" if rest.contains('/') => refused("the name of a memory store has no slash"),
            "memory" => Ok(Self::Memory((!rest.is_empty()).then(|| rest.to_owned()))),
            "http" | "https" => refused("an object store's address is the option endpoint"),
            _ => match Provider::of_scheme(scheme) {
                Some(provider) => ObjectPlace::parse(provider, rest).map(Self::Objects).map_err(|why| {
                    let accepted = format!("give {scheme}://bucket/prefix");
                    Error::new(ErrorKind::Config, format!("the {scheme}:// URL can't be used: {why}; {accepted}"))
                }),
                None => refused("the scheme is not known"),
            },
        }
    }

    /// Whether the options are for such a place.
    ///
    /// # Errors
    /// One `Config` error that names each option that is not, and the place.
    pub fn check(&self, config: &TierConfig) -> Result<()> {
        let (foreign, for_what) = match self {
            Self::Objects(_) => (config.given_for_files(), "directories of files"),
            Self::Files(_) | Self::Memory(_) => (config.object.given(), "object stores"),
        };
        let problem = |name| format!("{name} is an option for {for_what}, not for {self}");
        config::refuse(&foreign.into_iter().map(problem).collect::<Vec<_>>())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(root) => write!(f, "{}", root.display()),
            Self::Memory(name) => write!(f, "memory://{}", name.as_deref().unwrap_or_default()),
            Self::Objects(place) => place.fmt(f),
        }
    }
}

/// Opens the store for `namespace` at `place`.
///
/// # Errors
/// `Config` when options are for another kind of place; as the store's own opening; `Unavailable` when no threads can be
/// started.
pub fn open(place: &Place, namespace: &Namespace, config: &TierConfig) -> Result<Arc<dyn BlockStore>> {
    place.check(config)?;
    let threads = config.threads(config.direct_io != DirectIo::Off && !matches!(place, Place::Memory(_)));
    match place {
        Place::Files(root) if layout_at(root, namespace, config)? == StorageLayout::Packed => {
            let bounds = Bounds {
                max_bytes: config.max_bytes,
                min_free_bytes: config.min_free_bytes,
                segment_bytes: config.segment_bytes,
            };
            let packed = PackedConfig {
                verify: config.verify,
                durability: config.durability,
                direct_io: config.direct_io,
                read_only: config.read_only,
                file_mode: config.file_mode,
                dir_mode: config.dir_mode,
                tells_all: config.events,
                ..PackedConfig::new(format_of(namespace), bounds)
            };
            let io = engine_for(config.io_engine, PackedStore::RING_GAINS, threads)?;
            Ok(Arc::new(PackedStore::open(root, namespace, packed, io)?))
        }
        Place::Files(root) => {
            let files = FilesConfig {
                verify: config.verify,
                durability: config.durability,
                direct_io: config.direct_io,
                read_only: config.read_only,
                exclusive: config.exclusive,
                quarantine: config.quarantine,
                file_mode: config.file_mode,
                dir_mode: config.dir_mode,
                ..FilesConfig::new(format_of(namespace))
            };
            let io = engine_for(config.io_engine, FilesStore::RING_GAINS, threads)?;
            Ok(Arc::new(FilesStore::open(root, namespace, files, io)?))
        }
        Place::Memory(name) => {
            let memory = MemoryConfig {
                name: name.clone(),
                namespace: namespace.blocks_dir().to_owned(),
                format: format_of(namespace),
                verify: config.verify,
                read_only: config.read_only,
            };
            Ok(Arc::new(MemoryStore::open(memory, ThreadEngine::start("kvtier-io", threads)?)))
        }
        Place::Objects(bucket) => {
            let objects = BucketConfig {
                format: format_of(namespace),
                verify: config.verify,
                read_only: config.read_only,
                probe_timeout: config.lookup_timeout,
                object: config.object.clone(),
            };
            Ok(Arc::new(BucketStore::open(bucket, namespace, objects)?))
        }
    }
}

/// Which layout a root gets: `Files` or `Packed`.
fn layout_at(root: &Path, namespace: &Namespace, config: &TierConfig) -> Result<StorageLayout> {
    match config.layout {
        StorageLayout::Packed => return Ok(StorageLayout::Packed),
        // Also without permission to look, or without a directory: then opening says what is wrong.
        StorageLayout::Files if packed::holds_pool(root) => {
            let message = "the root holds a packed pool; give layout=\"packed\" or \"auto\" to use it, or another root";
            return Err(Error::new(ErrorKind::Config, message).with("root", root.display()));
        }
        StorageLayout::Files => return Ok(StorageLayout::Files),
        StorageLayout::Auto => {}
    }
    let (holds, could) = packed::look_at(root)?;
    let suits = namespace.kind() == NamespaceKind::Kvtier && !config.quarantine && !config.exclusive;
    match holds {
        Holds::Pool => Ok(StorageLayout::Packed),
        Holds::Nothing if could && suits && !config.read_only => Ok(StorageLayout::Packed),
        Holds::Files | Holds::Nothing => Ok(StorageLayout::Files),
    }
}

/// How the blocks of a namespace lie, wherever they do.
pub fn format_of(namespace: &Namespace) -> BlockFormat {
    let payload_bytes = namespace.payload_bytes() as usize;
    match namespace.kind() {
        NamespaceKind::Kvtier => BlockFormat::framed(payload_bytes, *namespace.sha256(), ChecksumAlgorithm::Xxh3),
        NamespaceKind::Vllm => BlockFormat::raw(payload_bytes),
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_places() -> Result<()> {
        for (url, path) in [
            ("/mnt/kv", "/mnt/kv"),
            ("relative/kv", "relative/kv"),
            ("file:///mnt/kv", "/mnt/kv"),
            ("file://localhost/mnt/kv", "/mnt/kv"),
            ("file:///mnt/k%20v%C3%A9", "/mnt/k vé"),
        ] {
            assert_eq!(Place::parse(url)?, Place::Files(path.into()), "{url}");
        }
        assert_eq!(Place::parse("memory://")?, Place::Memory(None));
        assert_eq!(Place::parse("memory://a")?, Place::Memory(Some("a".into())));
        Ok(())
    }

    #[test]
    fn buckets_are_places() -> Result<()> {
        let Place::Objects(place) = Place::parse("gs://bucket/a/b/")? else { panic!("no bucket") };
        assert_eq!((place.provider, &*place.bucket, &*place.prefix), (Provider::Gcs, "bucket", "a/b"));
        for (url, why) in [
            ("s3://", "the bucket is missing"),
            ("s3://id:hush@bucket/p", "no user, password or port"),
            ("az://c/p?sig=hush", "options are not part of the URL"),
        ] {
            let error = Place::parse(url).unwrap_err();
            assert!(error.message().contains(why), "{error}");
            assert!(!error.message().contains("hush"), "{error}");
        }
        assert!(Place::parse("https://host/bucket").unwrap_err().message().contains("the option endpoint"));
        Ok(())
    }

    #[test]
    fn options_for_another_kind_of_place_are_refused_together() -> Result<()> {
        let text = |s: &str| config::OptionValue::Text(s.into());
        let for_files = TierConfig::parse([("durability", text("full")), ("direct_io", text("off"))])?;
        let for_objects = TierConfig::parse([("region", text("eu-west-1")), ("retries", config::OptionValue::Int(9))])?;
        let refusal = |url: &str, config| Place::parse(url)?.check(config);
        let refused = refusal("s3://bucket/p", &for_files).unwrap_err();
        for part in
            ["2 options", "durability is an option for directories of files, not for s3://bucket/p", "direct_io"]
        {
            assert!(refused.message().contains(part), "{part} in {refused}");
        }
        for url in ["/mnt/kv", "memory://"] {
            let refused = refusal(url, &for_objects).unwrap_err();
            assert!(refused.message().contains("region is an option for object stores, not for "), "{refused}");
        }
        refusal("/mnt/kv", &for_files)?;
        refusal("az://c", &for_objects)
    }

    #[test]
    fn other_urls_are_refused_with_what_is_accepted() {
        for (url, why) in [
            ("ftp://x/y", "the scheme is not known"),
            ("file://mnt/kv", "three slashes"),
            ("file:///a%zz", "percent-encoding"),
            ("file:///a%", "percent-encoding"),
            ("file:///a%00", "percent-encoding"),
            ("memory://a/b", "no slash"),
            ("", "it is empty"),
            ("a\0b", "NUL"),
        ] {
            match Place::parse(url) {
                Ok(place) => panic!("{url:?} is taken as {place:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Config);
                    assert!(error.message().contains(why) && error.message().contains(ACCEPTED), "{error}");
                }
            }
        }
    }
}
