//! The one error type of the crate.
//!
//! [`Error`] carries an [`ErrorKind`], which is what callers switch on, a message that a person can act on, the facts
//! that belong to it (field, path, key, …) and the error below it. Every fallible function of the crate returns it,
//! and a failed block of a job is reported as one as well.

use std::error::Error as StdError;
use std::{fmt, io};

/// What went wrong, in the terms of a caller that has to decide what to do next.
///
/// [`ErrorKind::as_str`] gives the stable name that Python, metrics and the command line use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Options that can't work, alone or together; nothing was opened.
    Config,
    /// An argument of a call is wrong; nothing was submitted.
    InvalidInput,
    /// The namespace on storage was written under another identity.
    IdentityMismatch,
    /// No block under that key.
    Missing,
    /// The stored block has fewer bytes than a block of this tier.
    Short,
    /// The stored block has more bytes than a block of this tier.
    Long,
    /// The bytes are of the right length but not a kvtier block (no magic, or a damaged trailer).
    Foreign,
    /// A good block, but of another key.
    WrongKey,
    /// A good block, but of another identity.
    WrongIdentity,
    /// The payload doesn't match the checksum in its trailer.
    Checksum,
    /// A block of a newer format; left alone.
    UnsupportedVersion,
    /// The storage said no; trying again later may work (EIO, EMFILE, ESTALE, a 5xx …).
    Io,
    /// The storage is full (ENOSPC, EDQUOT).
    NoSpace,
    /// The tier's own bound leaves no room, or a block was dropped to make some.
    Capacity,
    /// The storage refuses access (EACCES, EPERM, EROFS).
    Permission,
    /// The store as a whole can't be reached or used.
    Unavailable,
    /// Not done by its deadline.
    Timeout,
    /// A store refused at once because too many bytes are queued already.
    Dropped,
    /// Refused because an overdue read still holds rows; see the engine's `degraded` state.
    Degraded,
    /// Not done because the tier was shut down.
    Shutdown,
    /// Not done because the namespace was reset while the job was open.
    Reset,
    /// The object was made in another process and came here through `fork()`.
    Forked,
    /// A store into a tier that was opened read-only, or a load into read-only memory.
    ReadOnly,
    /// What was asked for exists in kvtier's design but not in this build.
    Unsupported,
    /// A defect of kvtier; the block failed, the process goes on.
    Internal,
}

impl ErrorKind {
    /// Every kind, in declaration order.
    pub const ALL: [Self; 25] = [
        Self::Config,
        Self::InvalidInput,
        Self::IdentityMismatch,
        Self::Missing,
        Self::Short,
        Self::Long,
        Self::Foreign,
        Self::WrongKey,
        Self::WrongIdentity,
        Self::Checksum,
        Self::UnsupportedVersion,
        Self::Io,
        Self::NoSpace,
        Self::Capacity,
        Self::Permission,
        Self::Unavailable,
        Self::Timeout,
        Self::Dropped,
        Self::Degraded,
        Self::Shutdown,
        Self::Reset,
        Self::Forked,
        Self::ReadOnly,
        Self::Unsupported,
        Self::Internal,
    ];

    /// The stable snake-case name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::InvalidInput => "invalid_input",
            Self::IdentityMismatch => "identity_mismatch",
            Self::Missing => "missing",
            Self::Short => "short",
            Self::Long => "long",
            Self::Foreign => "foreign",
            Self::WrongKey => "wrong_key",
            Self::WrongIdentity => "wrong_identity",
            Self::Checksum => "checksum",
            Self::UnsupportedVersion => "unsupported_version",
            Self::Io => "io",
            Self::NoSpace => "no_space",
            Self::Capacity => "capacity",
            Self::Permission => "permission",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Dropped => "dropped",
            Self::Degraded => "degraded",
            Self::Shutdown => "shutdown",
            Self::Reset => "reset",
            Self::Forked => "forked",
            Self::ReadOnly => "read_only",
            Self::Unsupported => "unsupported",
            Self::Internal => "internal",
        }
    }

    /// Position in [`ErrorKind::ALL`]; counters by kind are arrays indexed by it.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// True when the stored bytes themselves were proven bad: the block is of no use to anybody and may be removed.
    ///
    /// Everything else leaves storage as it is: a transient error proves nothing, and a block of a newer format may be
    /// good for somebody else.
    pub const fn is_proof_of_damage(self) -> bool {
        matches!(self, Self::Short | Self::Long | Self::Foreign | Self::WrongKey | Self::WrongIdentity | Self::Checksum)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The crate's error: a kind, a message, the facts around it and the cause.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    context: Vec<(&'static str, String)>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// `Result` with the crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `message` says what is wrong and what is accepted, without a final full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), context: Vec::new(), source: None }))
    }

    /// Adds a fact, such as `("path", …)` or `("key", …)`; shown after the message in the order of adding.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((name, value.to_string()));
        self
    }

    /// Sets the error below this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// An operating-system error met while doing `what` ("opening the block file"); the kind follows from its code.
    pub fn from_io(what: &str, error: io::Error) -> Self {
        Self::new(kind_of_io(&error), format!("{what}: {error}")).with_source(error)
    }

    /// What callers switch on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message without the facts.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The value of a fact that was added by [`Error::with`].
    pub fn fact(&self, name: &str) -> Option<&str> {
        self.0.context.iter().find(|(n, _)| *n == name).map(|(_, v)| v.as_str())
    }

    /// The raw operating-system error code below this error, if there is one.
    pub fn os_code(&self) -> Option<i32> {
        self.0.source.as_ref()?.downcast_ref::<io::Error>()?.raw_os_error()
    }
}

/// Which kind an operating-system error is.
fn kind_of_io(error: &io::Error) -> ErrorKind {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NOTDIR) => ErrorKind::Missing,
        Some(Errno::NOSPC | Errno::DQUOT) => ErrorKind::NoSpace,
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => ErrorKind::Permission,
        _ => ErrorKind::Io,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        for (i, (name, value)) in self.0.context.iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { " (" } else { ", " })?;
        }
        if self.0.context.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error[{}] {self}", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|s| s.as_ref() as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_matches_all() {
        for (i, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), i, "{kind}");
        }
    }

    #[test]
    fn display_shows_message_then_facts() {
        let e = Error::new(ErrorKind::Short, "block has 10 bytes, 20 expected").with("path", "/a").with("key", "00ff");
        assert_eq!(e.to_string(), "block has 10 bytes, 20 expected (path=/a, key=00ff)");
        assert_eq!(e.fact("key"), Some("00ff"));
    }

    #[test]
    fn io_errors_map_by_code() {
        for (code, kind) in [
            (rustix::io::Errno::NOENT, ErrorKind::Missing),
            (rustix::io::Errno::NOSPC, ErrorKind::NoSpace),
            (rustix::io::Errno::ACCESS, ErrorKind::Permission),
            (rustix::io::Errno::IO, ErrorKind::Io),
            (rustix::io::Errno::MFILE, ErrorKind::Io),
        ] {
            let e = Error::from_io("reading", code.into());
            assert_eq!(e.kind(), kind);
            assert_eq!(e.os_code(), Some(code.raw_os_error()));
        }
    }
}
