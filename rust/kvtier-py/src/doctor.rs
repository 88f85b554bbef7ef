//! What the files store finds out about a root, as plain values; `kvtier.cli` gives them names, advice and a table.

use std::path::PathBuf;
use std::time::Duration;

use kvtier::error::{Error, ErrorKind};
use kvtier::store::files::{Abilities, Contents, FoundBlocks, FoundNamespace, Root, RootReport};
use kvtier::store::url::Place;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors::{Result, guarded};
use crate::identity::PyStoredConfig;

/// What the directory at a URL is like, found out by trying; the directory is left as it was.
#[pyfunction]
pub(crate) fn inspect_root<'py>(py: Python<'py>, url: &str) -> Result<Bound<'py, PyDict>> {
    guarded(|| {
        let report = py.detach(|| Root::inspect(&directory_at(url)?))?;
        let RootReport { path, file_system, read_only, abilities, .. } = report;
        let found = PyDict::new(py);
        found.set_item("path", path)?;
        found.set_item("file_system", file_system.to_string())?;
        found.set_item("reads_into_rows", file_system.reads_surely_end())?;
        found.set_item("read_only", read_only)?;
        found.set_item("total_bytes", report.total_bytes)?;
        found.set_item("free_bytes", report.free_bytes)?;
        found.set_item("total_files", report.total_files)?;
        found.set_item("free_files", report.free_files)?;
        match abilities {
            Ok(Abilities { publishing, direct_io, locks }) => {
                found.set_item("publishing", publishing.as_str())?;
                found.set_item("unnamed_files", publishing.is_unnamed())?;
                found.set_item("direct_io_alignment", direct_io.alignment())?;
                found.set_item("locks", locks)?;
            }
            Err(error) => found.set_item("refused", error.to_string())?,
        }
        Ok(found)
    })
}

/// The namespaces in the directory at a URL: one dictionary each, and how many reset ones are not deleted yet.
#[pyfunction]
pub(crate) fn survey_root<'py>(py: Python<'py>, url: &str, patience: f64) -> Result<(Bound<'py, PyList>, usize)> {
    guarded(|| {
        let patience = Duration::try_from_secs_f64(patience).unwrap_or_default();
        let survey = py.detach(|| Root::open(&directory_at(url)?)?.survey(patience))?;
        let namespaces = PyList::empty(py);
        for namespace in survey.namespaces {
            namespaces.append(namespace_as_dict(py, namespace)?)?;
        }
        Ok((namespaces, survey.in_trash))
    })
}

fn directory_at(url: &str) -> kvtier::error::Result<PathBuf> {
    match Place::parse(url)? {
        Place::Files(path) => Ok(path),
        Place::Memory(_) => {
            Err(Error::new(ErrorKind::Config, format!("url {url:?}: memory has no directory that processes share")))
        }
        place @ Place::Objects(_) => {
            Err(Error::new(ErrorKind::Config, format!("{place} is a bucket, not a directory on this machine")))
        }
    }
}

fn namespace_as_dict(py: Python<'_>, namespace: FoundNamespace) -> Result<Bound<'_, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("base_dir", namespace.base_dir)?;
    match namespace.config {
        Ok(config) => found.set_item("config", PyStoredConfig::from(config))?,
        Err(error) => found.set_item("unreadable", error.to_string())?,
    }
    let ranks = PyList::empty(py);
    for FoundBlocks { blocks_dir, contents } in namespace.ranks {
        let rank = PyDict::new(py);
        rank.set_item("blocks_dir", blocks_dir)?;
        match contents {
            Ok(Contents { blocks, bytes, exact, unfinished, quarantined }) => {
                rank.set_item("blocks", blocks)?;
                rank.set_item("bytes", bytes)?;
                rank.set_item("exact", exact)?;
                rank.set_item("quarantined", quarantined)?;
                rank.set_item("being_written", unfinished.in_use)?;
                rank.set_item("abandoned", unfinished.abandoned)?;
                rank.set_item("undecided", unfinished.undecided)?;
            }
            Err(error) => rank.set_item("unreadable", error.to_string())?,
        }
        ranks.append(rank)?;
    }
    found.set_item("ranks", ranks)?;
    Ok(found)
}
