//! Clients of the three providers, behind one set of traits.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::ClientConfigKey;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig, StaticCredentialProvider};

use super::http::Connector;
use super::place::{ObjectPlace, Provider};
use crate::config::{self, ObjectConfig, Secret, UploadChecksum};
use crate::error::{Error, ErrorKind, Result};

/// All that is asked of a provider's client.
pub(super) trait Client: ObjectStore + MultipartStore + PaginatedListStore {}

impl<T: ObjectStore + MultipartStore + PaginatedListStore> Client for T {}

/// A client, and how a person would name what it talks to.
pub(super) struct Connected {
    pub(super) client: Arc<dyn Client>,
    /// The client for uploads that carry a checksum, where there shall be one.
    pub(super) checksums: Option<Arc<dyn Client>>,
    pub(super) endpoint: String,
    /// `"path"` or `"virtual-hosted"` for S3.
    pub(super) addressing: Option<&'static str>,
}

/// Makes a client; nothing is sent yet.
///
/// # Errors
/// One `Config` error that lists all options which don't fit together or don't fit the provider.
pub(super) fn connect(place: &ObjectPlace, config: &ObjectConfig) -> Result<Connected> {
    let mut problems = Vec::new();
    check(place.provider, config, &mut problems);
    let connector = Connector::new(config).map_err(|problem| problems.push(problem));
    config::refuse(&problems)?;
    let Ok(connector) = connector else { return Err(Error::new(ErrorKind::Internal, "a problem was lost")) };
    match place.provider {
        Provider::S3 => s3(place, config, connector),
        Provider::Gcs => gcs(place, config, connector).map_err(|e| refused(place, &e)),
        Provider::Azure => azure(place, config, connector).map_err(|e| refused(place, &e)),
    }
}

fn refused(place: &ObjectPlace, error: &object_store::Error) -> Error {
    Error::new(ErrorKind::Config, format!("{place} can't be opened: {error}"))
}

fn check(provider: Provider, config: &ObjectConfig, problems: &mut Vec<String>) {
    let mut foreign = |given: bool, name: &str, whose: &str| {
        if given {
            problems.push(format!("{name} is an option of {whose}, not of {}:// tiers", provider.scheme()));
        }
    };
    if provider != Provider::S3 {
        foreign(config.region.is_some(), "region", "s3:// tiers");
        foreign(config.virtual_hosted_style, "virtual_hosted_style", "s3:// tiers");
        foreign(!config.unsigned_payload, "unsigned_payload", "s3:// tiers");
        foreign(config.upload_checksum != UploadChecksum::None, "upload_checksum", "s3:// tiers");
    }
    if provider == Provider::Gcs {
        foreign(config.access_key.is_some(), "access_key", "s3:// and az:// tiers");
        foreign(config.secret_key.is_some(), "secret_key", "s3:// and az:// tiers");
    } else {
        foreign(config.credentials_file.is_some(), "credentials_file", "gs:// tiers");
    }
    let whole = config.secret_key.is_some() || (provider == Provider::Azure && config.session_token.is_some());
    if config.access_key.is_some() && !whole && !(provider == Provider::Azure && config.anonymous) {
        problems.push("access_key without secret_key: give both, or none for the environment's credentials".into());
    }
    if provider == Provider::S3 && config.session_token.is_some() && config.access_key.is_none() {
        problems.push("session_token without access_key and secret_key, to which it belongs".into());
    }
}

fn s3(place: &ObjectPlace, config: &ObjectConfig, connector: Connector) -> Result<Connected> {
    let environment = AmazonS3Builder::from_env();
    let known = |key| environment.get_config_value(&key);
    let allow_http =
        config.allow_http || known(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp)).as_deref() == Some("true");
    let given = config.endpoint.clone().or_else(|| known(AmazonS3ConfigKey::Endpoint));
    if let Some(endpoint) = given.as_ref().filter(|endpoint| endpoint.starts_with("http://") && !allow_http) {
        let message =
            format!("the environment's endpoint {endpoint} has no TLS: give allow_http=True if that is meant");
        return Err(Error::new(ErrorKind::Config, message));
    }
    let keyless = config.access_key.is_none() && !config.anonymous;
    let sources = [
        AmazonS3ConfigKey::AccessKeyId,
        AmazonS3ConfigKey::WebIdentityTokenFile,
        AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
        AmazonS3ConfigKey::ContainerCredentialsFullUri,
    ];
    if let Some(profile) = std::env::var_os("AWS_PROFILE")
        && keyless
        && sources.into_iter().all(|source| known(source).is_none())
    {
        let message = format!(
            "AWS_PROFILE={} is set, and kvtier reads no profiles: put the credentials into the environment \
             (aws configure export-credentials --format env), or give access_key and secret_key",
            profile.display()
        );
        return Err(Error::new(ErrorKind::Config, message));
    }
    let mut builder = environment
        .with_bucket_name(&place.bucket)
        .with_unsigned_payload(config.unsigned_payload)
        .with_virtual_hosted_style_request(config.virtual_hosted_style)
        .with_skip_signature(config.anonymous)
        // Deleting one by one works everywhere, and can be made conditional.
        .with_disable_bulk_delete(true)
        .with_client_options(ClientOptions::new().with_allow_http(allow_http))
        .with_retry(no_retries())
        .with_http_connector(connector);
    if let Some(region) = &config.region {
        builder = builder.with_region(region);
    }
    if let (Some(key_id), Some(secret)) = (&config.access_key, &config.secret_key) {
        let token = config.session_token.as_ref().map(|token| token.reveal().to_owned());
        // Not by the builder's own setters: a session token of the environment belongs to other keys.
        builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(AwsCredential {
            key_id: key_id.clone(),
            secret_key: secret.reveal().to_owned(),
            token,
        })));
    }
    if let Some(endpoint) = &given {
        builder = builder.with_endpoint(if config.virtual_hosted_style {
            with_bucket(endpoint, &place.bucket)
        } else {
            endpoint.clone()
        });
    }
    let region = builder.get_config_value(&AmazonS3ConfigKey::Region).unwrap_or_else(|| "us-east-1".into());
    let built = |builder: AmazonS3Builder| -> Result<Arc<dyn Client>> {
        Ok(Arc::new(builder.build().map_err(|e| refused(place, &e))?))
    };
    Ok(Connected {
        checksums: match config.upload_checksum {
            UploadChecksum::None => None,
            UploadChecksum::Crc64Nvme => Some(built(builder.clone().with_checksum_algorithm(Checksum::CRC64NVME))?),
        },
        client: built(builder)?,
        endpoint: given.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com")),
        addressing: Some(if config.virtual_hosted_style { "virtual-hosted" } else { "path" }),
    })
}

/// `https://host` becomes `https://bucket.host`, unless the bucket is there already.
fn with_bucket(endpoint: &str, bucket: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, host)) if !host.starts_with(&format!("{bucket}.")) => format!("{scheme}://{bucket}.{host}"),
        _ => endpoint.to_owned(),
    }
}

fn gcs(place: &ObjectPlace, config: &ObjectConfig, connector: Connector) -> object_store::Result<Connected> {
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(&place.bucket)
        .with_skip_signature(config.anonymous)
        .with_client_options(client_options(config))
        .with_retry(no_retries())
        .with_http_connector(connector);
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    if let Some(path) = &config.credentials_file {
        builder = builder.with_application_credentials(path.to_string_lossy());
    }
    let token = config.session_token.as_ref().map(Secret::reveal);
    if let Some(bearer) = token.or(config.anonymous.then_some("")) {
        let credential = GcpCredential { bearer: bearer.to_owned() };
        builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(credential)));
    }
    Ok(Connected {
        client: Arc::new(builder.build()?),
        checksums: None,
        endpoint: config.endpoint.clone().unwrap_or_else(|| "https://storage.googleapis.com".into()),
        addressing: None,
    })
}

fn azure(place: &ObjectPlace, config: &ObjectConfig, connector: Connector) -> object_store::Result<Connected> {
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(&place.bucket)
        .with_skip_signature(config.anonymous)
        .with_client_options(client_options(config))
        .with_retry(no_retries())
        .with_http_connector(connector);
    if let Some(account) = &config.access_key {
        builder = builder.with_account(account);
    }
    if let Some(key) = &config.secret_key {
        builder = builder.with_access_key(key.reveal());
    }
    if let Some(signature) = &config.session_token {
        builder = builder.with_config(object_store::azure::AzureConfigKey::SasKey, signature.reveal());
    }
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    Ok(Connected {
        client: Arc::new(builder.build()?),
        checksums: None,
        endpoint: config.endpoint.clone().unwrap_or_else(|| "https://blob.core.windows.net".into()),
        addressing: None,
    })
}

fn client_options(config: &ObjectConfig) -> ClientOptions {
    ClientOptions::new().with_allow_http(config.allow_http)
}

/// Requests are repeated above the library, where a row's lease, the server's wishes and the deadline are known.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}
