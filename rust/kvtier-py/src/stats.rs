//! Counters of a tier as plain numbers; `kvtier.metrics` gives them their names and documentation.

use kvtier::engine::Engine;
use kvtier::metrics::Traffic;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::Result;

/// Everything that can be read in constant time.
pub(crate) fn of<'py>(py: Python<'py>, engine: &Engine) -> Result<Bound<'py, PyDict>> {
    let (metrics, gauges) = (engine.metrics(), engine.gauges()?);
    let stats = PyDict::new(py);
    stats.set_item("stores", traffic(py, &metrics.stores)?)?;
    stats.set_item("loads", traffic(py, &metrics.loads)?)?;
    stats.set_item("already_stored", metrics.already_here.get())?;
    stats.set_item("hits", metrics.hits.get())?;
    stats.set_item("misses", metrics.misses.get())?;
    stats.set_item("retries", metrics.retries.get())?;
    stats.set_item("probes", metrics.probes.get())?;
    stats.set_item("probe_failures", metrics.probe_failures.get())?;
    stats.set_item("events_lost", metrics.events_lost.get())?;
    stats.set_item("resident_blocks", gauges.resident_blocks)?;
    stats.set_item("open_requests", gauges.open_requests)?;
    stats.set_item("open_jobs", gauges.open_jobs)?;
    stats.set_item("queued_loads", gauges.queued_loads)?;
    stats.set_item("queued_stores", gauges.queued_stores)?;
    stats.set_item("inflight_ops", gauges.inflight_ops)?;
    stats.set_item("degraded", gauges.degraded)?;
    stats.set_item("index_complete", gauges.index_complete)?;
    Ok(stats)
}

fn traffic<'py>(py: Python<'py>, traffic: &Traffic) -> Result<Bound<'py, PyDict>> {
    let failures = PyDict::new(py);
    for (kind, count) in traffic.failures.counted() {
        failures.set_item(kind.as_str(), count)?;
    }
    let stats = PyDict::new(py);
    stats.set_item("blocks", traffic.blocks.get())?;
    stats.set_item("bytes", traffic.bytes.get())?;
    stats.set_item("jobs", traffic.jobs.get())?;
    stats.set_item("failures", failures)?;
    stats.set_item("latency_counts", PyTuple::new(py, traffic.latency.buckets())?)?;
    stats.set_item("latency_seconds", traffic.latency.total_seconds())?;
    Ok(stats)
}
