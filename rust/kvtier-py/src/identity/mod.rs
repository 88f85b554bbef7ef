//! Identity for Python: the engine's mapper, kvtier's own identity, and what differs between two.

mod facts;
mod mapper;
mod reader;
mod report;
mod spec;
mod stored;
mod value;

pub(crate) use facts::PyIdentity;
pub(crate) use mapper::PyFileMapper;
pub(crate) use report::{PyCompatibility, PyDifference, PyExplanation};
pub(crate) use stored::PyStoredConfig;
pub(crate) use value::canonical_json;
