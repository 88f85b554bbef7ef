//! Options of tiers in object stores.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::{OptionValue, bytes, choose, count, refused, seconds, truth};

/// Names of the options, in the order of the documentation.
pub(super) const NAMES: [&str; 23] = [
    "endpoint",
    "region",
    "virtual_hosted_style",
    "access_key",
    "secret_key",
    "session_token",
    "credentials_file",
    "anonymous",
    "allow_http",
    "ca_bundle",
    "unsigned_payload",
    "upload_checksum",
    "connect_timeout",
    "read_timeout",
    "request_timeout",
    "retries",
    "concurrency",
    "part_bytes",
    "upload_rate",
    "download_rate",
    "hedge_quantile",
    "startup_check",
    "list_at_start",
];

choice! {
    /// Which checksum goes with an upload, for the server to compare.
    UploadChecksum {
        /// None: the block's trailer proves it to whoever loads it.
        #[default]
        None = "none",
        /// CRC-64/NVME, at the cost of another pass over the data.
        Crc64Nvme = "crc64nvme",
    }
}

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for whoever signs requests with it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Options that only tiers in object stores have.
#[allow(clippy::struct_excessive_bools)] // each is an option of its own
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectConfig {
    /// Where the service is, as `http(s)://host[:port]`; `None` for the provider's own place.
    pub endpoint: Option<String>,
    /// The region that S3 requests are signed for; `None` for the environment's, or `us-east-1`.
    pub region: Option<String>,
    /// Whether an S3 bucket is part of the host name instead of the path.
    pub virtual_hosted_style: bool,
    /// The S3 access key's id, or the Azure account's name. Without one, the provider's own way to find credentials.
    pub access_key: Option<String>,
    /// What belongs to `access_key`: the S3 secret, or the Azure account's key.
    pub secret_key: Option<Secret>,
    /// The session token of temporary S3 keys, an Azure shared-access signature, or a Google bearer token.
    pub session_token: Option<Secret>,
    /// A Google service account's or user's credentials, as a JSON file.
    pub credentials_file: Option<PathBuf>,
    /// Whether requests are sent unsigned.
    pub anonymous: bool,
    /// Whether an endpoint without TLS is acceptable.
    pub allow_http: bool,
    /// More authorities to trust, as a PEM file.
    pub ca_bundle: Option<PathBuf>,
    /// Whether S3 payloads are left out of the signature, which spares a SHA-256 over each.
    pub unsigned_payload: bool,
    /// Which checksum goes with S3 uploads.
    pub upload_checksum: UploadChecksum,
    /// For connecting, TLS included.
    pub connect_timeout: Duration,
    /// The longest wait for the next bytes of an answer, or for the server to take more of a request.
    pub read_timeout: Duration,
    /// For one request with its answer.
    pub request_timeout: Duration,
    /// How often a request is sent again after a failure that may pass.
    pub retries: usize,
    /// Requests under way at the same time.
    pub concurrency: usize,
    /// Blocks larger than this move in parts of this size, side by side.
    pub part_bytes: u64,
    /// Bytes a second that uploads may use; `None` for no limit.
    pub upload_rate: Option<u64>,
    /// Bytes a second that downloads may use; `None` for no limit.
    pub download_rate: Option<u64>,
    /// A load that has waited for its answer longer than this share of the loads before it asks a second time; `None`
    /// for never.
    pub hedge_quantile: Option<f64>,
    /// Whether opening makes sure that the bucket answers as it should.
    pub startup_check: bool,
    /// Whether the blocks that are there are listed in the background, so that finding them takes no probes.
    pub list_at_start: bool,
}

impl Default for ObjectConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            virtual_hosted_style: false,
            access_key: None,
            secret_key: None,
            session_token: None,
            credentials_file: None,
            anonymous: false,
            allow_http: false,
            ca_bundle: None,
            unsigned_payload: true,
            upload_checksum: UploadChecksum::None,
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            retries: 3,
            concurrency: 64,
            part_bytes: 8 << 20,
            upload_rate: None,
            download_rate: None,
            hedge_quantile: None,
            startup_check: true,
            list_at_start: false,
        }
    }
}

/// S3 takes no smaller parts, except the last.
const LEAST_PART_BYTES: u64 = 5 << 20;

impl ObjectConfig {
    /// Takes one option; `None` when it isn't one of these.
    pub(super) fn set(&mut self, name: &str, value: &OptionValue) -> Option<Result<(), String>> {
        NAMES.contains(&name).then(|| self.set_known(name, value))
    }

    fn set_known(&mut self, name: &str, value: &OptionValue) -> Result<(), String> {
        match name {
            "endpoint" => self.endpoint = Some(endpoint(name, value)?),
            "region" => self.region = Some(text(name, value)?),
            "virtual_hosted_style" => self.virtual_hosted_style = truth(name, value)?,
            "access_key" => self.access_key = Some(hidden(name, value)?),
            "secret_key" => self.secret_key = Some(Secret(hidden(name, value)?)),
            "session_token" => self.session_token = Some(Secret(hidden(name, value)?)),
            "credentials_file" => self.credentials_file = Some(text(name, value)?.into()),
            "anonymous" => self.anonymous = truth(name, value)?,
            "allow_http" => self.allow_http = truth(name, value)?,
            "ca_bundle" => self.ca_bundle = Some(text(name, value)?.into()),
            "unsigned_payload" => self.unsigned_payload = truth(name, value)?,
            "upload_checksum" => self.upload_checksum = choose(name, value, UploadChecksum::CHOICES)?,
            "connect_timeout" => self.connect_timeout = seconds(name, value)?,
            "read_timeout" => self.read_timeout = seconds(name, value)?,
            "request_timeout" => self.request_timeout = seconds(name, value)?,
            "retries" => self.retries = count_or_none(name, value, 100)?,
            "concurrency" => self.concurrency = count(name, value, 4096)?,
            "part_bytes" => {
                self.part_bytes = bytes(name, value)?;
                if self.part_bytes < LEAST_PART_BYTES {
                    return Err(refused(name, value, "at least \"5MiB\""));
                }
            }
            "upload_rate" => self.upload_rate = Some(bytes(name, value)?),
            "download_rate" => self.download_rate = Some(bytes(name, value)?),
            "hedge_quantile" => self.hedge_quantile = Some(share(name, value)?),
            "startup_check" => self.startup_check = truth(name, value)?,
            _ => self.list_at_start = truth(name, value)?,
        }
        Ok(())
    }

    /// What doesn't go together, whatever the place.
    pub(super) fn check_combinations(&self, problems: &mut Vec<String>) {
        if self.access_key.is_none() && self.secret_key.is_some() {
            problems.push("secret_key without access_key: give both, or none for the environment's credentials".into());
        }
        if self.anonymous && (self.access_key.is_some() || self.session_token.is_some()) {
            problems.push("anonymous=True with credentials: requests are either signed or not".into());
        }
        if let Some(endpoint) = self.endpoint.as_ref().filter(|e| e.starts_with("http://"))
            && !self.allow_http
        {
            problems.push(format!("endpoint={endpoint:?} without TLS: give allow_http=True if that is meant"));
        }
    }

    /// Names of the options that are not as they are by default.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        let default = Self::default();
        let Self { endpoint, region, access_key, secret_key, session_token, credentials_file, ca_bundle, .. } = self;
        let given = [
            endpoint.is_some(),
            region.is_some(),
            self.virtual_hosted_style,
            access_key.is_some(),
            secret_key.is_some(),
            session_token.is_some(),
            credentials_file.is_some(),
            self.anonymous,
            self.allow_http,
            ca_bundle.is_some(),
            self.unsigned_payload != default.unsigned_payload,
            self.upload_checksum != default.upload_checksum,
            self.connect_timeout != default.connect_timeout,
            self.read_timeout != default.read_timeout,
            self.request_timeout != default.request_timeout,
            self.retries != default.retries,
            self.concurrency != default.concurrency,
            self.part_bytes != default.part_bytes,
            self.upload_rate.is_some(),
            self.download_rate.is_some(),
            self.hedge_quantile.is_some(),
            self.startup_check != default.startup_check,
            self.list_at_start != default.list_at_start,
        ];
        NAMES.into_iter().zip(given).filter_map(|(name, given)| given.then_some(name)).collect()
    }
}

fn text(name: &str, value: &OptionValue) -> Result<String, String> {
    match value {
        OptionValue::Text(text) if !text.is_empty() => Ok(text.clone()),
        _ => Err(refused(name, value, "text")),
    }
}

/// As [`text`], for what must not be shown, whatever it was given as.
fn hidden(name: &str, value: &OptionValue) -> Result<String, String> {
    text(name, value).map_err(|_| format!("{name} is not accepted; give text (the value is not shown)"))
}

fn endpoint(name: &str, value: &OptionValue) -> Result<String, String> {
    let accepted = "http(s)://host[:port]";
    let url = text(name, value).map_err(|_| refused(name, value, accepted))?;
    // Whatever stands before an @ could be a password.
    if url.contains('@') {
        return Err(format!("{name} holds credentials; give {accepted}, and access_key with secret_key"));
    }
    let host = ["http://", "https://"].iter().find_map(|scheme| url.strip_prefix(scheme)).unwrap_or_default();
    if host.is_empty() || host.starts_with('/') || host.contains(['?', '#', ' ']) || host.contains(char::is_control) {
        return Err(refused(name, value, accepted));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

fn count_or_none(name: &str, value: &OptionValue, most: usize) -> Result<usize, String> {
    if *value == OptionValue::Int(0) { Ok(0) } else { count(name, value, most) }
}

fn share(name: &str, value: &OptionValue) -> Result<f64, String> {
    match value {
        OptionValue::Float(share) if *share > 0.0 && *share < 1.0 => Ok(*share),
        _ => Err(refused(name, value, "a number between 0 and 1, such as 0.95")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::TierConfig;
    use super::*;
    use crate::error::Result;

    fn text(s: &str) -> OptionValue {
        OptionValue::Text(s.into())
    }

    #[test]
    fn values_are_taken_as_users_write_them() -> Result<()> {
        let config = TierConfig::parse([
            ("endpoint", text("http://127.0.0.1:8333/")),
            ("allow_http", OptionValue::Bool(true)),
            ("access_key", text("id")),
            ("secret_key", text("hush")),
            ("retries", OptionValue::Int(0)),
            ("part_bytes", text("16MiB")),
            ("hedge_quantile", OptionValue::Float(0.95)),
        ])?
        .object;
        assert_eq!(config.endpoint.as_deref(), Some("http://127.0.0.1:8333"));
        assert_eq!(config.secret_key.as_ref().map(Secret::reveal), Some("hush"));
        assert_eq!((config.retries, config.part_bytes), (0, 16 << 20));
        assert_eq!(
            config.given(),
            ["endpoint", "access_key", "secret_key", "allow_http", "retries", "part_bytes", "hedge_quantile"]
        );
        assert!(ObjectConfig::default().given().is_empty());
        Ok(())
    }

    #[test]
    fn problems_are_told_without_secrets() {
        let options = [
            ("secret_key", OptionValue::Text("hush".into())),
            ("session_token", OptionValue::Int(4711)),
            ("endpoint", text("https://me:hush@host")),
            ("part_bytes", text("1MiB")),
            ("hedge_quantile", OptionValue::Float(1.0)),
            ("anonymous", OptionValue::Text("yes".into())),
            ("retries", OptionValue::Int(-1)),
            ("upload_checksum", text("md5")),
        ];
        let problem = TierConfig::parse(options).unwrap_err().to_string();
        for part in [
            "8 options can't be used",
            "secret_key without access_key",
            "session_token is not accepted",
            "endpoint holds credentials",
            "at least \"5MiB\"",
            "a number between 0 and 1",
            "anonymous=\"yes\"",
            "retries=-1",
            "give \"none\" or \"crc64nvme\"",
        ] {
            assert!(problem.contains(part), "{part:?} in {problem}");
        }
        assert!(!problem.contains("hush") && !problem.contains("4711"), "{problem}");
    }

    #[test]
    fn endpoints_are_hosts() {
        let parse = |endpoint: &str| TierConfig::parse([("endpoint", text(endpoint))]);
        for refused in ["localhost:9000", "ftp://host", "https://", "https:///x", "https://host?x=1", "https://a b"] {
            assert!(parse(refused).is_err(), "{refused}");
        }
        assert!(parse("https://host:9000").is_ok());
        assert!(parse("http://host").unwrap_err().message().contains("allow_http=True"));
    }

    #[test]
    fn secrets_are_not_shown() {
        let config = ObjectConfig { secret_key: Some(Secret::new("hush")), ..ObjectConfig::default() };
        assert!(!format!("{config:?}").contains("hush"));
    }
}
