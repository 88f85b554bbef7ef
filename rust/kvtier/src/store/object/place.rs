//! A bucket, and what stands before the names of its objects.

use std::fmt;

/// Whose protocol is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Amazon S3, and everything that speaks its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

impl Provider {
    /// The provider whose URLs have this scheme.
    pub fn of_scheme(scheme: &str) -> Option<Self> {
        [Self::S3, Self::Gcs, Self::Azure].into_iter().find(|provider| provider.scheme() == scheme)
    }

    /// The scheme of its URLs.
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
        }
    }
}

/// Where in a bucket a tier's namespaces lie: `s3://bucket/prefix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPlace {
    /// Whose bucket.
    pub provider: Provider,
    /// The bucket's name; Azure calls it a container.
    pub bucket: String,
    /// What stands before every object's name: without a slash at its ends, and empty for the bucket's top.
    pub prefix: String,
}

impl ObjectPlace {
    /// Reads what follows `scheme://` in a URL: `bucket` or `bucket/prefix`. A prefix is taken as it is written, without
    /// percent-decoding, as other S3 tools do.
    ///
    /// # Errors
    /// Why it can't be used, without repeating it: somebody may have put a password there.
    pub fn parse(provider: Provider, rest: &str) -> Result<Self, &'static str> {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err("the bucket is missing");
        }
        if bucket.contains(['@', ':']) {
            return Err("a bucket has no user, password or port; these are options: endpoint, access_key, secret_key");
        }
        if rest.contains(['?', '#']) {
            return Err("options are not part of the URL: give them beside it");
        }
        if !bucket.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
            return Err("the bucket's name can't be one: it has letters, digits, dots, hyphens and underscores only");
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if !prefix.is_empty() && prefix.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err("the prefix has an empty part, \".\" or \"..\"");
        }
        if prefix.contains(|c: char| c.is_ascii_control()) {
            return Err("the prefix has a control character");
        }
        Ok(Self { provider, bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }

    /// The name of the object at a relative path of the format: `prefix/path`, without a leading or doubled slash.
    pub fn object_name(&self, path: &str) -> String {
        if self.prefix.is_empty() { path.to_owned() } else { [self.prefix.as_str(), path].join("/") }
    }
}

impl fmt::Display for ObjectPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.provider.scheme(), self.object_name_in_bucket())
    }
}

impl ObjectPlace {
    fn object_name_in_bucket(&self) -> String {
        if self.prefix.is_empty() { self.bucket.clone() } else { [self.bucket.as_str(), &self.prefix].join("/") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_never_gives_a_leading_or_doubled_slash() {
        for (rest, prefix, name) in [
            ("b", "", "m_0_r0/00a/bc_g0/00abc.bin"),
            ("b/", "", "m_0_r0/00a/bc_g0/00abc.bin"),
            ("b/p", "p", "p/m_0_r0/00a/bc_g0/00abc.bin"),
            ("b/p/", "p", "p/m_0_r0/00a/bc_g0/00abc.bin"),
            ("b/p/q%20r s", "p/q%20r s", "p/q%20r s/m_0_r0/00a/bc_g0/00abc.bin"),
        ] {
            let place = ObjectPlace::parse(Provider::S3, rest).unwrap();
            assert_eq!((place.bucket.as_str(), place.prefix.as_str()), ("b", prefix));
            assert_eq!(place.object_name("m_0_r0/00a/bc_g0/00abc.bin"), name);
        }
    }

    #[test]
    fn what_cannot_be_a_place_is_refused() {
        for rest in
            ["", "/p", "b//p", "b/p//q", "b/p//", "b/../q", "b/.", "b?x=1", "b/p#x", "k:s@b", "b:80", "ä", "b/a\nb"]
        {
            assert!(ObjectPlace::parse(Provider::S3, rest).is_err(), "{rest}");
        }
    }

    #[test]
    fn it_is_shown_as_a_url() {
        for (scheme, rest) in [("s3", "b"), ("gs", "b/p/q"), ("az", "b/p")] {
            let place = ObjectPlace::parse(Provider::of_scheme(scheme).unwrap(), rest).unwrap();
            assert_eq!(place.to_string(), format!("{scheme}://{rest}"));
        }
        assert_eq!(Provider::of_scheme("file"), None);
    }
}
