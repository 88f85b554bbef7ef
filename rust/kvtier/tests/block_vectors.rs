//! Frames against golden blocks. They never change; `tests/test_block_format.py` derives the same bytes from the
//! format's text alone.

#![allow(clippy::unwrap_used, reason = "a vector that can't be read is a failed test")]

use std::fs;
use std::path::Path;

use kvtier::frame::{BlockFormat, ChecksumAlgorithm, TRAILER_BYTES, Trailer, Verify};
use kvtier::layout::BlockKey;
use serde_json::Value;

/// One golden block: what went into it, and its bytes.
struct Golden {
    payload: Vec<u8>,
    trailer: Option<Trailer>,
    key: BlockKey,
    identity: [u8; 32],
    bytes: Vec<u8>,
}

impl Golden {
    fn format(&self) -> BlockFormat {
        match &self.trailer {
            None => BlockFormat::raw(self.payload.len()),
            Some(trailer) => BlockFormat::framed(self.payload.len(), self.identity, trailer.algorithm),
        }
    }
}

fn golden_blocks() -> Vec<Golden> {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/blocks");
    let file: Value = serde_json::from_slice(&fs::read(vectors.join("blocks.json")).unwrap()).unwrap();
    let blocks = file["blocks"].as_array().unwrap().iter();
    blocks.map(|v| golden(v, fs::read(vectors.join(v["file"].as_str().unwrap())).unwrap())).collect()
}

fn golden(vector: &Value, bytes: Vec<u8>) -> Golden {
    let number = |name: &str| vector[name].as_u64().unwrap();
    let payload: Vec<u8> = (0..number("payload_bytes")).map(|i| ((i * i + 7 * i) % 251) as u8).collect();
    let key = BlockKey::new(&unhex(&vector["key"])).unwrap();
    let identity: [u8; 32] = unhex(&vector["identity"]).try_into().unwrap();
    let mut writer = [0; 16];
    let name = vector["writer"].as_str().unwrap().as_bytes();
    writer[..name.len()].copy_from_slice(name);
    let trailer = ChecksumAlgorithm::from_code(number("algorithm") as u16).map(|algorithm| Trailer {
        algorithm,
        payload_bytes: payload.len() as u64,
        payload_checksum: algorithm.of([payload.as_slice()]),
        key,
        identity,
        created_unix_ns: number("created_unix_ns"),
        placement: number("placement"),
        writer,
    });
    Golden { payload, trailer, key, identity, bytes }
}

fn unhex(text: &Value) -> Vec<u8> {
    let digits = text.as_str().unwrap();
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn golden_blocks_are_written_byte_for_byte() {
    for golden in golden_blocks() {
        let mut block = golden.payload.clone();
        if let Some(trailer) = &golden.trailer {
            block.resize(golden.format().block_bytes() - TRAILER_BYTES, 0);
            let mut page = [0xFF; TRAILER_BYTES];
            trailer.encode(&mut page);
            block.extend(page);
        }
        assert!(block == golden.bytes, "{:?}", golden.trailer);
    }
}

#[test]
fn golden_blocks_are_read() {
    for golden in golden_blocks() {
        let format = golden.format();
        format.check_length(golden.bytes.len() as u64).unwrap();
        let (payload, tail) = golden.bytes.split_at(format.payload_bytes());
        format.verify(golden.key, [payload], tail, Verify::Always).unwrap();
        if let Some(trailer) = golden.trailer {
            assert_eq!(Trailer::decode(tail.last_chunk().unwrap()).unwrap(), trailer);
        }
    }
}

#[test]
fn sealing_differs_from_the_golden_blocks_only_in_time_place_and_writer() {
    for golden in golden_blocks() {
        let format = golden.format();
        let mut tail = vec![0xEE; format.tail_bytes()];
        format.seal(golden.key, golden.payload.chunks(999), std::time::SystemTime::now(), &mut tail);
        let Some(trailer) = golden.trailer else { continue };
        let (padding, page) = tail.split_last_chunk().unwrap();
        assert!(padding.iter().all(|b| *b == 0));
        let sealed = Trailer::decode(page).unwrap();
        assert!(sealed.writer.starts_with(env!("CARGO_PKG_VERSION").as_bytes()));
        assert_eq!(sealed.placement, 0);
        let Trailer { created_unix_ns, placement, writer, .. } = trailer;
        assert_eq!(Trailer { created_unix_ns, placement, writer, ..sealed }, trailer);
    }
}
