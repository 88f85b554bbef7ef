//! Memory by DLPack: torch tensors and every other producer of the protocol.

use dlpark::DlpackFlags;
use dlpark::ffi::{DLDevice, DLDeviceType};
use dlpark::python::{ImportRequest, ImportedDlpack};
use kvtier::error::{Error, ErrorKind};
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::Array;
use crate::errands::DroppedByPython;
use crate::errors::{Failure, Result};

/// Newest version of the protocol that is understood.
const MAX_VERSION: (u32, u32) = (1, 3);

/// The memory of `object`, held until the array's owner is dropped; `None` when it is no DLPack producer.
///
/// # Errors
/// `Unsupported` for memory of a device, `InvalidInput` for what can't be rows, and whatever the producer raises.
pub(crate) fn array_of(object: &Bound<'_, PyAny>, name: &str) -> Result<Option<Array>> {
    let py = object.py();
    if !object.hasattr(intern!(py, "__dlpack__"))? {
        return Ok(None);
    }
    // Asked first, since exporting from a device may cost a synchronisation, or a copy.
    if let Some(device) = announced_device(object)? {
        check_device(device, name)?;
    }
    hold_in_place(object);
    let tensor = import(object)?;
    let invalid = |why: &str| Failure::invalid_input(format!("{name}: {why}"));
    if tensor.flags().contains(DlpackFlags::IS_COPIED) {
        return Err(invalid("the producer hands out a copy; kvtier needs the memory itself"));
    }
    let writable = !tensor.flags().contains(DlpackFlags::READ_ONLY);
    let described = tensor.validate().map_err(|e| invalid(&e.to_string()))?;
    // A pinned tensor announces itself as kDLCUDAHost, but its capsule says kDLCPU.
    check_device(described.device(), name)?;
    let dtype = described.dtype();
    let bits = usize::from(dtype.bits) * usize::from(dtype.lanes);
    if !bits.is_multiple_of(8) {
        return Err(invalid(&format!("elements of {bits} bits; whole bytes are needed")));
    }
    let item_bytes = bits / 8;
    let strides = described.strides_or_compact().map_err(|e| invalid(&e.to_string()))?;
    let array = Array {
        // SAFETY: only computes the address; whether it may be touched is for `rows::region_of` to promise.
        base: unsafe { described.offset_bytes_ptr() }.map_err(|e| invalid(&e.to_string()))?.cast_mut(),
        item_bytes,
        shape: described.shape().iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect(),
        strides: strides.iter().map(|n| *n as isize * item_bytes.cast_signed()).collect(),
        writable,
        owner: Box::new(()),
    };
    Ok(Some(Array { owner: Box::new(DroppedByPython::new(tensor)), ..array }))
}

/// Takes the capsule by the newest version that both sides know; an old producer takes no `max_version`.
///
/// The capsule is asked for here and not by the DLPack crate, which would refuse pinned tensors (see above).
fn import(object: &Bound<'_, PyAny>) -> PyResult<ImportedDlpack> {
    let py = object.py();
    let options = PyDict::new(py);
    options.set_item(intern!(py, "max_version"), MAX_VERSION)?;
    let method = object.getattr(intern!(py, "__dlpack__"))?;
    let capsule = match method.call((), Some(&options)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => method.call0()?,
        answer => answer?,
    };
    ImportRequest::new(capsule.as_borrowed())?.import(None, None)
}

/// The device that the producer names; producers older than 2021 name none.
fn announced_device(object: &Bound<'_, PyAny>) -> PyResult<Option<DLDevice>> {
    match object.call_method0(intern!(object.py(), "__dlpack_device__")) {
        Ok(answer) => {
            let (device_type, device_id): (u32, i32) = answer.extract()?;
            Ok(Some(DLDevice { device_type: DLDeviceType(device_type), device_id }))
        }
        Err(error) if error.is_instance_of::<PyAttributeError>(object.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

fn check_device(device: DLDevice, name: &str) -> Result<()> {
    let what = match device.device_type {
        DLDeviceType::CPU | DLDeviceType::CUDAHOST => return Ok(()),
        DLDeviceType::CUDA | DLDeviceType::CUDAMANAGED => "CUDA rows are not supported yet".to_owned(),
        DLDeviceType(other) => format!("memory of DLPack device type {other} is not supported"),
    };
    let message = format!("{name}: {what}; hand over rows in host memory, such as pinned tensors or kvtier.HostRows");
    Err(Error::new(ErrorKind::Unsupported, message).into())
}

/// Has torch keep the tensor's memory where it is.
///
/// A torch storage may be reallocated under everybody who points into it (`Tensor.resize_`), also while it is exported
/// by DLPack, until NumPy has looked at it once. So let it look; without NumPy, or for another producer, the promise
/// not to do that stays the caller's.
fn hold_in_place(object: &Bound<'_, PyAny>) {
    let attempt = || -> PyResult<()> {
        let modules = object.py().import("sys")?.getattr("modules")?;
        let torch = modules.get_item("torch")?;
        if object.is_instance(&torch.getattr("Tensor")?)? {
            object.call_method0("detach")?.call_method1("view", (torch.getattr("uint8")?,))?.call_method0("numpy")?;
        }
        Ok(())
    };
    let _ = attempt();
}
