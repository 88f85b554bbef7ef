//! Memory by Python's buffer protocol: memoryview, numpy arrays, mmap, bytearray, shared memory.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::slice;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::array::Array;
use crate::errands::DroppedByPython;

/// The memory of `object`, held until the array's owner is dropped; `None` when it doesn't speak the protocol.
///
/// # Errors
/// Whatever the object raises when asked for its buffer.
pub(crate) fn array_of(object: &Bound<'_, PyAny>) -> PyResult<Option<Array>> {
    // SAFETY: a live object, and this thread is attached to the interpreter.
    if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
        return Ok(None);
    }
    let held = hold(object)?;
    let view = &held.0;
    let ndim = usize::try_from(view.ndim).unwrap_or(0);
    // SAFETY: PyBUF_STRIDES was asked for, so shape and strides point to `ndim` numbers that live as long as the view.
    let (shape, strides) = unsafe { (numbers(view.shape, ndim), numbers(view.strides, ndim)) };
    Ok(Some(Array {
        base: view.buf.cast(),
        item_bytes: usize::try_from(view.itemsize).unwrap_or(0),
        shape: shape.iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect(),
        strides: strides.to_vec(),
        writable: view.readonly == 0,
        owner: Box::new(DroppedByPython::new(held)),
    }))
}

/// The numbers in a one-dimensional buffer of native 32-bit or 64-bit integers; `None` for anything else.
pub(crate) fn integers_of(object: &Bound<'_, PyAny>) -> PyResult<Option<Vec<i64>>> {
    // SAFETY: a live object, and this thread is attached to the interpreter.
    if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
        return Ok(None);
    }
    let held = Held::of(object, ffi::PyBUF_STRIDES | ffi::PyBUF_FORMAT)?;
    let view = &held.0;
    let (1, Some(letter)) = (view.ndim, held.format().and_then(native_letter)) else { return Ok(None) };
    // SAFETY: one dimension, and PyBUF_STRIDES was asked for.
    let (count, stride) = unsafe { (*view.shape, *view.strides) };
    let read = |i: ffi::Py_ssize_t| {
        // SAFETY: `i` is below `count`, so this is the address of an element of `itemsize` bytes; the interpreter's lock
        // is held, so nobody takes the memory away.
        let element = unsafe { view.buf.cast::<u8>().offset(i * stride) };
        // SAFETY: as above; the sizes are those of the match.
        unsafe {
            match (letter, view.itemsize) {
                (b'i' | b'l' | b'q', 4) => Some(element.cast::<i32>().read_unaligned().into()),
                (b'i' | b'l' | b'q', 8) => Some(element.cast::<i64>().read_unaligned()),
                (b'I' | b'L' | b'Q', 4) => Some(element.cast::<u32>().read_unaligned().into()),
                // What is too large for i64 is no number of anything.
                (b'I' | b'L' | b'Q', 8) => {
                    Some(i64::try_from(element.cast::<u64>().read_unaligned()).unwrap_or(i64::MAX))
                }
                _ => None,
            }
        }
    };
    Ok((0..count).map(read).collect())
}

/// The element type's letter, if it is a single element in this machine's byte order.
fn native_letter(format: &[u8]) -> Option<u8> {
    match format {
        [letter] | [b'@' | b'=', letter] => Some(*letter),
        [b'<', letter] if cfg!(target_endian = "little") => Some(*letter),
        _ => None,
    }
}

/// Takes an export of `object`, unless its elements are Python objects: a load would overwrite the references.
///
/// Exporters refuse to describe types that the protocol has no letter for, such as bfloat16; those that say by their
/// `dtype` that they hold no object are asked again for the bytes alone.
fn hold(object: &Bound<'_, PyAny>) -> PyResult<Held> {
    let error = match Held::of(object, ffi::PyBUF_STRIDES | ffi::PyBUF_FORMAT) {
        Ok(held) if held.format().is_some_and(|format| format.contains(&b'O')) => {
            PyTypeError::new_err("its elements are Python objects")
        }
        Ok(held) => return Ok(held),
        Err(error) => error,
    };
    let plain = object.getattr("dtype").and_then(|dtype| dtype.getattr("hasobject")?.extract::<bool>());
    if matches!(plain, Ok(false)) { Held::of(object, ffi::PyBUF_STRIDES) } else { Err(error) }
}

/// One export of a buffer. While it lasts, the exporter neither frees nor moves the memory.
///
/// Boxed, since an exporter may point from the structure into itself.
struct Held(Box<ffi::Py_buffer>);

// SAFETY: between import and release nobody looks at the fields, and the release runs on a thread that is attached to
// the interpreter (`DroppedByPython`).
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

impl Held {
    fn of(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        // SAFETY: a live object, room for the result, and this thread is attached to the interpreter.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: success means that the exporter has filled the structure; `Box::assume_init` doesn't move it.
        Ok(Self(unsafe { view.assume_init() }))
    }

    /// What the elements are, as `struct` would write it.
    fn format(&self) -> Option<&[u8]> {
        // SAFETY: unless null, the format is a C string of the exporter's that lives as long as the export.
        (!self.0.format.is_null()).then(|| unsafe { CStr::from_ptr(self.0.format) }.to_bytes())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: filled by PyObject_GetBuffer and released once, on a thread attached to the interpreter: either
        // `array_of` is still running, or this is an errand.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// # Safety
/// Unless null, `first` points to `count` numbers that live for `'a`.
unsafe fn numbers<'a>(first: *const ffi::Py_ssize_t, count: usize) -> &'a [ffi::Py_ssize_t] {
    // SAFETY: the caller's promise.
    if first.is_null() { &[] } else { unsafe { slice::from_raw_parts(first, count) } }
}
