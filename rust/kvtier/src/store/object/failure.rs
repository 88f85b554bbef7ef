//! What went wrong with a request, in the terms of whoever has to decide what to do next.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use http::{HeaderMap, StatusCode};

use crate::error::{Error, ErrorKind};

/// More than a server's "retry after" is not waited for: the operation's deadline is near, or the load is lost anyway.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(30);

/// An answer of the server that is no success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerError {
    pub(super) status: u16,
    /// The server's own name for it, such as `SlowDown`; empty where it gave none (an answer to HEAD has no body).
    pub(super) code: String,
    pub(super) message: String,
    pub(super) request_id: String,
    /// The bucket's region, where the answer names another one than was asked.
    pub(super) region: Option<String>,
    pub(super) retry_after: Option<Duration>,
}

/// A request that got no whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transport {
    pub(super) kind: TransportKind,
    pub(super) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransportKind {
    /// No connection could be made: nobody there, or nobody to be trusted.
    Connect,
    /// The server fell silent.
    Timeout,
    /// The connection broke.
    Broken,
}

impl ServerError {
    /// Reads an answer: S3 and Azure write XML, Google XML or JSON, proxies anything.
    pub(super) fn read(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let first = |names: &[&str]| names.iter().find_map(|name| header(name));
        let body = String::from_utf8_lossy(body);
        let code = between(&body, "<Code>", "</Code>").or_else(|| header("x-ms-error-code"));
        let message = between(&body, "<Message>", "</Message>")
            .or_else(|| between(&body, "\"message\": \"", "\""))
            .or_else(|| between(&body, "\"message\":\"", "\""));
        let plain = || if body.trim_start().starts_with('<') { String::new() } else { shortened(body.trim()) };
        Self {
            status: status.as_u16(),
            code: code.unwrap_or_default(),
            message: message.unwrap_or_else(plain),
            request_id: first(&["x-amz-request-id", "x-ms-request-id", "x-guploader-uploadid", "x-request-id"])
                .or_else(|| between(&body, "<RequestId>", "</RequestId>"))
                .unwrap_or_default(),
            region: header("x-amz-bucket-region").or_else(|| between(&body, "<Region>", "</Region>")),
            retry_after: header("retry-after").and_then(|s| s.trim().parse().ok()).map(Duration::from_secs),
        }
    }

    /// Whether there is no object of that name in a bucket that exists. An answer to HEAD doesn't say which is missing.
    pub(super) fn is_missing_object(&self) -> bool {
        self.status == 404 && !self.is_missing_bucket() && self.code != "NoSuchUpload"
    }

    pub(super) fn is_missing_bucket(&self) -> bool {
        self.status == 404
            && (matches!(self.code.as_str(), "NoSuchBucket" | "ContainerNotFound")
                || self.message.contains("specified bucket does not exist"))
    }

    /// Whether a conditional request found that its condition does not hold.
    pub(super) fn is_precondition(&self) -> bool {
        matches!(self.status, 304 | 412) || self.code == "BlobAlreadyExists"
    }

    /// Whether the server doesn't know what was asked of it.
    pub(super) fn is_unsupported(&self) -> bool {
        self.status == 501 || self.code == "NotImplemented"
    }

    /// Whether it may be an upload's checksum that the server can't do with; a checksum that is wrong is told otherwise.
    pub(super) fn is_unsupported_checksum(&self) -> bool {
        self.is_unsupported()
            || (self.status == 400 && matches!(self.code.as_str(), "InvalidRequest" | "InvalidArgument"))
    }

    pub(super) fn is_wrong_range(&self) -> bool {
        self.status == 416
    }

    fn kind(&self) -> ErrorKind {
        match (self.status, self.code.as_str()) {
            (_, "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken") => {
                ErrorKind::Permission
            }
            (_, "QuotaExceeded" | "XMinioStorageFull" | "InsufficientStorage") | (507, _) => ErrorKind::NoSpace,
            (404, _) if self.is_missing_object() => ErrorKind::Missing,
            (404, _) if self.is_missing_bucket() => ErrorKind::Unavailable,
            (_, "AuthorizationHeaderMalformed" | "PermanentRedirect") | (300..=399, _) => ErrorKind::Unavailable,
            (401 | 403, _) => ErrorKind::Permission,
            _ => ErrorKind::Io,
        }
    }

    fn retry(&self) -> Retry {
        match (self.status, self.code.as_str()) {
            (408 | 425 | 429 | 500 | 502..=504 | 509, _)
            | (_, "RequestTimeout" | "SlowDown" | "ConditionalRequestConflict" | "OperationAborted") => {
                Retry::Later(self.retry_after.map(|after| after.min(LONGEST_RETRY_AFTER)))
            }
            _ => Retry::Never,
        }
    }

    /// What a person can do about it, where that is known.
    fn advice(&self) -> &'static str {
        match (self.status, self.code.as_str()) {
            (404, _) if self.is_missing_bucket() => "; the bucket does not exist there",
            (_, "AuthorizationHeaderMalformed" | "PermanentRedirect") | (300..=399, _) => {
                "; the bucket is in another region or at another endpoint"
            }
            (_, "RequestTimeTooSkewed") => "; the clock of this machine is wrong",
            (403, "AccessDenied") => {
                "; the credentials lack the right (also ListBucket, without which S3 hides what is missing)"
            }
            _ => "",
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server answered {}", self.status)?;
        if !self.code.is_empty() {
            write!(f, " {}", self.code)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        f.write_str(self.advice())
    }
}

impl StdError for ServerError {}

impl Transport {
    fn error_kind(&self) -> ErrorKind {
        match self.kind {
            TransportKind::Connect => ErrorKind::Unavailable,
            TransportKind::Timeout => ErrorKind::Timeout,
            TransportKind::Broken => ErrorKind::Io,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Transport {}

/// Whether asking again may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Never,
    /// After a while: as long as the server says, or as one sees fit.
    Later(Option<Duration>),
}

/// A request that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    pub(super) retry: Retry,
    /// The server's answer, if there was one.
    pub(super) answer: Option<Box<ServerError>>,
}

impl Failure {
    /// A failure that asking again doesn't change.
    pub(super) fn last(error: Error) -> Self {
        Self { error, retry: Retry::Never, answer: None }
    }

    /// A failure that may pass.
    pub(super) fn passing(error: Error) -> Self {
        Self { error, retry: Retry::Later(None), answer: None }
    }

    /// What `object_store` failed with while doing `what`. Its own text is not used where ours is below it: it repeats
    /// URLs, which may hold signatures.
    pub(super) fn of(what: &str, error: &object_store::Error) -> Self {
        if let Some(answer) = find::<ServerError>(error) {
            let mut error = Error::new(answer.kind(), format!("{what}: {answer}"));
            if !answer.request_id.is_empty() {
                error = error.with("request_id", &answer.request_id);
            }
            if let Some(region) = &answer.region {
                error = error.with("bucket_region", region);
            }
            return Self { error, retry: answer.retry(), answer: Some(Box::new(answer.clone())) };
        }
        if let Some(transport) = find::<Transport>(error) {
            return Self::passing(Error::new(transport.error_kind(), format!("{what}: {transport}")));
        }
        if let object_store::Error::NotFound { .. } = error {
            // Of one request in a batch.
            let answer = ServerError { status: 404, ..ServerError::default() };
            let error = Error::new(ErrorKind::Missing, format!("{what}: there is no such object"));
            return Self { error, retry: Retry::Never, answer: Some(Box::new(answer)) };
        }
        // Something that was not expected of the answer, or no credentials were to be had.
        let text = shortened(&error.to_string());
        Self::passing(Error::new(ErrorKind::Io, format!("{what}: {text}")))
    }

    pub(super) fn is(&self, what: impl Fn(&ServerError) -> bool) -> bool {
        self.answer.as_deref().is_some_and(what)
    }
}

fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// The text between two marks, with the entities of XML resolved.
fn between(text: &str, open: &str, close: &str) -> Option<String> {
    let (_, rest) = text.split_once(open)?;
    let (found, _) = rest.split_once(close)?;
    let plain = found.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&apos;", "'");
    Some(shortened(&plain.replace("&amp;", "&")))
}

/// At most a line's worth, and one line.
fn shortened(text: &str) -> String {
    const MOST: usize = 300;
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST).collect();
    if text.chars().nth(MOST).is_some() { line + "…" } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&'static str, &str)], body: &str) -> ServerError {
        let headers = headers.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();
        ServerError::read(StatusCode::from_u16(status).unwrap(), &headers, body.as_bytes())
    }

    fn xml(status: u16, code: &str) -> ServerError {
        answer(status, &[], &format!("<?xml?><Error><Code>{code}</Code><Message>m</Message></Error>"))
    }

    #[test]
    fn an_answer_says_code_message_and_request_id() {
        let s3 = answer(
            503,
            &[("x-amz-request-id", "4711"), ("retry-after", "7")],
            "<Error><Code>SlowDown</Code><Message>Reduce &quot;your&quot; rate</Message></Error>",
        );
        assert_eq!(s3.to_string(), "the server answered 503 SlowDown: Reduce \"your\" rate");
        assert_eq!((s3.request_id.as_str(), s3.retry()), ("4711", Retry::Later(Some(Duration::from_secs(7)))));
        let azure = answer(404, &[("x-ms-error-code", "ContainerNotFound"), ("x-ms-request-id", "12")], "");
        assert_eq!((azure.kind(), azure.request_id.as_str()), (ErrorKind::Unavailable, "12"));
        let google = answer(404, &[], "{\"error\": {\"code\": 404, \"message\": \"No such object\"}}");
        assert_eq!((google.kind(), google.message.as_str()), (ErrorKind::Missing, "No such object"));
        let proxy = answer(502, &[], "bad\ngateway");
        assert_eq!(proxy.to_string(), "the server answered 502: bad gateway");
        assert_eq!(answer(502, &[], "<html>no use</html>").to_string(), "the server answered 502");
    }

    #[test]
    fn only_a_missing_object_is_a_miss() {
        for (answer, kind) in [
            (xml(404, "NoSuchKey"), ErrorKind::Missing),
            (answer(404, &[], ""), ErrorKind::Missing),
            (xml(404, "NoSuchBucket"), ErrorKind::Unavailable),
            (xml(404, "NoSuchUpload"), ErrorKind::Io),
            (xml(403, "AccessDenied"), ErrorKind::Permission),
            (xml(400, "ExpiredToken"), ErrorKind::Permission),
            (xml(301, "PermanentRedirect"), ErrorKind::Unavailable),
            (xml(400, "AuthorizationHeaderMalformed"), ErrorKind::Unavailable),
            (xml(507, ""), ErrorKind::NoSpace),
            (xml(500, "InternalError"), ErrorKind::Io),
            (xml(400, "InvalidRequest"), ErrorKind::Io),
        ] {
            assert_eq!(answer.kind(), kind, "{answer}");
        }
    }

    #[test]
    fn what_may_pass_is_asked_again() {
        for (status, again) in [(400, false), (403, false), (404, false), (409, false), (412, false), (501, false)] {
            assert_eq!(xml(status, "X").retry() != Retry::Never, again, "{status}");
        }
        for status in [408, 429, 500, 502, 503, 504] {
            assert_eq!(xml(status, "X").retry(), Retry::Later(None), "{status}");
        }
        assert_eq!(xml(409, "ConditionalRequestConflict").retry(), Retry::Later(None));
        let long = answer(503, &[("retry-after", "86400")], "");
        assert_eq!(long.retry(), Retry::Later(Some(LONGEST_RETRY_AFTER)));
    }

    #[test]
    fn our_errors_are_found_below_those_of_the_library() {
        use object_store::client::{HttpError, HttpErrorKind};
        let wrap = |source: HttpError| object_store::Error::Generic { store: "S3", source: Box::new(source) };
        let server = xml(403, "AccessDenied");
        let failure = Failure::of("PUT", &wrap(HttpError::new(HttpErrorKind::Unknown, server)));
        assert_eq!((failure.error.kind(), failure.retry), (ErrorKind::Permission, Retry::Never));
        let silent = Transport { kind: TransportKind::Timeout, message: "no answer".into() };
        let failure = Failure::of("GET", &wrap(HttpError::new(HttpErrorKind::Timeout, silent)));
        assert_eq!(failure.error.to_string(), "GET: no answer");
        assert_eq!((failure.error.kind(), failure.retry), (ErrorKind::Timeout, Retry::Later(None)));
    }
}
