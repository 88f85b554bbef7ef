//! Arguments of calls: keys, row numbers, job numbers, times, options.

use std::time::{Duration, SystemTime};

use kvtier::config::{OptionValue, TierConfig};
use kvtier::layout::BlockKey;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::buffer;
use crate::errors::{Failure, Result};

/// One block key.
pub(crate) fn key_of(key: &Bound<'_, PyAny>) -> Result<BlockKey> {
    match key.cast::<PyBytes>() {
        Ok(bytes) => Ok(BlockKey::new(bytes.as_bytes())?),
        Err(_) => Err(Failure::invalid_input(format!("key: bytes are expected, this is {}", described(key)))),
    }
}

/// The keys of a list, a tuple, or anything that can be iterated over.
pub(crate) fn keys_of(keys: &Bound<'_, PyAny>) -> Result<Vec<BlockKey>> {
    if let Ok(list) = keys.cast::<PyList>() {
        return list.iter().enumerate().map(nth_key).collect();
    }
    if let Ok(tuple) = keys.cast::<PyTuple>() {
        return tuple.iter().enumerate().map(nth_key).collect();
    }
    let Ok(items) = keys.try_iter() else {
        return Err(Failure::invalid_input(format!(
            "keys: a sequence of bytes is expected, this is {}",
            described(keys)
        )));
    };
    items.enumerate().map(|(i, key)| nth_key((i, key?))).collect()
}

fn nth_key((i, key): (usize, Bound<'_, PyAny>)) -> Result<BlockKey> {
    match key.cast::<PyBytes>().map(|bytes| BlockKey::new(bytes.as_bytes())) {
        Ok(Ok(key)) => Ok(key),
        Ok(Err(error)) => Err(Failure::invalid_input(format!("keys[{i}]: {}", error.message()))),
        Err(_) => Err(Failure::invalid_input(format!("keys[{i}]: bytes are expected, this is {}", described(&key)))),
    }
}

/// Row numbers: a buffer of 32-bit or 64-bit integers, or anything that iterates over integers.
pub(crate) fn row_ids_of(row_ids: &Bound<'_, PyAny>) -> Result<Vec<u32>> {
    let row = |(i, number): (usize, i64)| {
        u32::try_from(number).map_err(|_| Failure::invalid_input(format!("row_ids[{i}]: there is no row {number}")))
    };
    if let Some(numbers) = buffer::integers_of(row_ids)? {
        return numbers.into_iter().enumerate().map(row).collect();
    }
    let expected = |what: &str, found: &Bound<'_, PyAny>| {
        Failure::invalid_input(format!("{what} expected, this is {}", described(found)))
    };
    let Ok(items) = row_ids.try_iter() else {
        return Err(expected("row_ids: an int32 or int64 buffer or a sequence of integers is", row_ids));
    };
    items
        .enumerate()
        .map(|(i, item)| {
            let item = item?;
            let number =
                item.extract().map_err(|_| expected(&format!("row_ids[{i}]: an integer below 2**32 is"), &item))?;
            row((i, number))
        })
        .collect()
}

/// A job's number: 0 to 2**64 - 1.
#[derive(Clone, Copy)]
pub(crate) struct JobId(pub(crate) u64);

impl FromPyObject<'_, '_> for JobId {
    type Error = Failure;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> Result<Self> {
        value.extract().map(Self).map_err(|_| {
            Failure::invalid_input(format!(
                "job_id: an integer from 0 to 2**64 - 1 is expected, this is {}",
                described(&value)
            ))
        })
    }
}

/// Seconds to wait; `None` waits for ever.
pub(crate) fn timeout_of(seconds: Option<f64>) -> Result<Option<Duration>> {
    match seconds {
        None => Ok(None),
        Some(seconds) => Duration::try_from_secs_f64(seconds).map(Some).map_err(|_| {
            Failure::invalid_input(format!("timeout: None or a number of seconds from 0 on is expected, not {seconds}"))
        }),
    }
}

/// A moment in seconds since 1970, as `time.time()` gives them; `None` never comes.
pub(crate) fn moment_of(name: &str, seconds: Option<f64>) -> Result<Option<SystemTime>> {
    let Some(seconds) = seconds else { return Ok(None) };
    let moment = Duration::try_from_secs_f64(seconds).ok().and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
    moment.map(Some).ok_or_else(|| {
        Failure::invalid_input(format!(
            "{name}: None or seconds since 1970, as time.time() gives them, are expected, not {seconds}"
        ))
    })
}

/// The options of a tier; one error lists everything that is wrong with them.
pub(crate) fn config_of(options: &Bound<'_, PyDict>) -> Result<TierConfig> {
    let options = options.iter().map(|(name, value)| Ok((name.extract::<String>()?, option_value(&value)?)));
    let options = options.collect::<Result<Vec<_>>>()?;
    Ok(TierConfig::parse(options.iter().map(|(name, value)| (name.as_str(), value.clone())))?)
}

fn option_value(value: &Bound<'_, PyAny>) -> Result<OptionValue> {
    Ok(if value.is_none() {
        OptionValue::None
    } else if let Ok(truth) = value.cast::<PyBool>() {
        OptionValue::Bool(truth.is_true())
    } else if let Ok(text) = value.cast::<PyString>() {
        OptionValue::Text(text.to_string_lossy().into_owned())
    } else if value.is_instance_of::<PyFloat>() {
        OptionValue::Float(value.extract()?)
    } else if value.is_instance_of::<PyInt>() {
        value.extract().map_or_else(|_| OptionValue::Other("number beyond all limits".into()), OptionValue::Int)
    } else {
        OptionValue::Other(value.get_type().qualname()?.to_string())
    })
}

/// What somebody passed instead of what was expected.
fn described(value: &Bound<'_, PyAny>) -> String {
    let class = value.get_type().qualname().map_or_else(|_| "something else".into(), |name| name.to_string());
    match value.repr() {
        Ok(text) if text.len().is_ok_and(|n| n <= 40) => format!("{class} {text}"),
        _ => format!("of type {class}"),
    }
}
