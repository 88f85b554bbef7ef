//! Threads, a ring, and a plain loop around `io_uring`, moving rows of a file that was written once, past the page cache;
//! and whole blocks to and from a pool whose segments were written before.
//!
//! `cargo bench -p kvtier --bench io_engines`, with `KVTIER_BENCH_DIR` for the disk. Everything is measured by turns, and
//! the medians are printed with their ratio to the plain loop, which is what a program can have that does nothing else.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark that can't go on stops; it prints a table")]
#![allow(clippy::cast_precision_loss, reason = "sums of a few hundred million bytes")]

mod roots;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use io_uring::{IoUring, opcode, types};
use kvtier::buffer::{HostRows, IoMemory, Region, RowLease};
use kvtier::config::IoEngineChoice;
use kvtier::frame::ChecksumAlgorithm;
use kvtier::io::{Completion, Direction, IoEngine, ThreadEngine, Transfer, UringEngine};
use roots::{Bench, Roots, cpu_seconds};
use rustix::fs::OFlags;

const FILE_BYTES: usize = 256 << 20;
const ROUNDS: usize = 7;
const UNDER_WAY: usize = 64;
const THREADS: usize = 8;

/// What moved in which time.
#[derive(Clone, Copy)]
struct Speed {
    gb_per_second: f64,
    cpu_per_gb: f64,
}

fn main() {
    let dir = std::env::var_os("KVTIER_BENCH_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let path = tempfile::Builder::new().prefix("kvtier-bench-").tempfile_in(dir).unwrap();
    let open = |flags: OFlags| {
        let flags = flags.bits().cast_signed();
        Arc::new(File::options().read(true).write(true).custom_flags(flags).open(path.path()).unwrap())
    };
    std::io::copy(&mut std::io::repeat(7).take(FILE_BYTES as u64), &mut &*open(OFlags::empty())).unwrap();
    let file = open(OFlags::DIRECT);
    let mut roots = Roots::new(8 << 30);
    println!("| rows | | | GB/s | of the loop | CPU s/GB | of the loop |");
    println!("|---|---|---|---:|---:|---:|---:|");
    for row_bytes in [64 << 10, 256 << 10, 2 << 20] {
        let rows = HostRows::new(UNDER_WAY, row_bytes).unwrap();
        let region = rows.region();
        let mut pools = [IoEngineChoice::Uring, IoEngineChoice::Threads].map(|engine| {
            let mut pool = roots.open_packed(row_bytes, engine, THREADS);
            pool.store((3 << 29) / row_bytes);
            pool
        });
        for direction in [Direction::Write, Direction::Read] {
            for checked in [false, true] {
                let mut speeds = [const { Vec::new() }; 5];
                for _ in 0..ROUNDS {
                    speeds[0].push(plain_loop(&rows, &file, direction, checked));
                    speeds[1].push(with_engine(&ring(), &region, &file, direction, checked));
                    speeds[2].push(with_engine(&threads(), &region, &file, direction, checked));
                    for (pool, speeds) in pools.iter_mut().zip(&mut speeds[3..]) {
                        // A pool's blocks always have a checksum.
                        if checked {
                            speeds.push(with_pool(pool, row_bytes, direction));
                        }
                    }
                }
                let plain = median(&speeds[0]);
                let names = ["plain loop", "uring", "threads", "pool, uring", "pool, threads"];
                for (name, speeds) in names.iter().zip(&speeds).filter(|(_, speeds)| !speeds.is_empty()) {
                    print(row_bytes, direction, checked, name, median(speeds), plain);
                }
            }
        }
    }
}

/// As many bytes as the file has, in whole blocks.
fn with_pool(pool: &mut Bench, row_bytes: usize, direction: Direction) -> Speed {
    let count = FILE_BYTES / row_bytes;
    measured(|| {
        match direction {
            Direction::Write => pool.store(count),
            Direction::Read => pool.load_last(count, count),
        };
    })
}

fn ring() -> Arc<dyn IoEngine> {
    UringEngine::start("bench-ring", ThreadEngine::start("bench-io", THREADS).unwrap(), 1, UringEngine::DEPTH).unwrap()
}

fn threads() -> Arc<dyn IoEngine> {
    ThreadEngine::start("bench-io", THREADS).unwrap()
}

/// Each slot of the file once, `UNDER_WAY` at a time; `checked` computes a checksum of each row that was read or is
/// written.
fn with_engine(
    engine: &Arc<dyn IoEngine>,
    region: &Arc<Region>,
    file: &Arc<File>,
    direction: Direction,
    checked: bool,
) -> Speed {
    let row_bytes = region.row_bytes();
    let (give_back, free) = sync_channel(UNDER_WAY);
    (0..UNDER_WAY).for_each(|row| give_back.send(row).unwrap());
    measured(|| {
        for slot in 0..FILE_BYTES / row_bytes {
            let row = free.recv().unwrap();
            let lease = RowLease::unbounded(region, row).unwrap();
            let memory = match direction {
                Direction::Read => IoMemory::target(lease.enter().unwrap()).unwrap(),
                Direction::Write => IoMemory::source(lease),
            };
            let (region, give_back) = (Arc::clone(region), give_back.clone());
            let transfer = Transfer { file: Arc::clone(file), offset: (slot * row_bytes) as u64, direction, memory };
            let done = move |ended: kvtier::io::Transferred| {
                ended.result.unwrap();
                assert_eq!(ended.memory.left_bytes(), 0);
                drop(ended.memory);
                if checked {
                    let access = RowLease::unbounded(&region, row).unwrap().enter().unwrap();
                    std::hint::black_box(ChecksumAlgorithm::Xxh3.of(access.segments()));
                }
                give_back.send(row).unwrap();
            };
            engine.submit(transfer, Completion::brief(done));
        }
        (0..UNDER_WAY).for_each(|_| assert!(free.recv().is_ok()));
    })
}

fn plain_loop(rows: &HostRows, file: &File, direction: Direction, checked: bool) -> Speed {
    let mut ring: IoUring =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(UNDER_WAY as u32).unwrap();
    let (row_bytes, fd) = (rows.row_bytes(), types::Fd(file.as_raw_fd()));
    // SAFETY: row < UNDER_WAY, the number of rows.
    let base = |row: usize| unsafe { rows.base().add(row * row_bytes) }.as_ptr();
    let mut free: Vec<usize> = (0..UNDER_WAY).collect();
    let mut slots = 0..FILE_BYTES / row_bytes;
    measured(|| {
        loop {
            while let Some(row) = free.pop() {
                let Some(slot) = slots.next() else {
                    free.push(row);
                    break;
                };
                let (offset, len) = ((slot * row_bytes) as u64, row_bytes as u32);
                let instruction = match direction {
                    Direction::Read => opcode::Read::new(fd, base(row), len).offset(offset).build(),
                    Direction::Write => opcode::Write::new(fd, base(row), len).offset(offset).build(),
                };
                // SAFETY: the rows outlive the loop, which ends when all of them are free again.
                unsafe { ring.submission().push(&instruction.user_data(row as u64)) }.unwrap();
            }
            if free.len() == UNDER_WAY {
                return;
            }
            ring.submit_and_wait(1).unwrap();
            for end in ring.completion() {
                assert_eq!(u32::try_from(end.result()), Ok(row_bytes as u32));
                let row = end.user_data() as usize;
                if checked {
                    // SAFETY: the kernel is done with the row.
                    let bytes = unsafe { std::slice::from_raw_parts(base(row), row_bytes) };
                    std::hint::black_box(ChecksumAlgorithm::Xxh3.of([bytes]));
                }
                free.push(row);
            }
        }
    })
}

fn measured(work: impl FnOnce()) -> Speed {
    let (began, cpu_before) = (Instant::now(), cpu_seconds());
    work();
    let gigabytes = FILE_BYTES as f64 / 1e9;
    Speed {
        gb_per_second: gigabytes / began.elapsed().as_secs_f64(),
        cpu_per_gb: (cpu_seconds() - cpu_before) / gigabytes,
    }
}

fn median(speeds: &[Speed]) -> Speed {
    let of = |number: fn(&Speed) -> f64| {
        let mut numbers: Vec<f64> = speeds.iter().map(number).collect();
        numbers.sort_by(f64::total_cmp);
        numbers[numbers.len() / 2]
    };
    Speed { gb_per_second: of(|s| s.gb_per_second), cpu_per_gb: of(|s| s.cpu_per_gb) }
}

fn print(row_bytes: usize, direction: Direction, checked: bool, name: &str, speed: Speed, plain: Speed) {
    println!(
        "| {} KiB | {}{} | {name} | {:.2} | {:.2} | {:.3} | {:.2} |",
        row_bytes >> 10,
        if direction == Direction::Write { "write" } else { "read" },
        if checked { " and check" } else { "" },
        speed.gb_per_second,
        speed.gb_per_second / plain.gb_per_second,
        speed.cpu_per_gb,
        speed.cpu_per_gb / plain.cpu_per_gb,
    );
}
