//! Python objects to [`Value`]s and back, as Python's own `json` takes and gives them.

use kvtier::identity::{Fields, Float, Int, MAX_DEPTH, Text, Value};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::errors::{Failure, Result};

/// The text that identities are hashed over: what ``json.dumps(value, sort_keys=True, separators=(",", ":"))`` gives.
#[pyfunction]
#[pyo3(signature = (value, /))]
pub(crate) fn canonical_json(value: &Bound<'_, PyAny>) -> Result<String> {
    Ok(value_of(value, "value")?.to_canonical_json())
}

/// The value of a Python object; `name` says in errors which argument it belongs to.
pub(super) fn value_of(object: &Bound<'_, PyAny>, name: &str) -> Result<Value> {
    Way { name, step: None }.value_of(object, 0)
}

/// The way from an argument to a part of it, put into words only when something is wrong there.
#[derive(Clone, Copy)]
struct Way<'a> {
    name: &'a str,
    step: Option<(&'a Way<'a>, Step<'a>)>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Item(usize),
    Key(&'a Text),
}

impl<'a> Way<'a> {
    fn then(&'a self, step: Step<'a>) -> Self {
        Self { name: self.name, step: Some((self, step)) }
    }

    fn value_of(&self, object: &Bound<'_, PyAny>, depth: usize) -> Result<Value> {
        if object.is_none() {
            return Ok(Value::Null);
        }
        // A bool is an int in Python, so it comes first.
        if let Ok(flag) = object.cast::<PyBool>() {
            return Ok(flag.is_true().into());
        }
        if let Ok(text) = object.cast::<PyString>() {
            return text_of(text).map(Value::Text);
        }
        if let Ok(float) = object.cast::<PyFloat>() {
            let float = Float::new(float.value());
            return float.map(Value::Float).ok_or_else(|| self.refused(object, "a finite number is accepted"));
        }
        if let Ok(dict) = object.cast::<PyDict>() {
            return self.map_of(dict, depth);
        }
        if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            return self.list_of(object, depth);
        }
        int_of(object).map(Value::Int).ok_or_else(|| {
            self.refused(object, "None, bool, int, finite float, str, and lists and dicts of these are accepted")
        })
    }

    fn list_of(&self, items: &Bound<'_, PyAny>, depth: usize) -> Result<Value> {
        self.check_depth(depth)?;
        let mut list = Vec::new();
        for (i, item) in items.try_iter()?.enumerate() {
            list.push(self.then(Step::Item(i)).value_of(&item?, depth + 1)?);
        }
        Ok(Value::List(list))
    }

    fn map_of(&self, dict: &Bound<'_, PyDict>, depth: usize) -> Result<Value> {
        self.check_depth(depth)?;
        // A list of the items, since converting them may run Python code that changes the dict.
        dict.items()
            .iter()
            .map(|item| {
                let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
                let Ok(key) = key.cast::<PyString>() else {
                    return Err(self.refused_key(&key));
                };
                let key = text_of(key)?;
                let value = self.then(Step::Key(&key)).value_of(&value, depth + 1)?;
                Ok((key, value))
            })
            .collect::<Result<_>>()
            .map(Value::Map)
    }

    fn check_depth(&self, depth: usize) -> Result<()> {
        if depth < MAX_DEPTH {
            return Ok(());
        }
        let message = format!("{} nests deeper than {MAX_DEPTH} levels, or holds itself", self.name);
        Err(Failure::invalid_input(message))
    }

    fn refused(&self, object: &Bound<'_, PyAny>, accepted: &str) -> Failure {
        let message = format!("{} is {}, {accepted}", self.spelled(), shown(object));
        Failure::invalid_input(message)
    }

    fn refused_key(&self, key: &Bound<'_, PyAny>) -> Failure {
        let message = format!("{} has the key {}, keys are text", self.spelled(), shown(key));
        Failure::invalid_input(message)
    }

    /// `rope.factors[3]`
    fn spelled(&self) -> String {
        match self.step {
            None => self.name.to_owned(),
            Some((before, Step::Item(i))) => format!("{}[{i}]", before.spelled()),
            Some((before, Step::Key(key))) => format!("{}.{key}", before.spelled()),
        }
    }
}

/// An object as it is shown in errors: its `repr`, shortened.
pub(super) fn shown(object: &Bound<'_, PyAny>) -> String {
    const LONGEST: usize = 80;
    let Ok(repr) = object.repr() else { return "an object without repr".into() };
    let repr = repr.to_string_lossy();
    match repr.char_indices().nth(LONGEST) {
        None => repr.into_owned(),
        Some((end, _)) => format!("{} …", &repr[..end]),
    }
}

/// The integer that an object is: an `int` but not a `bool`, or what has `__index__`, such as numpy's integers.
pub(super) fn int_of(object: &Bound<'_, PyAny>) -> Option<Int> {
    if object.is_instance_of::<PyBool>() {
        return None;
    }
    if let Ok(small) = object.extract::<i64>() {
        return Some(small.into());
    }
    // `int.__repr__`, as Python's json does it, so that a subclass such as an enum can't spell itself otherwise.
    let py = object.py();
    let index =
        if object.is_instance_of::<PyInt>() { object.clone() } else { object.call_method0("__index__").ok()? };
    let digits = py.get_type::<PyInt>().call_method1("__repr__", (index,)).ok()?;
    Int::from_decimal(digits.cast::<PyString>().ok()?.to_str().ok()?)
}

/// Any `str`, lone surrogates included.
pub(super) fn text_of(text: &Bound<'_, PyString>) -> Result<Text> {
    if let Ok(plain) = text.to_str() {
        return Ok(plain.into());
    }
    let bytes = text.call_method1("encode", ("utf-8", "surrogatepass"))?;
    Ok(Text::from_generalised_utf8(bytes.cast::<PyBytes>().map_err(PyErr::from)?.as_bytes().to_vec())?)
}

/// The `str` of a text.
pub(super) fn text_to_python<'py>(py: Python<'py>, text: &Text) -> PyResult<Bound<'py, PyAny>> {
    match text.as_str() {
        Some(plain) => Ok(PyString::new(py, plain).into_any()),
        None => PyBytes::new(py, text.as_bytes()).call_method1("decode", ("utf-8", "surrogatepass")),
    }
}

/// The `int` of an integer of any size.
pub(super) fn int_to_python<'py>(py: Python<'py>, int: &Int) -> PyResult<Bound<'py, PyAny>> {
    match int.as_decimal().parse::<i64>() {
        Ok(small) => Ok(small.into_pyobject(py)?.into_any()),
        Err(_) => py.get_type::<PyInt>().call1((int.as_decimal(),)),
    }
}

/// The object that Python's `json.loads` would give.
pub(super) fn value_to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(flag) => Ok(PyBool::new(py, *flag).to_owned().into_any()),
        Value::Int(int) => int_to_python(py, int),
        Value::Float(float) => Ok(PyFloat::new(py, float.get()).into_any()),
        Value::Text(text) => text_to_python(py, text),
        Value::List(items) => {
            let list = PyList::empty(py);
            items.iter().try_for_each(|item| list.append(value_to_python(py, item)?))?;
            Ok(list.into_any())
        }
        Value::Map(map) => {
            let dict = PyDict::new(py);
            for (key, value) in map {
                dict.set_item(text_to_python(py, key)?, value_to_python(py, value)?)?;
            }
            Ok(dict.into_any())
        }
    }
}

/// A new dict of fields, in their order of reading.
pub(super) fn fields_to_python<'py>(py: Python<'py>, fields: &Fields) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in fields.iter() {
        dict.set_item(text_to_python(py, name)?, value_to_python(py, value)?)?;
    }
    Ok(dict)
}
