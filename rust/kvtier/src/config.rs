//! Options of a tier: one set of names for Python keywords, the command line, engine configurations and the docs.
//!
//! [`TierConfig::parse`] takes options as a user writes them and reports everything that is wrong with them at once.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::engine::EngineConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::Verify;
use crate::identity::NamespaceKind;

/// An option's value as a user wrote it.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// Not given: the default.
    None,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// Another number.
    Float(f64),
    /// Text.
    Text(String),
    /// Something of another type, by its name; never accepted.
    Other(String),
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Bool(true) => f.write_str("True"),
            Self::Bool(false) => f.write_str("False"),
            Self::Int(n) => write!(f, "{n}"),
            Self::Float(x) => write!(f, "{x:?}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Other(kind) => write!(f, "a {kind}"),
        }
    }
}

/// An option with a fixed set of values.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant),+
        }

        impl $name {
            const CHOICES: &'static [(&'static str, Self)] = &[$(($text, Self::$variant)),+];

            /// The option's text.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text),+
                }
            }
        }
    };
}

mod object;

pub use object::{ObjectConfig, Secret, UploadChecksum};

choice! {
    /// What is flushed to the device before a block is published.
    Durability {
        /// Nothing: the tier is a cache, and a block torn by power loss fails verification.
        #[default]
        None = "none",
        /// The block's data.
        Data = "data",
        /// The block's data, and the directory after publishing.
        Full = "full",
    }
}

choice! {
    /// Whether files are read and written past the page cache.
    DirectIo {
        /// Where the file system supports it and a row's address and length fit; otherwise buffered, per operation.
        #[default]
        Auto = "auto",
        /// As `auto`, but refused at opening where the file system can't or the rows don't fit.
        On = "on",
        /// Through the page cache.
        Off = "off",
    }
}

choice! {
    /// How system calls for block IO are made.
    IoEngineChoice {
        /// The best that works here.
        #[default]
        Auto = "auto",
        /// Threads that call `preadv` and `pwritev`.
        Threads = "threads",
        /// A ring of `io_uring`; threads where it can't be had.
        Uring = "uring",
    }
}

choice! {
    /// How blocks are laid out below a `file://` root.
    StorageLayout {
        /// One file per block.
        #[default]
        Files = "files",
        /// Slots of preallocated segment files, within a bound.
        Packed = "packed",
        /// What is there already; else `packed` where the file system can, `files` elsewhere.
        Auto = "auto",
    }
}

/// All options of a tier.
#[allow(clippy::struct_excessive_bools)] // each is an option of its own
#[derive(Clone, Debug, PartialEq)]
pub struct TierConfig {
    /// `compat`: whose paths and blocks the tier uses.
    pub kind: NamespaceKind,
    /// How blocks are laid out below a `file://` root.
    pub layout: StorageLayout,
    /// What a pool's files may take, together.
    pub max_bytes: Option<u64>,
    /// What a pool leaves free on its file system.
    pub min_free_bytes: Option<u64>,
    /// Bytes of a pool's segments.
    pub segment_bytes: Option<u64>,
    /// How system calls are made.
    pub io_engine: IoEngineChoice,
    /// Whether checksums are compared at load.
    pub verify: Verify,
    /// What is flushed before publishing.
    pub durability: Durability,
    /// Whether the page cache is passed by.
    pub direct_io: DirectIo,
    /// Threads that do IO; `None` as [`TierConfig::threads`] says.
    pub io_threads: Option<usize>,
    /// Operations under way at the same time.
    pub max_inflight_ops: usize,
    /// Bytes under way at the same time.
    pub max_inflight_bytes: u64,
    /// Bytes of stores that may wait before new ones are dropped.
    pub max_queued_store_bytes: u64,
    /// From submission of a load to its result.
    pub load_timeout: Duration,
    /// From submission of a store to its result.
    pub store_timeout: Duration,
    /// How long a request is told RETRY.
    pub lookup_timeout: Duration,
    /// Whether nobody else may open the namespace for writing.
    pub exclusive: bool,
    /// Whether stores are refused and nothing on storage is changed.
    pub read_only: bool,
    /// Permission bits of block files, before umask.
    pub file_mode: u32,
    /// Permission bits of directories, before umask.
    pub dir_mode: u32,
    /// Whether blocks proven bad are kept aside instead of removed.
    pub quarantine: bool,
    /// Whether jobs and probes begin only when a step of the caller ends.
    pub stepwise: bool,
    /// Whether what happens to blocks is kept for the caller to take.
    pub events: bool,
    /// What only tiers in object stores have.
    pub object: ObjectConfig,
}

impl Default for TierConfig {
    fn default() -> Self {
        let engine = EngineConfig::default();
        Self {
            kind: NamespaceKind::Kvtier,
            layout: StorageLayout::Files,
            max_bytes: None,
            min_free_bytes: None,
            segment_bytes: None,
            io_engine: IoEngineChoice::Auto,
            verify: Verify::Always,
            durability: Durability::None,
            direct_io: DirectIo::Auto,
            io_threads: None,
            max_inflight_ops: engine.max_inflight_ops,
            max_inflight_bytes: engine.max_inflight_bytes,
            max_queued_store_bytes: engine.max_queued_store_bytes,
            load_timeout: engine.load_timeout,
            store_timeout: engine.store_timeout,
            lookup_timeout: engine.lookup_timeout,
            exclusive: false,
            read_only: false,
            file_mode: 0o666,
            dir_mode: 0o777,
            quarantine: false,
            stepwise: engine.stepwise,
            events: engine.events,
            object: ObjectConfig::default(),
        }
    }
}

/// Threads for IO where the option doesn't say how many. The most are enough for a device's queue to stay full while some of
/// them compute checksums.
const USUAL_IO_THREADS: RangeInclusive<usize> = 8..=32;

/// More threads than any device needs.
const MAX_IO_THREADS: usize = 1024;

/// Names of the options that tiers have wherever their blocks lie, in the order of the documentation.
const COMMON_NAMES: [&str; 23] = [
    "compat",
    "layout",
    "max_bytes",
    "min_free_bytes",
    "segment_bytes",
    "io_engine",
    "verify",
    "durability",
    "direct_io",
    "io_threads",
    "max_inflight_ops",
    "max_inflight_bytes",
    "max_queued_store_bytes",
    "load_timeout",
    "store_timeout",
    "lookup_timeout",
    "exclusive",
    "read_only",
    "file_mode",
    "dir_mode",
    "quarantine",
    "stepwise",
    "events",
];

/// Names of all options, in the order of the documentation.
pub fn option_names() -> impl Iterator<Item = &'static str> {
    COMMON_NAMES.into_iter().chain(object::NAMES)
}

impl TierConfig {
    /// Takes options as a user wrote them; those not given keep their defaults.
    ///
    /// # Errors
    /// One `Config` error that lists everything wrong: unknown names, values of the wrong type or out of range, and
    /// combinations that can't work, each with what is accepted.
    pub fn parse<'a>(options: impl IntoIterator<Item = (&'a str, OptionValue)>) -> Result<Self> {
        let mut config = Self::default();
        let mut problems = Vec::new();
        for (name, value) in options {
            if value != OptionValue::None
                && let Err(problem) = config.set(name, &value)
            {
                problems.push(problem);
            }
        }
        config.check_combinations(&mut problems);
        refuse(&problems).map(|()| config)
    }

    /// How many threads do IO. Where they mostly wait for a device, however few cores there are; where blocks come from
    /// memory, twice the cores: each further thread would only have to be woken.
    pub fn threads(&self, waits_for_device: bool) -> usize {
        let (fewest, most) = (*USUAL_IO_THREADS.start(), *USUAL_IO_THREADS.end());
        let twice_the_cores = || std::thread::available_parallelism().map_or(fewest, |cores| cores.get() * 2);
        let usual = || if waits_for_device { most } else { twice_the_cores().clamp(fewest, most) };
        self.io_threads.unwrap_or_else(usual)
    }

    /// The engine's part.
    pub fn engine(&self) -> EngineConfig {
        EngineConfig {
            max_inflight_ops: self.max_inflight_ops,
            max_inflight_bytes: self.max_inflight_bytes,
            max_queued_store_bytes: self.max_queued_store_bytes,
            load_timeout: self.load_timeout,
            store_timeout: self.store_timeout,
            lookup_timeout: self.lookup_timeout,
            stepwise: self.stepwise,
            events: self.events,
        }
    }

    fn set(&mut self, name: &str, value: &OptionValue) -> Result<(), String> {
        match name {
            "compat" => {
                self.kind = match value {
                    OptionValue::Text(text) if text == "vllm" => NamespaceKind::Vllm,
                    _ => return Err(refused(name, value, "None or \"vllm\"")),
                }
            }
            "layout" => self.layout = choose(name, value, StorageLayout::CHOICES)?,
            "max_bytes" => self.max_bytes = Some(bytes(name, value)?),
            "min_free_bytes" => self.min_free_bytes = Some(bytes(name, value)?),
            "segment_bytes" => self.segment_bytes = Some(segment(name, value)?),
            "io_engine" => self.io_engine = choose(name, value, IoEngineChoice::CHOICES)?,
            "verify" => self.verify = choose(name, value, &[("always", Verify::Always), ("never", Verify::Never)])?,
            "durability" => self.durability = choose(name, value, Durability::CHOICES)?,
            "direct_io" => {
                self.direct_io = match value {
                    OptionValue::Bool(true) => DirectIo::On,
                    OptionValue::Bool(false) => DirectIo::Off,
                    _ => choose(name, value, DirectIo::CHOICES)?,
                }
            }
            "io_threads" => self.io_threads = Some(count(name, value, MAX_IO_THREADS)?),
            "max_inflight_ops" => self.max_inflight_ops = count(name, value, 1 << 20)?,
            "max_inflight_bytes" => self.max_inflight_bytes = bytes(name, value)?,
            "max_queued_store_bytes" => self.max_queued_store_bytes = bytes(name, value)?,
            "load_timeout" => self.load_timeout = seconds(name, value)?,
            "store_timeout" => self.store_timeout = seconds(name, value)?,
            "lookup_timeout" => self.lookup_timeout = seconds(name, value)?,
            "exclusive" => self.exclusive = truth(name, value)?,
            "read_only" => self.read_only = truth(name, value)?,
            "file_mode" => self.file_mode = mode(name, value)?,
            "dir_mode" => self.dir_mode = mode(name, value)?,
            "quarantine" => self.quarantine = truth(name, value)?,
            "stepwise" => self.stepwise = truth(name, value)?,
            "events" => self.events = truth(name, value)?,
            _ => return self.object.set(name, value).unwrap_or_else(|| Err(unknown(name))),
        }
        Ok(())
    }

    fn check_combinations(&self, problems: &mut Vec<String>) {
        if self.read_only && self.exclusive {
            problems
                .push("exclusive=True with read_only=True: a tier that stores nothing needs no exclusive lock".into());
        }
        if self.read_only && self.quarantine {
            problems.push("quarantine=True with read_only=True: a read-only tier moves nothing aside".into());
        }
        self.check_pool(problems);
        self.object.check_combinations(problems);
    }

    fn check_pool(&self, problems: &mut Vec<String>) {
        match self.layout {
            StorageLayout::Files => {
                for (name, given) in [
                    ("max_bytes", self.max_bytes.is_some()),
                    ("min_free_bytes", self.min_free_bytes.is_some()),
                    ("segment_bytes", self.segment_bytes.is_some()),
                ] {
                    if given {
                        problems.push(format!(
                            "{name} with layout=\"files\": only pools are bounded; give layout=\"packed\", or \"auto\""
                        ));
                    }
                }
            }
            StorageLayout::Packed => {
                if self.max_bytes.is_none() && self.min_free_bytes.is_none() && !self.read_only {
                    problems.push(
                        "layout=\"packed\" needs a bound: give max_bytes (what the pool may take) or min_free_bytes \
                         (what it leaves free)"
                            .into(),
                    );
                }
                if self.kind == NamespaceKind::Vllm {
                    problems.push(
                        "compat=\"vllm\" with layout=\"packed\": the engine's own blocks are files; give \
                         layout=\"files\""
                            .into(),
                    );
                }
                if self.quarantine {
                    problems.push("quarantine=True with layout=\"packed\": a slot can't be moved aside".into());
                }
                if self.exclusive {
                    problems.push(
                        "exclusive=True with layout=\"packed\": a pool's index is complete as it is; leave it out"
                            .into(),
                    );
                }
            }
            StorageLayout::Auto => {}
        }
    }

    /// Names of the options for directories of files that are not as they are by default.
    pub(crate) fn given_for_files(&self) -> Vec<&'static str> {
        let default = Self::default();
        let given = [
            ("layout", self.layout != default.layout),
            ("max_bytes", self.max_bytes != default.max_bytes),
            ("min_free_bytes", self.min_free_bytes != default.min_free_bytes),
            ("segment_bytes", self.segment_bytes != default.segment_bytes),
            ("io_engine", self.io_engine != default.io_engine),
            ("durability", self.durability != default.durability),
            ("direct_io", self.direct_io != default.direct_io),
            ("exclusive", self.exclusive != default.exclusive),
            ("file_mode", self.file_mode != default.file_mode),
            ("dir_mode", self.dir_mode != default.dir_mode),
            ("quarantine", self.quarantine != default.quarantine),
        ];
        given.into_iter().filter_map(|(name, given)| given.then_some(name)).collect()
    }
}

/// Fails with one error that lists all problems, if there are any.
pub(crate) fn refuse(problems: &[String]) -> Result<()> {
    match problems {
        [] => Ok(()),
        [one] => Err(Error::new(ErrorKind::Config, one.clone())),
        many => {
            let list = many.join("\n  - ");
            Err(Error::new(ErrorKind::Config, format!("{} options can't be used:\n  - {list}", many.len())))
        }
    }
}

/// Options of other layers and versions, so that the error can say more than "unknown".
const NOT_YET: [(&str, &str); 4] = [
    ("eviction", "eviction"),
    ("ttl", "expiry of blocks"),
    ("admission", "admission control"),
    ("state_dir", "state outside the root"),
];

fn unknown(name: &str) -> String {
    let accepted = option_names().collect::<Vec<_>>().join(", ");
    match NOT_YET.iter().find(|(n, _)| *n == name) {
        Some((_, what)) => format!("option {name:?}: {what} is not in this version; accepted options: {accepted}"),
        None => format!("unknown option {name:?}; accepted options: {accepted}"),
    }
}

fn refused(name: &str, value: &OptionValue, accepted: &str) -> String {
    format!("{name}={value} is not accepted; give {accepted}")
}

fn choose<T: Copy>(name: &str, value: &OptionValue, choices: &[(&'static str, T)]) -> Result<T, String> {
    let found = match value {
        OptionValue::Text(text) => choices.iter().find(|(choice, _)| choice == text),
        _ => None,
    };
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let accepted: Vec<_> = choices.iter().map(|(choice, _)| format!("{choice:?}")).collect();
        refused(name, value, &accepted.join(" or "))
    })
}

fn truth(name: &str, value: &OptionValue) -> Result<bool, String> {
    match value {
        OptionValue::Bool(b) => Ok(*b),
        _ => Err(refused(name, value, "True or False")),
    }
}

fn count(name: &str, value: &OptionValue, most: usize) -> Result<usize, String> {
    let n = match value {
        OptionValue::Int(n) => usize::try_from(*n).ok(),
        _ => None,
    };
    n.filter(|n| (1..=most).contains(n))
        .ok_or_else(|| refused(name, value, &format!("a whole number from 1 to {most}")))
}

fn bytes(name: &str, value: &OptionValue) -> Result<u64, String> {
    let n = match value {
        OptionValue::Int(n) => u64::try_from(*n).ok(),
        OptionValue::Text(text) => text.parse::<bytesize::ByteSize>().ok().map(|size| size.as_u64()),
        _ => None,
    };
    n.filter(|n| *n > 0)
        .ok_or_else(|| refused(name, value, "a positive number of bytes, or a size such as \"512MiB\" or \"2GiB\""))
}

/// A whole number of MiB that a file can have.
fn segment(name: &str, value: &OptionValue) -> Result<u64, String> {
    const MIB: u64 = 1 << 20;
    let given = bytes(name, value)?;
    if given.is_multiple_of(MIB) && given <= MIB << 14 {
        Ok(given)
    } else {
        Err(refused(name, value, "whole MiB, from \"1MiB\" to \"16GiB\""))
    }
}

fn seconds(name: &str, value: &OptionValue) -> Result<Duration, String> {
    /// A century: beyond it, deadlines could not be added to the clock.
    const MOST: f64 = 100.0 * 365.25 * 86_400.0;
    #[allow(clippy::cast_precision_loss)] // beyond 2^53 s the number is refused anyway
    let s = match value {
        OptionValue::Int(n) => *n as f64,
        OptionValue::Float(x) => *x,
        _ => f64::NAN,
    };
    if s > 0.0 && s <= MOST {
        Ok(Duration::from_secs_f64(s))
    } else {
        Err(refused(name, value, "a positive number of seconds"))
    }
}

fn mode(name: &str, value: &OptionValue) -> Result<u32, String> {
    let n = match value {
        OptionValue::Int(n) => u32::try_from(*n).ok(),
        OptionValue::Text(text) => u32::from_str_radix(text.trim_start_matches("0o"), 8).ok(),
        _ => None,
    };
    n.filter(|n| *n <= 0o7777 && n & 0o600 == 0o600)
        .ok_or_else(|| refused(name, value, "permission bits such as 0o660, which let the owner read and write"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(s: &str) -> OptionValue {
        OptionValue::Text(s.into())
    }

    fn message(options: Vec<(&str, OptionValue)>) -> String {
        match TierConfig::parse(options) {
            Ok(config) => format!("accepted: {config:?}"),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Config);
                e.to_string()
            }
        }
    }

    #[test]
    fn every_name_is_known_to_set() {
        for name in option_names() {
            let problem = message(vec![(name, OptionValue::Other("list".into()))]);
            assert!(problem.starts_with(name) && problem.contains(" is not accepted; give "), "{problem}");
        }
    }

    #[test]
    fn threads_that_wait_for_a_device_are_many() -> Result<()> {
        let usual = TierConfig::default();
        assert_eq!(usual.threads(true), 32);
        assert!((8..=32).contains(&usual.threads(false)));
        let said = TierConfig::parse([("io_threads", OptionValue::Int(3))])?;
        assert_eq!((said.threads(true), said.threads(false)), (3, 3));
        Ok(())
    }

    #[test]
    fn values_are_taken_as_users_write_them() -> Result<()> {
        let config = TierConfig::parse([
            ("compat", text("vllm")),
            ("max_inflight_bytes", text("2GiB")),
            ("max_queued_store_bytes", OptionValue::Int(5)),
            ("load_timeout", OptionValue::Float(0.5)),
            ("store_timeout", OptionValue::Int(3)),
            ("direct_io", OptionValue::Bool(false)),
            ("file_mode", text("0o660")),
            ("dir_mode", OptionValue::Int(0o770)),
            ("verify", OptionValue::None),
        ])?;
        assert_eq!(config.kind, NamespaceKind::Vllm);
        assert_eq!((config.max_inflight_bytes, config.max_queued_store_bytes), (2 << 30, 5));
        assert_eq!((config.load_timeout, config.store_timeout), (Duration::from_millis(500), Duration::from_secs(3)));
        assert_eq!((config.direct_io, config.verify), (DirectIo::Off, Verify::Always));
        assert_eq!((config.file_mode, config.dir_mode), (0o660, 0o770));
        Ok(())
    }

    #[test]
    fn all_problems_come_in_one_error() {
        let problem = message(vec![
            ("verfy", text("always")),
            ("durability", text("some")),
            ("io_threads", OptionValue::Int(0)),
            ("max_inflight_bytes", OptionValue::Int(-1)),
            ("load_timeout", OptionValue::Float(f64::NAN)),
            ("lookup_timeout", OptionValue::Int(0)),
            ("read_only", OptionValue::Bool(true)),
            ("exclusive", OptionValue::Bool(true)),
        ]);
        for part in [
            "7 options can't be used",
            "unknown option \"verfy\"; accepted options: compat, layout, max_bytes",
            "durability=\"some\" is not accepted; give \"none\" or \"data\" or \"full\"",
            "io_threads=0 is not accepted; give a whole number from 1 to 1024",
            "max_inflight_bytes=-1",
            "load_timeout=NaN",
            "lookup_timeout=0",
            "exclusive=True with read_only=True",
        ] {
            assert!(problem.contains(part), "{part:?} in {problem}");
        }
    }
}
