//! The same server behind TLS, with a certificate that nobody trusts who isn't told to.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::http::{self, Head};
use super::{Server, Shared};

/// Another port of a [`Server`].
pub struct TlsFront {
    port: u16,
    authority: tempfile::NamedTempFile,
}

impl TlsFront {
    /// With a certificate for `host`.
    pub fn start(server: &Server, host: &str) -> Self {
        let issued = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        let authority = tempfile::NamedTempFile::new().unwrap();
        authority.as_file().write_all(issued.cert.pem().as_bytes()).unwrap();
        let key = PrivateKeyDer::Pkcs8(issued.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issued.cert.into()], key)
            .unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (config, shared) = (Arc::new(config), Arc::clone(&server.shared));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, shared) = (Arc::clone(&config), Arc::clone(&shared));
                std::thread::spawn(move || serve(config, &shared, stream));
            }
        });
        Self { port, authority }
    }

    /// `https://127.0.0.1:port`
    pub fn endpoint(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The certificate, as a file for `ca_bundle`.
    pub fn authority(&self) -> &Path {
        self.authority.path()
    }
}

fn serve(config: Arc<ServerConfig>, shared: &Shared, stream: TcpStream) -> std::io::Result<()> {
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    while let Some(head) = Head::read(&mut stream)? {
        let body = http::read_body(&mut stream, head.body_bytes())?;
        let answer = shared.bucket.lock().unwrap().answer(&head, body);
        answer.send(stream.get_mut())?;
        stream.get_mut().flush()?;
    }
    Ok(())
}
