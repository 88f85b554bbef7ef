//! The HTTP client below `object_store`: what it sends, how long it waits, and what it makes of failures.
//!
//! Every answer that is no success becomes a [`ServerError`] here, in one place for all providers, since `object_store`
//! itself keeps no headers of failed requests and nothing of those whose body it doesn't read.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::IF_MATCH;
use http::{HeaderValue, Method};
use http_body_util::BodyExt;
use object_store::client::{
    ClientConfigKey, ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use reqwest::Certificate;
use tokio::time::{Sleep, timeout};

use super::failure::{ServerError, Transport, TransportKind};
use crate::buffer::ScratchPool;
use crate::config::ObjectConfig;
use crate::sync::Mutex;

/// Bytes of a request's body that are copied for the connection at a time: few enough to stay in the core's cache, so
/// that the copy costs little, and to tell a slow server from a silent one.
const SLICE: usize = 128 << 10;

/// Bytes of slices that wait for reuse, at most.
const KEPT_SLICES: usize = 8 << 20;

/// No more of a failed request's answer is read.
const MOST_ERROR_BYTES: usize = 64 << 10;

/// Idle connections are closed before servers do it, which would make the next request fail.
const IDLE: Duration = Duration::from_secs(15);

tokio::task_local! {
    /// Makes the DELETEs of a future conditional on the object's `ETag`; `object_store` has no such option.
    static ONLY_IF_MATCH: HeaderValue;
}

/// Runs `delete`, whose DELETE requests shall only have an effect while the object's `ETag` is `etag`, on servers that
/// support it.
pub(super) async fn only_if_match<F: Future>(etag: &str, delete: F) -> F::Output {
    match HeaderValue::from_str(etag) {
        Ok(etag) => ONLY_IF_MATCH.scope(etag, delete).await,
        Err(_) => delete.await,
    }
}

/// Makes the HTTP clients of one store.
#[derive(Clone)]
pub(super) struct Connector {
    authorities: Vec<Certificate>,
    connect_timeout: Duration,
    read_timeout: Duration,
    connections: usize,
}

impl Connector {
    /// # Errors
    /// Why the authorities can't be read.
    pub(super) fn new(config: &ObjectConfig) -> Result<Self, String> {
        let authorities = match &config.ca_bundle {
            Some(path) => std::fs::read(path)
                .map_err(|e| e.to_string())
                .and_then(|pem| Certificate::from_pem_bundle(&pem).map_err(|e| e.to_string()))
                .and_then(|found| if found.is_empty() { Err("no certificate is in it".into()) } else { Ok(found) })
                .map_err(|why| format!("ca_bundle={:?} can't be used: {why}", path.display().to_string()))?,
            None => Vec::new(),
        };
        Ok(Self {
            authorities,
            connect_timeout: config.connect_timeout,
            read_timeout: config.read_timeout,
            connections: config.concurrency,
        })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // The clients that fetch credentials from the machine's own metadata service may do so without TLS.
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        let client = reqwest::Client::builder()
            .user_agent(concat!("kvtier/", env!("CARGO_PKG_VERSION")))
            .https_only(!allow_http)
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(self.connect_timeout)
            .tcp_user_timeout(self.read_timeout)
            .pool_max_idle_per_host(self.connections)
            .pool_idle_timeout(IDLE)
            .tls_certs_merge(self.authorities.iter().cloned())
            .build()
            .map_err(|e| object_store::Error::Generic { store: "HTTP", source: Box::new(transport(e)) })?;
        let slices = ScratchPool::new(SLICE, KEPT_SLICES / SLICE);
        Ok(HttpClient::new(Service { client, slices, read_timeout: self.read_timeout }))
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connector({} connections)", self.connections)
    }
}

/// A request's extension: sees every slice of the body's copy on its way out, in order, and may change it. Each sending
/// begins with a fresh one.
#[derive(Clone)]
pub(super) struct Filter(pub(super) Arc<dyn Fn() -> SliceFilter + Send + Sync>);

pub(super) type SliceFilter = Box<dyn FnMut(&mut [u8]) + Send>;

#[derive(Debug)]
struct Service {
    client: reqwest::Client,
    slices: Arc<ScratchPool>,
    read_timeout: Duration,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url = parts.uri.to_string().parse().map_err(|_| broken("the request's URL can't be used"))?;
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        if *request.method() == Method::DELETE {
            let _ = ONLY_IF_MATCH.try_with(|etag| request.headers_mut().insert(IF_MATCH, etag.clone()));
        }
        let filter = parts.extensions.get::<Filter>().map(|filter| (filter.0)());
        let lent = LentBody::new(body, filter, &self.slices);
        if !lent.is_empty() {
            *request.body_mut() = Some(reqwest::Body::wrap(lent.for_connection()));
        }
        let answer = self.with_patience(&lent, self.client.execute(request)).await?;
        let status = answer.status();
        let (parts, body) = http::Response::from(answer).into_parts();
        let body = Patient::new(body, self.read_timeout);
        if status.is_success() {
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)));
        }
        let body = read_some(body).await;
        Err(HttpError::new(HttpErrorKind::Unknown, ServerError::read(status, &parts.headers, &body)))
    }
}

impl Service {
    /// Waits for the head of an answer, as long as the request itself makes progress.
    async fn with_patience(
        &self,
        body: &LentBody,
        answer: impl Future<Output = reqwest::Result<reqwest::Response>>,
    ) -> Result<reqwest::Response, HttpError> {
        let mut answer = std::pin::pin!(answer);
        let mut seen = body.slices();
        loop {
            match timeout(self.read_timeout, answer.as_mut()).await {
                Ok(answered) => return answered.map_err(|e| http_error(transport(e))),
                Err(_) if body.slices() != seen => seen = body.slices(),
                Err(_) => return Err(silent(self.read_timeout)),
            }
        }
    }
}

/// A request's body, lent to the connection for as long as this value lives.
///
/// The connection may go on after the request was given up, or answered before its body was sent, and nothing can be
/// done about that from here. So it never gets the body itself, which may be a row: it gets copies, slice by slice, and
/// when this value is dropped it gets no more, and nobody reads the body any longer.
struct LentBody(Arc<Lending>);

struct Lending {
    /// `None` when the body was taken back.
    body: Mutex<Option<Slices>>,
    total: usize,
    slices: AtomicU64,
}

/// What is left of a body.
struct Slices {
    body: HttpRequestBody,
    piece: Bytes,
    left: usize,
    filter: Option<SliceFilter>,
    pool: Arc<ScratchPool>,
}

impl LentBody {
    fn new(body: HttpRequestBody, filter: Option<SliceFilter>, pool: &Arc<ScratchPool>) -> Self {
        let total = body.content_length();
        let slices = Slices { body, piece: Bytes::new(), left: total, filter, pool: Arc::clone(pool) };
        Self(Arc::new(Lending { body: Mutex::new(Some(slices)), total, slices: AtomicU64::new(0) }))
    }

    fn is_empty(&self) -> bool {
        self.0.total == 0
    }

    fn for_connection(&self) -> Borrowed {
        Borrowed(Arc::clone(&self.0))
    }

    /// How many slices the connection has taken.
    fn slices(&self) -> u64 {
        self.0.slices.load(Ordering::Relaxed)
    }
}

impl Drop for LentBody {
    fn drop(&mut self) {
        *self.0.body.lock() = None;
    }
}

/// The connection's side of a [`LentBody`].
struct Borrowed(Arc<Lending>);

impl http_body::Body for Borrowed {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, HttpError>>> {
        let mut lent = self.0.body.lock();
        let Some(slices) = &mut *lent else {
            return Poll::Ready(Some(Err(broken("the request was given up"))));
        };
        while slices.piece.is_empty() {
            match ready!(Pin::new(&mut slices.body).poll_frame(cx)) {
                Some(frame) => slices.piece = frame?.into_data().unwrap_or_default(),
                None => return Poll::Ready(None),
            }
        }
        let len = slices.piece.len().min(SLICE);
        let mut slice = match slices.pool.take() {
            Ok(slice) => slice,
            Err(error) => return Poll::Ready(Some(Err(broken(error.message())))),
        };
        slice[..len].copy_from_slice(&slices.piece.split_to(len));
        if let Some(filter) = &mut slices.filter {
            filter(&mut slice[..len]);
        }
        slices.left -= len;
        self.0.slices.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_owner(slice).slice(..len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.body.lock().as_ref().is_some_and(|slices| slices.left == 0)
    }

    fn size_hint(&self) -> http_body::SizeHint {
        let left = self.0.body.lock().as_ref().map_or(0, |slices| slices.left);
        http_body::SizeHint::with_exact(left as u64)
    }
}

/// An answer's body that fails when nothing has come for a while.
struct Patient {
    body: reqwest::Body,
    patience: Duration,
    last: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Patient {
    fn new(body: reqwest::Body, patience: Duration) -> Self {
        Self { body, patience, last: Instant::now(), alarm: Box::pin(tokio::time::sleep(patience)) }
    }
}

impl http_body::Body for Patient {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.last = Instant::now();
            return Poll::Ready(frame.map(|f| f.map_err(|e| http_error(transport(e)))));
        }
        // The alarm is set anew only when it goes off: that is cheaper than with every frame.
        while self.alarm.as_mut().poll(cx).is_ready() {
            let due = self.last + self.patience;
            if Instant::now() >= due {
                return Poll::Ready(Some(Err(silent(self.patience))));
            }
            self.alarm.as_mut().reset(due.into());
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// The beginning of a failed request's answer; what can't be read of it doesn't matter.
async fn read_some(mut body: Patient) -> Vec<u8> {
    let mut read = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Some(data) = frame.data_ref() {
            read.extend_from_slice(&data[..data.len().min(MOST_ERROR_BYTES - read.len())]);
        }
        if read.len() == MOST_ERROR_BYTES {
            break;
        }
    }
    read
}

fn http_error(transport: Transport) -> HttpError {
    let kind = match transport.kind {
        TransportKind::Connect => HttpErrorKind::Connect,
        TransportKind::Timeout => HttpErrorKind::Timeout,
        TransportKind::Broken => HttpErrorKind::Interrupted,
    };
    HttpError::new(kind, transport)
}

fn silent(patience: Duration) -> HttpError {
    let message = format!("the server was silent for {patience:?}");
    http_error(Transport { kind: TransportKind::Timeout, message })
}

fn broken(message: &str) -> HttpError {
    http_error(Transport { kind: TransportKind::Broken, message: message.into() })
}

/// The whole story in one line, without the URL, which may hold a signature.
fn transport(error: reqwest::Error) -> Transport {
    let error = error.without_url();
    let kind = match () {
        () if error.is_connect() => TransportKind::Connect,
        () if error.is_timeout() => TransportKind::Timeout,
        () => TransportKind::Broken,
    };
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors repeat what is below them.
        if !message.contains(&cause_text) {
            message = [message, cause_text].join(": ");
        }
        source = cause.source();
    }
    Transport { kind, message }
}
