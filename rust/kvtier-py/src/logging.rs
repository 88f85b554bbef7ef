//! The core's log records on their way to Python's `logging`.
//!
//! They travel as errands, so that no IO thread waits for the interpreter, a handler, or a full disk under a log file.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errands;

/// Records that may wait for a Python thread; further ones are counted and dropped.
const MAX_WAITING: usize = 1000;

static WAITING: AtomicUsize = AtomicUsize::new(0);
static DROPPED: AtomicUsize = AtomicUsize::new(0);

struct ToPython;

impl Log for ToPython {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        if WAITING.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let entry = Entry {
            level: python_level(record.level()),
            logger: logger_name(record.target()),
            message: record.args().to_string(),
            seconds: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            thread: thread::current().name().unwrap_or("unnamed").to_owned(),
        };
        errands::leave(move |py| {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            entry.emit(py)
        });
    }

    fn flush(&self) {}
}

struct Entry {
    level: u8,
    logger: String,
    message: String,
    /// Since 1970.
    seconds: f64,
    thread: String,
}

impl Entry {
    fn emit(self, py: Python<'_>) -> PyResult<()> {
        static EMIT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let dropped = DROPPED.swap(0, Ordering::Relaxed);
        let emit = EMIT.import(py, "kvtier._logging", "emit")?;
        emit.call1((self.level, self.logger, self.message, self.seconds, self.thread, dropped)).map(drop)
    }
}

/// Sends the core's records to Python from now on.
pub(crate) fn install(py: Python<'_>) -> PyResult<()> {
    // Only a second initialisation of the module in one process finds a logger set: this one.
    let _ = log::set_logger(&ToPython);
    follow_level(py)
}

/// Lets the core make only records that a Python logger would take now: a record that nobody wants costs one
/// comparison.
///
/// # Errors
/// What a signal handler raised meanwhile.
pub(crate) fn follow_level(py: Python<'_>) -> PyResult<()> {
    static LEVEL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let level = LEVEL.import(py, "kvtier._logging", "level").and_then(|level| level.call0()?.extract::<i64>());
    let filter = match level {
        Ok(..=9) => LevelFilter::Trace,
        Ok(10..=19) => LevelFilter::Debug,
        Ok(20..=29) => LevelFilter::Info,
        Ok(30..=39) => LevelFilter::Warn,
        Ok(40..=50) => LevelFilter::Error,
        Ok(51..) => LevelFilter::Off,
        Err(error) if error.is_instance_of::<PyException>(py) => {
            error.write_unraisable(py, None);
            LevelFilter::Warn
        }
        Err(interrupt) => return Err(interrupt),
    };
    log::set_max_level(filter);
    Ok(())
}

fn python_level(level: Level) -> u8 {
    match level {
        Level::Error => 40,
        Level::Warn => 30,
        Level::Info => 20,
        Level::Debug => 10,
        Level::Trace => 5,
    }
}

/// `kvtier::engine::queue` is the logger `kvtier.engine.queue`; what other crates say is below `kvtier` as well, so
/// that one logger governs it all.
fn logger_name(target: &str) -> String {
    let name = target.replace("::", ".");
    if name == "kvtier" || name.starts_with("kvtier.") { name } else { format!("kvtier.{name}") }
}
