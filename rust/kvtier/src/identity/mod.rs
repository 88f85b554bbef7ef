//! Who may share blocks with whom: fields, their digest, the directory it names, and what differs between two.
//!
//! Two engines share a block exactly when every fact that changes the block's bytes is equal. Those facts are the
//! [`Fields`] of an [`Identity`]; their canonical JSON ([`Value::to_canonical_json`]) is hashed, and the first digits of
//! the hash name the directory. [`FileMapper`] is the same for an engine's own tiers, to the letter. A [`Namespace`] is
//! what a store needs of it all. `docs/identity.md` is the normative text.
//!
//! Pure: no IO. Everything here is a storage format, so nothing here changes by accident.

mod config_file;
mod diff;
mod encode;
mod explain;
mod facts;
mod fields;
mod mapper;
mod namespace;
mod parse;
mod problems;
mod spec;
mod text;
mod value;

pub use config_file::{CONFIG_FILE_NAME, ConfigCheck, Origin, StoredConfig};
pub use diff::Difference;
pub use explain::{Explanation, Role};
pub use facts::{Facts, Group, Identity};
pub use fields::{FIELDS, Field, Fields};
pub use mapper::{FileMapper, MapperArguments};
pub use namespace::{MAX_COMPONENT_BYTES, Namespace, NamespaceKind};
pub use spec::OffloadingSpec;
pub use text::Text;
pub use value::{Float, Int, MAX_DEPTH, Value};
