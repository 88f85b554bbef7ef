//! What lies in a packed pool, as plain values; `kvtier.cli.pool` gives them names and a table.

use kvtier::store::packed::{Census, SegmentCensus, check};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::doctor::directory_at;
use crate::errors::{Result, guarded};

/// What is in the pool below the directory at a URL; with `blocks`, each block is read and verified.
#[pyfunction]
pub(crate) fn inspect_pool<'py>(py: Python<'py>, url: &str, blocks: bool) -> Result<Bound<'py, PyDict>> {
    guarded(|| {
        let census = py.detach(|| check(&directory_at(url)?, blocks))?;
        let found = PyDict::new(py);
        found.set_item("pool", census.superblock.pool.to_string())?;
        found.set_item("segment_bytes", census.superblock.segment_bytes)?;
        found.set_item("max_bytes", Some(census.superblock.max_bytes).filter(|bytes| *bytes > 0))?;
        found.set_item("min_free_bytes", Some(census.superblock.min_free_bytes).filter(|bytes| *bytes > 0))?;
        found.set_item("created_unix_ns", census.superblock.created_unix_ns)?;
        let most = census.superblock.most_segments();
        found.set_item("most_segments", Some(most).filter(|most| *most < u32::MAX))?;
        found.set_item("used_bytes", census.used_bytes)?;
        let namespaces = PyList::empty(py);
        for record in &census.namespaces {
            let namespace = PyDict::new(py);
            namespace.set_item("name", &record.name)?;
            namespace.set_item("epoch", record.epoch)?;
            namespaces.append(namespace)?;
        }
        found.set_item("namespaces", namespaces)?;
        let segments = PyList::empty(py);
        for segment in &census.segments {
            segments.append(segment_as_dict(py, &census, segment)?)?;
        }
        found.set_item("segments", segments)?;
        Ok(found)
    })
}

fn segment_as_dict<'py>(py: Python<'py>, census: &Census, segment: &SegmentCensus) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("segment", segment.id)?;
    found.set_item("owned", segment.owned)?;
    found.set_item("used_unix_s", segment.used_unix_s)?;
    match &segment.header {
        Ok(header) => {
            found.set_item("namespace", &header.namespace)?;
            found.set_item("current", census.is_current(header))?;
            found.set_item("generation", header.generation)?;
            found.set_item("born_unix_ns", header.born_unix_ns)?;
            found.set_item("slots", header.slots)?;
            found.set_item("slot_bytes", header.slot_bytes)?;
            found.set_item("payload_bytes", header.payload_bytes)?;
        }
        Err(error) => found.set_item("unusable", error.to_string())?,
    }
    found.set_item("blocks", segment.blocks)?;
    found.set_item("dead", segment.dead)?;
    found.set_item("free", segment.free)?;
    found.set_item("damaged_pages", segment.damaged_pages)?;
    let wrong = segment.wrong.iter().map(|(slot, error)| (*slot, error.kind().as_str(), error.message().to_owned()));
    found.set_item("wrong", wrong.collect::<Vec<_>>())?;
    Ok(found)
}
