//! Hit rates of the pool's policies on a trace of requests: JSON lines with `hash_ids`, the ids of a prefix's blocks.
//!
//! `KVTIER_TRACE=trace.jsonl cargo bench --bench policy`; a trace that ends in `.xz` is unpacked by the program of that
//! name.

#![allow(clippy::print_stdout, reason = "a benchmark's output")]
#![allow(clippy::unwrap_used, reason = "a trace that can't be read ends the benchmark")]
#![allow(clippy::cast_precision_loss, missing_docs, unreachable_pub, reason = "a benchmark")]

mod simulator;

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use kvtier::store::packed::policy::{ColdestFirst, Fifo, Lru, Policy, SecondChance};
use simulator::Plain;

/// Segments of the pools.
const SEGMENTS: usize = 64;

fn main() {
    let Ok(path) = std::env::var("KVTIER_TRACE") else {
        println!("KVTIER_TRACE names no trace; nothing was measured");
        return;
    };
    let text = if Path::new(&path).extension().is_some_and(|ending| ending == "xz") {
        let unpacked = Command::new("xz").args(["--decompress", "--stdout", &path]).output().unwrap();
        assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
        String::from_utf8(unpacked.stdout).unwrap()
    } else {
        fs::read_to_string(path).unwrap()
    };
    let requests: Vec<Vec<u64>> = text.lines().map(ids).collect();
    let distinct = requests.iter().flatten().collect::<HashSet<_>>().len();
    println!(
        "{} requests, {distinct} distinct blocks, {SEGMENTS} segments; hit rate (share written again)",
        requests.len()
    );
    let policies: [&dyn Policy; 4] = [&Fifo, &Lru, &SecondChance, &ColdestFirst];
    let plain = [(Plain::Fifo, "blocks, fifo"), (Plain::Lru, "blocks, lru")];
    let names = plain.iter().map(|(_, name)| *name).chain(policies.iter().map(|policy| policy.name()));
    println!("{:>12} {}", "pool", names.map(|name| format!("{name:>22}")).collect::<Vec<_>>().concat());
    for share in [20, 10, 4] {
        let slots = distinct / share / SEGMENTS;
        let plain = plain.map(|(plain, _)| {
            let outcome = simulator::run_plain(plain, slots * SEGMENTS, requests.iter().map(Vec::as_slice));
            format!("{:>22}", format!("{:.1} %", 100.0 * outcome.hit_rate()))
        });
        let cells = policies.map(|policy| {
            let outcome = simulator::run(policy, slots, SEGMENTS, requests.iter().map(Vec::as_slice));
            let (hits, kept) = (100.0 * outcome.hit_rate(), 100.0 * outcome.kept_share());
            format!("{:>22}", format!("{hits:.1} % ({kept:.0} %)"))
        });
        println!("{:>10} % {}{}", 100 / share, plain.concat(), cells.concat());
    }
}

fn ids(line: &str) -> Vec<u64> {
    let request: serde_json::Value = serde_json::from_str(line).unwrap();
    request["hash_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}
