//! What stores find out about directories and buckets, as plain values; `kvtier.cli` gives them names, advice and a table.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvtier::error::{Error, ErrorKind};
use kvtier::io::uring;
use kvtier::store::files::{Abilities, Contents, FoundBlocks, FoundNamespace, Root, RootReport};
use kvtier::store::object::{Bucket, BucketReport, Checksums, Trials};
use kvtier::store::url::Place;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::arguments::config_of;
use crate::errors::{Result, guarded};
use crate::identity::PyStoredConfig;

/// What kind of place a URL names, for which the options have to be: `"directory"`, `"memory"` or `"bucket"`.
#[pyfunction]
pub(crate) fn check_place(url: &str, options: &Bound<'_, PyDict>) -> Result<&'static str> {
    guarded(|| {
        let place = Place::parse(url)?;
        place.check(&config_of(options)?)?;
        Ok(match place {
            Place::Files(_) => "directory",
            Place::Memory(_) => "memory",
            Place::Objects(_) => "bucket",
        })
    })
}

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
        found.set_item("ring_refused", uring::availability().err().map(|error| error.to_string()))?;
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

/// What the bucket at a URL is like, found out by trying; nothing stays in it.
#[pyfunction]
pub(crate) fn inspect_bucket<'py>(
    py: Python<'py>,
    url: &str,
    options: &Bound<'py, PyDict>,
) -> Result<Bound<'py, PyDict>> {
    guarded(|| {
        let bucket = bucket_at(url, options)?;
        let BucketReport { place, endpoint, addressing, listing, trials } = py.detach(|| bucket.inspect())?;
        let found = PyDict::new(py);
        found.set_item("url", place)?;
        found.set_item("endpoint", endpoint)?;
        found.set_item("addressing", addressing)?;
        match listing {
            Ok(time) => found.set_item("list_seconds", time.as_secs_f64())?,
            Err(error) => found.set_item("unlisted", error.to_string())?,
        }
        match trials {
            Ok(Trials { put, head, get, conditional_put, conditional_delete, checksums }) => {
                found.set_item("put_seconds", put.as_secs_f64())?;
                found.set_item("head_seconds", head.as_secs_f64())?;
                found.set_item("get_seconds", get.as_secs_f64())?;
                found.set_item("conditional_put", conditional_put)?;
                found.set_item("conditional_delete", conditional_delete)?;
                found.set_item("checksums", checksums.map(Checksums::as_str))?;
            }
            Err(error) => found.set_item("refused", error.to_string())?,
        }
        Ok(found)
    })
}

/// The namespaces in the bucket at a URL: one dictionary each, as of a directory.
#[pyfunction]
pub(crate) fn survey_bucket<'py>(
    py: Python<'py>,
    url: &str,
    options: &Bound<'py, PyDict>,
    patience: f64,
) -> Result<Bound<'py, PyList>> {
    guarded(|| {
        let patience = Duration::try_from_secs_f64(patience).unwrap_or_default();
        let bucket = bucket_at(url, options)?;
        let namespaces = PyList::empty(py);
        for namespace in py.detach(|| bucket.survey(patience))? {
            namespaces.append(namespace_as_dict(py, namespace)?)?;
        }
        Ok(namespaces)
    })
}

/// Removes what a trial has left below a prefix, whose name says that it was made for trials.
#[pyfunction]
pub(crate) fn remove_trial(py: Python<'_>, url: &str, options: &Bound<'_, PyDict>) -> Result<u64> {
    guarded(|| {
        let bucket = bucket_at(url, options)?;
        Ok(py.detach(|| bucket.remove_trial())?)
    })
}

fn bucket_at(url: &str, options: &Bound<'_, PyDict>) -> Result<Arc<Bucket>> {
    let config = config_of(options)?;
    match Place::parse(url)? {
        Place::Objects(place) => Ok(Arc::new(Bucket::connect(&place, &config.object)?)),
        place => Err(Error::new(ErrorKind::Config, format!("{place} is no bucket")).into()),
    }
}

pub(crate) fn directory_at(url: &str) -> kvtier::error::Result<PathBuf> {
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
