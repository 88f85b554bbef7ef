//! A pool's pages against golden ones. They never change; `tests/test_pool_format.py` derives the same bytes from the
//! format's text alone.

#![allow(clippy::unwrap_used, reason = "a vector that can't be read is a failed test")]

use std::fs;
use std::path::Path;

use kvtier::error::ErrorKind;
use kvtier::layout::BlockKey;
use kvtier::store::packed::format::{
    Entry, Geometry, Header, KeyName, NamespaceRecord, Page, PoolId, SlotState, Superblock, TablePage,
};
use serde_json::Value;

fn golden(file: &str) -> (Value, Page) {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/pool");
    let described: Value = serde_json::from_slice(&fs::read(vectors.join("pages.json")).unwrap()).unwrap();
    (described["pages"][file].clone(), fs::read(vectors.join(file)).unwrap().try_into().unwrap())
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap()
}

fn bytes<const N: usize>(value: &Value, name: &str) -> [u8; N] {
    unhex(&value[name]).try_into().unwrap()
}

fn unhex(text: &Value) -> Vec<u8> {
    let digits = text.as_str().unwrap();
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
}

fn superblock() -> (Superblock, Page) {
    let (v, page) = golden("superblock.bin");
    let superblock = Superblock {
        pool: PoolId(bytes(&v, "pool")),
        segment_bytes: number(&v, "segment_bytes"),
        max_bytes: number(&v, "max_bytes"),
        min_free_bytes: number(&v, "min_free_bytes"),
        created_unix_ns: number(&v, "created_unix_ns"),
    };
    (superblock, page)
}

fn record() -> (NamespaceRecord, Page) {
    let (v, page) = golden("record.bin");
    let record = NamespaceRecord {
        pool: PoolId(bytes(&v, "pool")),
        epoch: number(&v, "epoch"),
        identity: bytes(&v, "identity"),
        name: v["name"].as_str().unwrap().to_owned(),
    };
    (record, page)
}

fn header() -> (Header, Page, Value) {
    let (v, page) = golden("header.bin");
    let header = Header {
        pool: PoolId(bytes(&v, "pool")),
        segment: number(&v, "segment") as u32,
        slots: number(&v, "slots") as u32,
        slot_bytes: number(&v, "slot_bytes"),
        payload_bytes: number(&v, "payload_bytes"),
        generation: number(&v, "generation"),
        epoch: number(&v, "epoch"),
        born_unix_ns: number(&v, "born_unix_ns"),
        owner: bytes(&v, "owner"),
        identity: bytes(&v, "identity"),
        namespace: v["namespace"].as_str().unwrap().to_owned(),
    };
    (header, page, v)
}

fn table() -> (TablePage, Page) {
    let (v, page) = golden("table.bin");
    let generation = number(&v, "generation");
    let (segment, at) = (number(&v, "segment") as u32, number(&v, "number") as u32);
    let mut table = TablePage::empty(PoolId(bytes(&v, "pool")), segment, at, generation);
    table.sequence = number(&v, "sequence");
    for (index, entry) in v["entries"].as_object().unwrap() {
        table.entries[index.parse::<usize>().unwrap()] = Some(Entry {
            state: if entry["state"] == "dead" { SlotState::Dead } else { SlotState::Block },
            name: KeyName::of(&BlockKey::new(&unhex(&entry["key"])).unwrap()),
            payload_bytes: number(entry, "payload_bytes") as u32,
            generation,
            created_unix_ns: number(entry, "created_unix_ns"),
        });
    }
    (table, page)
}

#[test]
fn golden_pages_are_written_and_read_byte_for_byte() {
    let (superblock, page) = superblock();
    assert!(superblock.encode() == page);
    assert_eq!(Superblock::decode(&page).unwrap(), superblock);
    let (record, page) = record();
    assert!(record.encode() == page);
    assert_eq!(NamespaceRecord::decode(&page).unwrap(), record);
    let (header, page, described) = header();
    assert!(header.encode() == page);
    assert_eq!(Header::decode(&page).unwrap(), header);
    let geometry = Geometry::stated(&header, number(&described, "segment_bytes")).unwrap();
    assert_eq!(geometry.slot_offset(0), number(&described, "first_slot_at"));
    let (table, page) = table();
    assert!(table.encode() == page);
    let read = TablePage::decode(&page, table.pool, table.segment, table.number, table.generation);
    assert_eq!(read.unwrap(), table);
}

type Read = fn(&Page) -> kvtier::error::Result<()>;

/// What reading each kind of page comes to.
fn readings() -> Vec<(&'static str, Page, Read)> {
    vec![
        ("superblock", superblock().1, |page| Superblock::decode(page).map(drop)),
        ("record", record().1, |page| NamespaceRecord::decode(page).map(drop)),
        ("header", header().1, |page| Header::decode(page).map(drop)),
        ("table", table().1, |page| {
            let known = table().0;
            TablePage::decode(page, known.pool, known.segment, known.number, known.generation).map(drop)
        }),
    ]
}

#[test]
fn any_flipped_bit_is_noticed() {
    for (what, page, read) in readings() {
        for byte in (0..300).chain(4000..4096) {
            let mut damaged = page;
            damaged[byte] ^= 1 << (byte % 8);
            assert_eq!(read(&damaged).unwrap_err().kind(), ErrorKind::Foreign, "{what}, byte {byte}");
        }
    }
}

#[test]
fn a_newer_version_is_told_from_damage() {
    for (what, mut page, read) in readings() {
        if what == "table" {
            continue; // Its header says which version it has.
        }
        page[8] = 2;
        page[4092..].fill(0);
        let crc = crc_fast::crc32_iscsi(&page);
        page[4092..].copy_from_slice(&crc.to_le_bytes());
        let error = read(&page).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnsupportedVersion, "{what}");
        assert!(error.message().contains("format version 2"), "{error}");
    }
}

#[test]
fn a_table_page_is_its_own_places_and_generations_only() {
    let (known, page) = table();
    let read = |segment, number, generation| TablePage::decode(&page, known.pool, segment, number, generation);
    assert_eq!(read(known.segment + 1, known.number, known.generation).unwrap_err().kind(), ErrorKind::Foreign);
    assert_eq!(read(known.segment, known.number + 1, known.generation).unwrap_err().kind(), ErrorKind::Foreign);
    // What was written for another generation says nothing about this one.
    let later = read(known.segment, known.number, known.generation + 1).unwrap();
    assert!(later.entries.iter().all(Option::is_none));
    let never = TablePage::decode(&[0; 4096], known.pool, 9, 0, 5).unwrap();
    assert_eq!(never, TablePage::empty(known.pool, 9, 0, 5));
}

#[test]
fn short_keys_stand_in_the_entry_and_long_ones_by_their_digest() {
    for hash_bytes in 3..=64 {
        let key = BlockKey::from_parts(&vec![hash_bytes; usize::from(hash_bytes)], 7).unwrap();
        let name = KeyName::of(&key);
        assert_eq!(name.key(), (hash_bytes <= 36).then_some(key), "{hash_bytes}");
        assert_ne!(name, KeyName::of(&BlockKey::from_parts(&vec![hash_bytes; usize::from(hash_bytes)], 8).unwrap()));
    }
}
