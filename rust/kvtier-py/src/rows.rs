//! The rows that an engine hands over, as a core region.

use std::any::Any;
use std::sync::Arc;

use kvtier::buffer::{Region, RowLease, RowPart};
use kvtier::error::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::array::Array;
use crate::errands::RunOnDrop;
use crate::errors::{Failure, Result, guarded};
use crate::host_rows::HostRows;
use crate::{buffer, dlpack, errands};

const ACCEPTED: &str = "accepted are a buffer (memoryview, numpy array, mmap, ...), a DLPack producer (torch tensor, ...), \
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
        errands::run(source.py())?;
        guarded(|| {
            let region = region_of("source", source, row_bytes)?;
            Ok(Self { region, _release: RunOnDrop })
        })
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

/// The memory behind `source` as rows: an array, or a list of arrays that each hold a part of every row. `row_bytes`
/// splits an array of one dimension, and others must have rows of that length. `name` is the argument's, for errors.
///
/// # Errors
/// `InvalidInput` naming what is wrong and what is accepted, `Unsupported` for memory of a device.
pub(crate) fn region_of(name: &str, source: &Bound<'_, PyAny>, row_bytes: Option<usize>) -> Result<Arc<Region>> {
    let region = if let Ok(host_rows) = source.cast::<HostRows>() {
        host_rows.get().region()
    } else if let Ok(rows) = source.cast::<Rows>() {
        Arc::clone(&rows.get().region)
    } else if let Some(arrays) = as_sequence(source) {
        scattered(name, &arrays)?
    } else {
        let array = array_of(name, source)?;
        let (part, num_rows) = array.as_rows(name, row_bytes)?;
        region_over(vec![part], num_rows, array.writable, array.owner)?
    };
    match row_bytes {
        Some(expected) if expected != region.row_bytes() => Err(Failure::invalid_input(format!(
            "{name}: a row has {} bytes, but row_bytes is {expected}",
            region.row_bytes()
        ))),
        _ => Ok(region),
    }
}

/// Where each of several blocks lies: in the rows of one array, or in arrays of their own.
///
/// # Errors
/// As [`region_of`].
pub(crate) fn blocks_of(name: &str, source: &Bound<'_, PyAny>, row_bytes: usize) -> Result<Vec<(Arc<Region>, usize)>> {
    let Some(blocks) = as_sequence(source) else {
        let region = region_of(name, source, Some(row_bytes))?;
        return Ok((0..region.num_rows()).map(|row| (Arc::clone(&region), row)).collect());
    };
    let block = |(i, block): (usize, &Bound<'_, PyAny>)| {
        let name = format!("{name}[{i}]");
        let array = array_of(&name, block)?.into_one_row();
        let (part, _) = array.as_rows(&name, None)?;
        if part.row_bytes != row_bytes {
            let message = format!("{name}: a block has {} bytes, but row_bytes is {row_bytes}", part.row_bytes);
            return Err(Failure::invalid_input(message));
        }
        Ok((region_over(vec![part], 1, array.writable, array.owner)?, 0))
    };
    blocks.iter().enumerate().map(block).collect()
}

/// One region over several arrays, each of which holds a part of every row.
fn scattered(name: &str, sources: &[Bound<'_, PyAny>]) -> Result<Arc<Region>> {
    let name_of = |i: usize| format!("{name}[{i}]");
    let arrays = sources.iter().enumerate().map(|(i, source)| array_of(&name_of(i), source));
    let arrays = arrays.collect::<Result<Vec<_>>>()?;
    let mut parts = Vec::with_capacity(arrays.len());
    let mut num_rows = None;
    for (i, array) in arrays.iter().enumerate() {
        let (part, count) = array.as_rows(&name_of(i), None)?;
        let expected = *num_rows.get_or_insert(count);
        if count != expected {
            let (this, first) = (name_of(i), name_of(0));
            let message = format!("{this} has {count} rows, and {first} has {expected}; all must have as many");
            return Err(Failure::invalid_input(message));
        }
        if let Some(j) = arrays[..i].iter().position(|other| other.base == array.base) {
            return Err(Failure::invalid_input(format!("{} and {} are the same memory", name_of(j), name_of(i))));
        }
        parts.push(part);
    }
    let Some(num_rows) = num_rows else {
        return Err(Failure::invalid_input(format!("{name}: an empty list; {ACCEPTED}")));
    };
    let writable = arrays.iter().all(|array| array.writable);
    let owners: Vec<Box<dyn Any + Send + Sync>> = arrays.into_iter().map(|array| array.owner).collect();
    region_over(parts, num_rows, writable, Box::new(owners))
}

/// A region over memory that was imported as [`Array`]s, whose owners are in `owner`.
fn region_over(
    parts: Vec<RowPart>,
    num_rows: usize,
    writable: bool,
    owner: Box<dyn Any + Send + Sync>,
) -> Result<Arc<Region>> {
    // SAFETY: the protocols that arrays come by promise that their memory is mapped, and writable if they say so, until
    // the export is given back, which the owner does when it is dropped; `Array::as_rows` stays within it. That nobody
    // touches a row while an operation on it is open is what an engine promises by submitting the job (`kvtier.open`
    // documents it).
    Ok(unsafe { Region::from_parts(parts, num_rows, writable, owner)? })
}

/// The items of a list or tuple; other sequences are arrays.
fn as_sequence<'py>(source: &Bound<'py, PyAny>) -> Option<Vec<Bound<'py, PyAny>>> {
    if let Ok(list) = source.cast::<PyList>() {
        return Some(list.iter().collect());
    }
    source.cast::<PyTuple>().ok().map(|tuple| tuple.iter().collect())
}

fn array_of(name: &str, object: &Bound<'_, PyAny>) -> Result<Array> {
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
