//! As much of HTTP/1.1 as a server on loopback needs, with nothing in between: faults are made of single bytes.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};

/// A request, up to its body.
#[derive(Debug)]
pub struct Head {
    pub method: String,
    /// Decoded, with its leading slash.
    pub path: String,
    pub query: HashMap<String, String>,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Whether it is the first request of an upload.
    pub fn begins_upload(&self) -> bool {
        let has = |name| self.query.contains_key(name);
        match self.method.as_str() {
            "PUT" => !has("partNumber"),
            "POST" => has("uploads"),
            _ => false,
        }
    }

    pub fn body_bytes(&self) -> usize {
        self.header("content-length").map_or(0, |n| n.parse().unwrap_or(0))
    }

    /// Reads a request; `None` when the client has gone.
    pub fn read(stream: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let (method, target) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (decoded(name), decoded(value)))
            .collect();
        let path = decoded(path);
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            match line.trim_end().split_once(':') {
                Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.trim().to_owned()),
                None => return Ok(Some(Self { method, path, query, headers })),
            };
        }
    }
}

/// Reads up to `bytes` bytes of a body; fewer when the client has gone.
pub fn read_body(stream: &mut impl BufRead, bytes: usize) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    stream.take(bytes as u64).read_to_end(&mut body)?;
    Ok(body)
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Of HEAD, which announces a body and sends none.
    pub announced: Option<usize>,
}

impl Answer {
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), announced: None }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// An S3 error.
    pub fn error(status: u16, code: &str) -> Self {
        let message = format!("because {code}");
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{message}</Message></Error>");
        Self::new(status).body(body)
    }

    pub fn head(&self) -> Vec<u8> {
        use std::fmt::Write as _;
        let mut head = format!("HTTP/1.1 {} Whatever\r\nx-amz-request-id: request-4711\r\n", self.status);
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let _ = write!(head, "content-length: {}\r\n\r\n", self.announced.unwrap_or(self.body.len()));
        head.into_bytes()
    }

    pub fn send(&self, stream: &mut impl Write) -> io::Result<()> {
        stream.write_all(&self.head())?;
        stream.write_all(&self.body)
    }
}

/// Text as it stands in XML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

pub fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next().unwrap_or(b'0'), rest.next().unwrap_or(b'0')];
                bytes.push(u8::from_str_radix(&String::from_utf8_lossy(&digits), 16).unwrap_or(b'?'));
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
