//! What the store finds out about a root, as plain values; `kvtier.cli` gives them names, advice and a table.

use kvtier::error::{Error, ErrorKind};
use kvtier::store::files::{Abilities, Root, RootReport};
use kvtier::store::url::Place;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{Result, guarded};

/// What the directory at a URL is like, found out by trying; the directory is left as it was.
#[pyfunction]
pub(crate) fn inspect_root<'py>(py: Python<'py>, url: &str) -> Result<Bound<'py, PyDict>> {
    guarded(|| {
        let report = py.detach(|| match Place::parse(url)? {
            Place::Files(path) => Root::inspect(&path),
            Place::Memory(_) => {
                Err(Error::new(ErrorKind::Config, format!("url {url:?}: memory has no directory that processes share")))
            }
        })?;
        let RootReport { path, file_system, read_only, total_bytes, free_bytes, abilities } = report;
        let found = PyDict::new(py);
        found.set_item("path", path)?;
        found.set_item("file_system", file_system.to_string())?;
        found.set_item("reads_into_rows", file_system.reads_surely_end())?;
        found.set_item("read_only", read_only)?;
        found.set_item("total_bytes", total_bytes)?;
        found.set_item("free_bytes", free_bytes)?;
        match abilities {
            Ok(Abilities { publishing, direct_io, locks }) => {
                found.set_item("publishing", publishing.as_str())?;
                found.set_item("direct_io_alignment", direct_io.alignment())?;
                found.set_item("locks", locks)?;
            }
            Err(error) => found.set_item("refused", error.to_string())?,
        }
        Ok(found)
    })
}
