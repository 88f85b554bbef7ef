//! `kvtier.HostRows`: rows in memory of kvtier's own, lent to Python without a copy.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use dlpark::ffi::{DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::metadata::Fixed;
use dlpark::python::{DlpackExporter, ExportRequest, export_dlpack};
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use kvtier::buffer::{self, Region};
use kvtier::error::{Error, ErrorKind};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errands;
use crate::errors::{Failure, Result, guarded};

/// Page-aligned, zeroed rows owned by kvtier: `num_rows` rows of `row_bytes` bytes, back to back, in huge pages where
/// the system gives them.
///
/// `memoryview(rows)`, `numpy.asarray(rows)` and `torch.from_dlpack(rows)` are views of shape `(num_rows, row_bytes)`
/// and bytes that share the memory and keep it alive.
///
/// The memory is this process's own: a forked child can't take new views of it or open a tier over it
/// (`ForkedProcessError`), and views that were there before the fork read as zeros there, whatever the parent does. So a
/// fork can't disturb a load that is under way. Rows that processes share are made with `multiprocessing.shared_memory`.
///
/// Args:
///     num_rows: How many rows.
///     row_bytes: Bytes of one row.
///     pinned: Whether the memory is page-locked for fast copies from and to a GPU: "auto" pins where CUDA is there,
///         True insists, False doesn't. This build has no CUDA support, so "auto" doesn't pin and True is an error.
///
/// Raises:
///     InvalidInputError: A number is not positive, or `pinned` is none of the above.
///     UnsupportedError: `pinned=True` in a build without CUDA support.
///     StoreUnavailableError: There is not enough memory.
#[pyclass(frozen, module = "kvtier._kvtier")]
pub(crate) struct HostRows {
    rows: buffer::HostRows,
    /// Numbers that exported buffers point to; the object outlives its exports.
    shape: [ffi::Py_ssize_t; 2],
    strides: [ffi::Py_ssize_t; 2],
}

#[pymethods]
impl HostRows {
    #[new]
    #[pyo3(
        signature = (num_rows, row_bytes, pinned=Pinned::Auto),
        text_signature = "(num_rows, row_bytes, pinned='auto')"
    )]
    fn new(py: Python<'_>, num_rows: isize, row_bytes: isize, pinned: Pinned) -> Result<Self> {
        errands::run(py)?;
        guarded(|| {
            if matches!(pinned, Pinned::Yes) {
                let message = "pinned=True needs CUDA, which this build of kvtier has no support for; pass \"auto\" or \
                               False for ordinary host memory";
                return Err(Error::new(ErrorKind::Unsupported, message).into());
            }
            let (Ok(count @ 1..), Ok(bytes @ 1..)) = (usize::try_from(num_rows), usize::try_from(row_bytes)) else {
                return Err(Failure::invalid_input(format!(
                    "num_rows={num_rows}, row_bytes={row_bytes}: both must be positive"
                )));
            };
            let rows = buffer::HostRows::new(count, bytes)?;
            Ok(Self { rows, shape: [num_rows, row_bytes], strides: [row_bytes, 1] })
        })
    }

    /// How many rows there are.
    #[getter]
    fn num_rows(&self) -> usize {
        self.rows.num_rows()
    }

    /// Bytes of one row.
    #[getter]
    fn row_bytes(&self) -> usize {
        self.rows.row_bytes()
    }

    /// Whether the memory is page-locked for a GPU.
    #[getter]
    #[expect(clippy::unused_self, reason = "a property of the object, once CUDA is there")]
    fn pinned(&self) -> bool {
        false
    }

    fn __len__(&self) -> usize {
        self.rows.num_rows()
    }

    fn __repr__(&self) -> String {
        format!("HostRows(num_rows={}, row_bytes={})", self.num_rows(), self.row_bytes())
    }

    /// The rows as a DLPack capsule of unsigned bytes; `copy=True` and other devices are refused.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        export_dlpack(self, py, ExportRequest::parse(stream, max_version, dl_device, copy)?)
    }

    /// Host memory: `(1, 0)`.
    #[expect(clippy::unused_self, reason = "the protocol's method")]
    fn __dlpack_device__(&self) -> (u32, i32) {
        (DLDevice::CPU.device_type.0, DLDevice::CPU.device_id)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no room for the answer"));
        }
        let this = slf.get();
        this.rows.check_home().map_err(Failure::from)?;
        let asked = |flag: c_int| flags & flag == flag;
        if asked(ffi::PyBUF_F_CONTIGUOUS) && this.shape[0] > 1 && this.shape[1] > 1 {
            return Err(PyBufferError::new_err("HostRows are C-contiguous, not Fortran-contiguous"));
        }
        // SAFETY: `view` is the interpreter's, to be filled by us. `obj` holds a reference to this object, which is
        // frozen and doesn't move, and so keeps the memory, the shape and the strides alive until the release.
        unsafe {
            (*view).buf = this.rows.base().as_ptr().cast();
            (*view).len = this.rows.total_bytes().cast_signed();
            (*view).readonly = 0;
            (*view).itemsize = 1;
            (*view).format = if asked(ffi::PyBUF_FORMAT) { c"B".as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).ndim = if asked(ffi::PyBUF_ND) { 2 } else { 1 };
            (*view).shape = if asked(ffi::PyBUF_ND) { this.shape.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).strides =
                if asked(ffi::PyBUF_STRIDES) { this.strides.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.into_ptr();
        }
        Ok(())
    }
}

impl HostRows {
    pub(crate) fn region(&self) -> Arc<Region> {
        self.rows.region()
    }

    /// A fresh DLPack header over the rows, whose deleter gives up a share of the memory.
    fn export<M: ManagedTensorBase>(&self) -> PyResult<Managed<M>> {
        let layout = Fixed::new(self.shape, self.strides).prepare_as::<M>();
        let layout = layout.map_err(|e| PyBufferError::new_err(e.to_string()))?;
        let mut tensor = layout.initialize(Box::new(self.rows.clone()));
        tensor.set_data(self.rows.base().as_ptr().cast()).set_device(DLDevice::CPU).set_dtype(DLDataType::U8);
        // SAFETY: shape and strides describe the mapping exactly, and the clone of `rows` in the header keeps it mapped.
        Ok(unsafe { tensor.finish() })
    }
}

impl DlpackExporter for HostRows {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn flags(&self) -> DlpackFlags {
        DlpackFlags::empty()
    }

    fn prepare_export(&self, _py: Python<'_>, _request: &ExportRequest<'_>) -> PyResult<()> {
        Ok(self.rows.check_home().map_err(Failure::from)?)
    }

    fn export_legacy(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensor>> {
        self.export()
    }

    fn export_versioned(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensorVersioned>> {
        self.export()
    }
}

/// The `pinned` argument.
#[derive(Clone, Copy)]
enum Pinned {
    Auto,
    Yes,
    No,
}

impl FromPyObject<'_, '_> for Pinned {
    type Error = Failure;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> Result<Self> {
        if let Ok(wanted) = value.extract::<bool>() {
            return Ok(if wanted { Self::Yes } else { Self::No });
        }
        match value.extract::<&str>() {
            Ok("auto") => Ok(Self::Auto),
            _ => Err(Failure::invalid_input(format!(
                "pinned: {} given; \"auto\", True or False accepted",
                value.repr()?
            ))),
        }
    }
}
