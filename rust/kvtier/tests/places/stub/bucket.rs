//! The objects, and what S3 answers to requests for them.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::BUCKET;
use super::http::{self, Answer, Head};

/// Short pages, so that tests see more than one.
pub const PAGE: usize = 7;

pub struct Bucket {
    pub objects: BTreeMap<String, Object>,
    /// Parts of multipart uploads, by upload and number.
    pub uploads: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Whether a PUT can be made conditional.
    pub conditions: bool,
    /// Counts up with every write, so that no two objects have one `ETag`.
    writes: u64,
}

#[derive(Clone, Debug)]
pub struct Object {
    pub bytes: Vec<u8>,
    pub etag: String,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), uploads: BTreeMap::new(), conditions: true, writes: 0 }
    }
}

impl Bucket {
    pub fn put(&mut self, name: &str, bytes: Vec<u8>) -> String {
        self.writes += 1;
        let etag = format!("\"{:032x}\"", self.writes);
        self.objects.insert(name.to_owned(), Object { bytes, etag: etag.clone() });
        etag
    }

    pub fn answer(&mut self, head: &Head, body: Vec<u8>) -> Answer {
        let path = head.path.trim_start_matches('/');
        let (bucket, name) = path.split_once('/').unwrap_or((path, ""));
        if bucket != BUCKET {
            return without_body(head, Answer::error(404, "NoSuchBucket"));
        }
        let answer = match head.method.as_str() {
            _ if head.header("x-ms-version").is_some() => self.answer_as_azure(head, name, body),
            "GET" if name.is_empty() => self.list(head),
            "GET" | "HEAD" => self.get(head, name),
            "PUT" if head.query.contains_key("partNumber") => self.put_part(head, body),
            "PUT" if head.header("if-none-match").is_some() && !self.conditions => Answer::error(501, "NotImplemented"),
            // Google asks for the generation that no object has.
            "PUT" if head.header("x-goog-if-generation-match") == Some("0") && self.objects.contains_key(name) => {
                Answer::error(412, "PreconditionFailed")
            }
            "PUT" if head.header("if-none-match") == Some("*") && self.objects.contains_key(name) => {
                Answer::error(412, "PreconditionFailed")
            }
            "PUT" => {
                let etag = self.put(name, body);
                Answer::new(200).with("etag", etag)
            }
            "DELETE" if head.query.contains_key("uploadId") => {
                self.uploads.remove(&head.query["uploadId"]);
                Answer::new(204)
            }
            "DELETE" => match (self.objects.get(name), head.header("if-match")) {
                (Some(object), Some(etag)) if object.etag != etag => Answer::error(412, "PreconditionFailed"),
                _ => {
                    self.objects.remove(name);
                    Answer::new(204)
                }
            },
            "POST" if head.query.contains_key("uploads") => {
                self.writes += 1;
                let id = format!("upload-{}", self.writes);
                self.uploads.insert(id.clone(), BTreeMap::new());
                Answer::new(200).body(format!(
                    "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                ))
            }
            "POST" => match self.uploads.remove(head.query.get("uploadId").map_or("", String::as_str)) {
                None => Answer::error(404, "NoSuchUpload"),
                Some(parts) => {
                    let etag = self.put(name, parts.into_values().flatten().collect());
                    let result = format!("<ETag>{}</ETag>", http::escaped(&etag));
                    Answer::new(200)
                        .body(format!("<CompleteMultipartUploadResult>{result}</CompleteMultipartUploadResult>"))
                }
            },
            _ => Answer::error(405, "MethodNotAllowed"),
        };
        without_body(head, answer)
    }

    pub fn get(&self, head: &Head, name: &str) -> Answer {
        let Some(object) = self.objects.get(name) else { return Answer::error(404, "NoSuchKey") };
        if head.header("if-match").is_some_and(|etag| etag != object.etag) {
            return Answer::error(412, "PreconditionFailed");
        }
        let found = |status| {
            Answer::new(status).with("etag", object.etag.clone()).with("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")
        };
        let size = object.bytes.len();
        match head.header("range").and_then(|range| range.strip_prefix("bytes=")).and_then(|r| r.split_once('-')) {
            None => found(200).body(object.bytes.clone()),
            Some((from, to)) => {
                let from: usize = from.parse().unwrap();
                let end = to.parse::<usize>().map_or(size, |to| to + 1).min(size);
                if from >= end {
                    return Answer::error(416, "InvalidRange");
                }
                found(206)
                    .with("content-range", format!("bytes {from}-{}/{size}", end - 1))
                    .body(&object.bytes[from..end])
            }
        }
    }

    fn put_part(&mut self, head: &Head, body: Vec<u8>) -> Answer {
        // Sorts as numbers do.
        let number = format!("{:0>5}", head.query["partNumber"]);
        match self.uploads.get_mut(&head.query["uploadId"]) {
            None => Answer::error(404, "NoSuchUpload"),
            Some(parts) => {
                let etag = format!("\"part-{number}\"");
                parts.insert(number, body);
                Answer::new(200).with("etag", etag)
            }
        }
    }

    /// The first objects after a name, and whether there are more.
    pub fn page(&self, prefix: &str, after: Option<String>) -> (Vec<(&String, &Object)>, bool) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let named = self.objects.range((from, Bound::Unbounded)).filter(|(name, _)| name.starts_with(prefix));
        let mut found: Vec<_> = named.take(PAGE + 1).collect();
        let truncated = found.len() > PAGE;
        found.truncate(PAGE);
        (found, truncated)
    }

    fn list(&self, head: &Head) -> Answer {
        let after = head.query.get("continuation-token").or_else(|| head.query.get("start-after"));
        let (found, truncated) = self.page(head.query.get("prefix").map_or("", String::as_str), after.cloned());
        let contents: Vec<_> = found
            .iter()
            .map(|(name, object)| {
                format!(
                    "<Contents><Key>{}</Key><Size>{}</Size><ETag>{}</ETag>\
                     <LastModified>1994-11-06T08:49:37.000Z</LastModified></Contents>",
                    http::escaped(name),
                    object.bytes.len(),
                    http::escaped(&object.etag),
                )
            })
            .collect();
        let next = found
            .last()
            .filter(|_| truncated)
            .map_or(String::new(), |(name, _)| format!("<NextContinuationToken>{name}</NextContinuationToken>"));
        Answer::new(200).body(format!(
            "<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{}{next}</ListBucketResult>",
            contents.concat()
        ))
    }
}

fn without_body(head: &Head, mut answer: Answer) -> Answer {
    if head.method == "HEAD" {
        answer.announced = Some(answer.body.len());
        answer.body = Vec::new();
    }
    answer
}
