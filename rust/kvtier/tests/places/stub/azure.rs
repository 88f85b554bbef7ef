//! The same objects, as Azure serves them: by other words, and deleted in batches.

use std::fmt::Write;

use super::BUCKET;
use super::bucket::Bucket;
use super::http::{self, Answer, Head};

impl Bucket {
    pub fn answer_as_azure(&mut self, head: &Head, name: &str, body: Vec<u8>) -> Answer {
        let comp = head.query.get("comp").map_or("", String::as_str);
        match (head.method.as_str(), comp) {
            ("GET", "list") => self.list_as_azure(head),
            ("POST", "batch") => self.delete_batch(head, &body),
            ("PUT", "block") => {
                self.uploads.entry(name.to_owned()).or_default().insert(head.query["blockid"].clone(), body);
                Answer::new(201)
            }
            ("PUT", "blocklist") => {
                let blocks = self.uploads.remove(name).unwrap_or_default();
                let list = String::from_utf8_lossy(&body).into_owned();
                let named = list.split("<Uncommitted>").skip(1).map(|rest| rest.split_once('<').unwrap().0);
                let whole = named.flat_map(|id| blocks[id].clone()).collect();
                let etag = self.put(name, whole);
                Answer::new(201).with("etag", etag)
            }
            ("PUT", _) if head.header("x-ms-blob-type") != Some("BlockBlob") => error(400, "MissingRequiredHeader"),
            ("PUT", _) if head.header("if-none-match") == Some("*") && self.objects.contains_key(name) => {
                error(409, "BlobAlreadyExists")
            }
            ("PUT", _) => {
                let etag = self.put(name, body);
                Answer::new(201).with("etag", etag)
            }
            ("GET" | "HEAD", _) => {
                let answer = self.get(head, name);
                if answer.status == 404 { error(404, "BlobNotFound") } else { answer }
            }
            _ => error(405, "UnsupportedHttpVerb"),
        }
    }

    fn list_as_azure(&self, head: &Head) -> Answer {
        let after = head.query.get("marker").filter(|marker| !marker.is_empty()).cloned();
        let (found, truncated) = self.page(head.query.get("prefix").map_or("", String::as_str), after);
        let blobs: Vec<_> = found
            .iter()
            .map(|(name, object)| {
                format!(
                    "<Blob><Name>{}</Name><Properties><Last-Modified>Sun, 06 Nov 1994 08:49:37 GMT</Last-Modified>\
                     <Content-Length>{}</Content-Length><Content-Type>x</Content-Type></Properties></Blob>",
                    http::escaped(name),
                    object.bytes.len(),
                )
            })
            .collect();
        let next = found.last().filter(|_| truncated).map_or("", |(name, _)| name);
        Answer::new(200).body(format!(
            "<EnumerationResults><Blobs>{}</Blobs><NextMarker>{}</NextMarker></EnumerationResults>",
            blobs.concat(),
            http::escaped(next),
        ))
    }

    fn delete_batch(&mut self, head: &Head, body: &[u8]) -> Answer {
        let boundary = head.header("content-type").unwrap().split_once("boundary=").unwrap().1.to_owned();
        let mut answers = String::new();
        let requests = String::from_utf8_lossy(body);
        let targets = requests.lines().filter_map(|line| line.strip_prefix("DELETE ")?.split(' ').next());
        for (number, target) in targets.enumerate() {
            let path = http::decoded(target.trim_start_matches('/'));
            let name = path.strip_prefix(BUCKET).unwrap().trim_start_matches('/');
            let status = if self.objects.remove(name).is_some() { "202 Accepted" } else { "404 Not Found" };
            let _ = write!(
                answers,
                "--{boundary}\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 {status}\r\n\r\n\r\n"
            );
        }
        let _ = write!(answers, "--{boundary}--\r\n");
        Answer::new(202).with("content-type", format!("multipart/mixed; boundary={boundary}")).body(answers)
    }
}

fn error(status: u16, code: &'static str) -> Answer {
    Answer::error(status, code).with("x-ms-error-code", code)
}
