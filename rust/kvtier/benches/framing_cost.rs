//! What framing costs a store and a load in CPU time: raw and framed blocks in turns on one machine, in one run.
//!
//! Prints medians of CPU seconds per GB and their difference. Writes about 9 GB below cargo's build directory, or below
//! `KVTIER_BENCH_DIR`.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

mod roots;

use kvtier::identity::NamespaceKind;
use roots::{Bench, Roots, cpu_seconds};

const TURNS: usize = 7;
const TURN_BYTES: usize = 256 << 20;
const THREADS: usize = 8;

/// GB/s and CPU seconds per GB of one turn.
#[derive(Clone, Copy)]
struct Turn {
    speed: f64,
    cpu: f64,
}

fn turn(row_bytes: usize, run: impl FnOnce(usize) -> std::time::Duration) -> Turn {
    let blocks = TURN_BYTES / row_bytes;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^53 bytes")]
    let gb = (blocks * row_bytes) as f64 / 1e9;
    let before = cpu_seconds();
    let took = run(blocks);
    Turn { speed: gb / took.as_secs_f64(), cpu: (cpu_seconds() - before) / gb }
}

fn median(turns: &[Turn], of: impl Fn(&Turn) -> f64) -> f64 {
    let mut values: Vec<_> = turns.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn report(what: &str, row_bytes: usize, [raw, framed]: [&[Turn]; 2]) {
    let [raw_cpu, framed_cpu] = [raw, framed].map(|turns| median(turns, |t| t.cpu));
    let [raw_speed, framed_speed] = [raw, framed].map(|turns| median(turns, |t| t.speed));
    println!(
        "{what:<5} {:>5} KiB  raw {raw_speed:.2} GB/s {raw_cpu:.3} s/GB  framed {framed_speed:.2} GB/s {framed_cpu:.3} s/GB  \
         framing costs {:+.3} CPU s/GB, speed x{:.2}",
        row_bytes >> 10,
        framed_cpu - raw_cpu,
        framed_speed / raw_speed,
    );
}

fn main() {
    // `cargo test --benches` and `cargo bench -- --list` only ask what there is.
    if std::env::args().any(|arg| arg == "--test" || arg == "--list") {
        return;
    }
    let mut roots = Roots::new(15 << 30);
    for row_bytes in [64 << 10, 256 << 10, 2 << 20] {
        let mut benches = [NamespaceKind::Vllm, NamespaceKind::Kvtier].map(|kind| roots.open(kind, row_bytes, THREADS));
        let mut stores = [Vec::new(), Vec::new()];
        let mut loads = [Vec::new(), Vec::new()];
        for _ in 0..TURNS {
            for (bench, turns) in benches.iter_mut().zip(&mut stores) {
                turns.push(turn(row_bytes, |blocks| Bench::store(bench, blocks)));
            }
        }
        for _ in 0..TURNS {
            for (bench, turns) in benches.iter().zip(&mut loads) {
                turns.push(turn(row_bytes, |blocks| bench.load(blocks)));
            }
        }
        report("store", row_bytes, stores.each_ref().map(Vec::as_slice));
        report("load", row_bytes, loads.each_ref().map(Vec::as_slice));
    }
}
