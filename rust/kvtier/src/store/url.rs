//! The one place that turns a URL into a store.

use std::path::PathBuf;
use std::sync::Arc;

use super::BlockStore;
use super::files::{FilesConfig, FilesStore};
use super::memory::{MemoryConfig, MemoryStore};
use crate::config::TierConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{BlockFormat, ChecksumAlgorithm};
use crate::identity::{Namespace, NamespaceKind};
use crate::io::{IoEngine, ThreadEngine};

const ACCEPTED: &str = "file:///absolute/path, a plain path, or memory://name";

/// A place for blocks, as a URL names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `file:///path`, or a plain path.
    Files(PathBuf),
    /// `memory://name`, or `memory://` for memory of the tier's own.
    Memory(Option<String>),
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
            "s3" | "gs" | "az" | "http" | "https" => refused("object stores are not in this version"),
            _ => refused("the scheme is not known"),
        }
    }
}

/// Opens the store for `namespace` at `place`, with IO threads of its own.
///
/// # Errors
/// As the store's own opening; `Unavailable` when no threads can be started.
pub fn open(place: &Place, namespace: &Namespace, config: &TierConfig) -> Result<Arc<dyn BlockStore>> {
    let io: Arc<dyn IoEngine> = ThreadEngine::start("kvtier-io", config.io_threads)?;
    match place {
        Place::Files(root) => {
            let config = FilesConfig {
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
            Ok(Arc::new(FilesStore::open(root, namespace, config, io)?))
        }
        Place::Memory(name) => {
            let config = MemoryConfig {
                name: name.clone(),
                namespace: namespace.blocks_dir().to_owned(),
                format: format_of(namespace),
                verify: config.verify,
                read_only: config.read_only,
            };
            Ok(Arc::new(MemoryStore::open(config, io)))
        }
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
    fn other_urls_are_refused_with_what_is_accepted() {
        for (url, why) in [
            ("ftp://x/y", "the scheme is not known"),
            ("s3://bucket/prefix", "object stores are not in this version"),
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
