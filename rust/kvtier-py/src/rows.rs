//! The rows that an engine hands over, as a core region.

use std::any::Any;
use std::sync::Arc;

use kvtier::buffer::{Region, RowLease};
use kvtier::error::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::array::Array;
use crate::errands::RunOnDrop;
use crate::errors::{Failure, Result, guarded};
use crate::host_rows::HostRows;
use crate::{buffer, dlpack, errands};

const ACCEPTED: &str = "rows must be a buffer (memoryview, numpy array, mmap, ...), a DLPack producer (torch tensor, ...), \
                        kvtier.HostRows, or a list of these";

/// The rows of a tier: memory that kvtier and the engine both see.
///
/// Row `i` is `row_bytes` bytes: those of the array's row `i`, or of several arrays' row `i` one after another. The
/// memory stays alive, and is held where it is, until this object and every tier that uses it are gone.
#[pyclass(frozen, module = "kvtier._kvtier")]
pub(crate) struct Rows {
    region: Arc<Region>,
    _release: RunOnDrop,
}

#[pymethods]
impl Rows {
    /// Takes `source` as rows; see `kvtier.open` for what is accepted.
    #[new]
    #[pyo3(signature = (source, row_bytes=None))]
    fn new(source: &Bound<'_, PyAny>, row_bytes: Option<usize>) -> Result<Self> {
        errands::run(source.py());
        guarded(|| Ok(Self { region: region_of(source, row_bytes)?, _release: RunOnDrop }))
    }

    /// How many rows there are.
    #[getter]
    fn num_rows(&self) -> usize {
        self.region.num_rows()
    }

    /// Bytes of one row, over all arrays.
    #[getter]
    fn row_bytes(&self) -> usize {
        self.region.row_bytes()
    }

    /// Whether loads may write into the rows.
    #[getter]
    fn writable(&self) -> bool {
        self.region.is_writable()
    }

    /// Whether every piece of every row begins and ends at a multiple of `align`, as direct IO wants it.
    fn is_aligned_to(&self, align: usize) -> Result<bool> {
        if align == 0 {
            return Err(Failure::invalid_input("align: must be positive"));
        }
        Ok(self.region.is_aligned_to(align))
    }

    /// A copy of one row, for looking at it.
    fn copy_of(&self, py: Python<'_>, row: usize) -> Result<Py<PyBytes>> {
        let access = RowLease::unbounded(&self.region, row)?.enter()?;
        Ok(PyBytes::new(py, &access.segments().collect::<Vec<_>>().concat()).unbind())
    }

    fn __repr__(&self) -> String {
        let read_only = if self.writable() { "" } else { ", read-only" };
        format!("Rows({} rows of {} bytes{read_only})", self.num_rows(), self.row_bytes())
    }
}

/// The memory behind `source` as rows; `row_bytes` splits an array of one dimension, and is checked for the others.
///
/// # Errors
/// `InvalidInput` naming what is wrong and what is accepted, `Unsupported` for memory of a device.
pub(crate) fn region_of(source: &Bound<'_, PyAny>, row_bytes: Option<usize>) -> Result<Arc<Region>> {
    let region = if let Ok(host_rows) = source.cast::<HostRows>() {
        host_rows.get().region()
    } else if let Ok(rows) = source.cast::<Rows>() {
        Arc::clone(&rows.get().region)
    } else if let Some(arrays) = as_sequence(source) {
        let arrays = arrays.iter().enumerate();
        scattered(arrays.map(|(i, item)| array_of(item, &format!("rows[{i}]"))).collect::<Result<_>>()?)?
    } else {
        let array = array_of(source, "rows")?;
        let (part, num_rows) = array.as_rows("rows", row_bytes)?;
        // SAFETY: the protocol that `array` came by promises that this memory is mapped, and writable if it says so,
        // until the export is given back, which the owner does when it is dropped. That nobody touches a row while an
        // operation on it is open is what an engine promises by submitting the job (`kvtier.open` documents it).
        unsafe { Region::from_parts(vec![part], num_rows, array.writable, array.owner)? }
    };
    match row_bytes {
        Some(expected) if expected != region.row_bytes() => Err(Failure::invalid_input(format!(
            "rows: a row has {} bytes, and the identity says {expected}",
            region.row_bytes()
        ))),
        _ => Ok(region),
    }
}

/// One region over several arrays, each of which holds a part of every row.
fn scattered(arrays: Vec<Array>) -> Result<Arc<Region>> {
    let mut parts = Vec::with_capacity(arrays.len());
    let mut num_rows = None;
    for (i, array) in arrays.iter().enumerate() {
        let (part, count) = array.as_rows(&format!("rows[{i}]"), None)?;
        let expected = *num_rows.get_or_insert(count);
        if count != expected {
            let message = format!("rows[{i}] has {count} rows, and rows[0] has {expected}; all must have as many");
            return Err(Failure::invalid_input(message));
        }
        if let Some(j) = arrays[..i].iter().position(|other| other.base == array.base) {
            return Err(Failure::invalid_input(format!("rows[{j}] and rows[{i}] are the same memory")));
        }
        parts.push(part);
    }
    let Some(num_rows) = num_rows else {
        return Err(Failure::invalid_input(format!("rows: an empty list; {ACCEPTED}")));
    };
    let writable = arrays.iter().all(|array| array.writable);
    let owners: Vec<Box<dyn Any + Send + Sync>> = arrays.into_iter().map(|array| array.owner).collect();
    // SAFETY: as in `region_of`, for each array; `owners` holds all of their exports.
    Ok(unsafe { Region::from_parts(parts, num_rows, writable, Box::new(owners))? })
}

/// The items of a list or tuple; other sequences are arrays.
fn as_sequence<'py>(source: &Bound<'py, PyAny>) -> Option<Vec<Bound<'py, PyAny>>> {
    if let Ok(list) = source.cast::<PyList>() {
        return Some(list.iter().collect());
    }
    source.cast::<PyTuple>().ok().map(|tuple| tuple.iter().collect())
}

fn array_of(object: &Bound<'_, PyAny>, name: &str) -> Result<Array> {
    let says_no = |error: Failure| match error {
        Failure::Python(error) => {
            Error::new(ErrorKind::InvalidInput, format!("{name}: the object doesn't hand over its memory: {error}"))
                .into()
        }
        core @ Failure::Core(_) => core,
    };
    if let Some(array) = buffer::array_of(object).map_err(|e| says_no(e.into()))? {
        return Ok(array);
    }
    if let Some(array) = dlpack::array_of(object, name).map_err(says_no)? {
        return Ok(array);
    }
    let class = object.get_type().qualname()?;
    Err(Failure::invalid_input(format!("{name}: an object of type {class} has no memory to share; {ACCEPTED}")))
}
