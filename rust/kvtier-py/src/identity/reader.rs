//! Reads Python arguments as facts and collects everything that is wrong with them into one error.

use kvtier::identity::{Facts, Group, Identity, Int, Text, Value};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyString, PyTuple};

use super::value::{int_of, shown, text_of, value_of};
use crate::errors::{Failure, Result};

/// An argument that may have been left out, which is not the same as `None`.
pub(super) enum Arg<'py> {
    /// Left out.
    Default,
    /// Given, be it `None`.
    Given(Bound<'py, PyAny>),
}

impl<'py> FromPyObject<'_, 'py> for Arg<'py> {
    type Error = std::convert::Infallible;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> Result<Self, Self::Error> {
        Ok(Self::Given(object.to_owned()))
    }
}

/// Collects problems while it reads.
///
/// What can't be read is replaced by something that has no problem of its own; no identity comes of it.
#[derive(Default)]
pub(super) struct Reader {
    problems: Vec<String>,
}

impl Reader {
    /// The identity of the facts that were read, or the error that lists what is wrong with any of them.
    pub(super) fn identity_of(self, facts: Facts) -> Result<Identity> {
        Ok(Identity::unless(self.problems, facts)?)
    }

    /// The error that lists what could not be read, if anything.
    pub(super) fn finish(self) -> Result<()> {
        if self.problems.is_empty() { Ok(()) } else { Err(Failure::invalid_input(self.problems.join("; "))) }
    }

    /// A size that must be there.
    pub(super) fn required_size(&mut self, name: &str, object: &Bound<'_, PyAny>) -> u64 {
        let int = int_of(object);
        int.as_ref().and_then(Int::to_u64).unwrap_or_else(|| {
            let is_large = int.is_some_and(|int| !int.as_decimal().starts_with('-'));
            let accepted =
                if is_large { "less than 2**64 is accepted" } else { "an integer of at least 1 is accepted" };
            self.refuse(name, object, accepted);
            1
        })
    }

    /// A size that has a default.
    pub(super) fn size(&mut self, name: &str, arg: &Arg<'_>, default: u64) -> u64 {
        match arg {
            Arg::Default => default,
            Arg::Given(object) => self.required_size(name, object),
        }
    }

    /// A size that may be unknown.
    pub(super) fn optional_size(&mut self, name: &str, arg: &Arg<'_>) -> Option<u64> {
        Some(self.required_size(name, stated(arg)?))
    }

    /// The rank, 0 when it is left out.
    pub(super) fn rank(&mut self, arg: &Arg<'_>) -> u32 {
        let Arg::Given(object) = arg else { return 0 };
        let rank = int_of(object).and_then(|int| int.to_u64()).and_then(|rank| u32::try_from(rank).ok());
        rank.unwrap_or_else(|| {
            self.refuse("rank", object, "an integer from 0 to 4294967295 is accepted");
            0
        })
    }

    /// A flag, false when it is left out.
    pub(super) fn flag(&mut self, name: &str, arg: &Arg<'_>) -> bool {
        let Arg::Given(object) = arg else { return false };
        if let Ok(flag) = object.cast::<PyBool>() {
            return flag.is_true();
        }
        self.refuse(name, object, "True or False is accepted");
        false
    }

    /// A flag that may be left unstated.
    pub(super) fn optional_flag(&mut self, name: &str, arg: &Arg<'_>) -> Option<bool> {
        stated(arg).map(|_| self.flag(name, arg))
    }

    /// A text that must be there.
    pub(super) fn text(&mut self, name: &str, object: &Bound<'_, PyAny>) -> Text {
        let text = object.cast::<PyString>().ok().and_then(|text| text_of(text).ok());
        text.unwrap_or_else(|| {
            self.refuse(name, object, "text is accepted");
            no_text()
        })
    }

    /// A text that has a default.
    pub(super) fn text_or(&mut self, name: &str, arg: &Arg<'_>, default: &str) -> Text {
        match arg {
            Arg::Default => default.into(),
            Arg::Given(object) => self.text(name, object),
        }
    }

    /// A text that may be left unstated.
    pub(super) fn optional_text(&mut self, name: &str, arg: &Arg<'_>) -> Option<Text> {
        Some(self.text(name, stated(arg)?))
    }

    /// Any JSON that may be left unstated.
    pub(super) fn optional_value(&mut self, name: &str, arg: &Arg<'_>) -> Option<Value> {
        match value_of(stated(arg)?, name) {
            Ok(value) => Some(value),
            Err(failure) => {
                self.problems.push(match failure {
                    Failure::Core(error) => error.message().to_owned(),
                    Failure::Python(error) => format!("{name} can't be read: {error}"),
                });
                None
            }
        }
    }

    /// The dtype as its `str` names it, so that torch's and numpy's types are taken as well.
    pub(super) fn dtype(&mut self, arg: &Arg<'_>) -> Text {
        const ACCEPTED: &str = "the resolved element type of the KV cache is needed, such as \"bfloat16\"";
        match arg {
            Arg::Given(object) if !object.is_none() => {
                let text = object.str().ok().and_then(|text| text_of(&text).ok());
                // A class such as `numpy.float16` prints as `<class …>`, which names no element type.
                let text = text.filter(|text| !text.as_bytes().starts_with(b"<"));
                text.unwrap_or_else(|| {
                    self.refuse("dtype", object, ACCEPTED);
                    no_text()
                })
            }
            _ => {
                self.problems.push(format!("dtype is not given, {ACCEPTED}"));
                no_text()
            }
        }
    }

    /// The KV-cache groups, none when they are left out.
    pub(super) fn groups(&mut self, arg: &Arg<'_>) -> Vec<Group> {
        const ACCEPTED: &str = "a list of {\"tokens_per_block\": int, \"layer_names\": [str, ...]} is accepted";
        let Some(groups) = stated(arg) else { return Vec::new() };
        let Some(groups) = items_of(groups) else {
            self.refuse("kv_cache_groups", groups, ACCEPTED);
            return Vec::new();
        };
        let mut read = Vec::new();
        for (i, group) in groups.iter().enumerate() {
            let name = format!("kv_cache_groups[{i}]");
            let Some([tokens_per_block, layer_names]) = group_parts(group) else {
                self.refuse(&name, group, "a dict of exactly \"tokens_per_block\" and \"layer_names\" is accepted");
                continue;
            };
            let tokens_per_block = self.required_size(&format!("{name}.tokens_per_block"), &tokens_per_block);
            let name = format!("{name}.layer_names");
            let Some(names) = items_of(&layer_names) else {
                self.refuse(&name, &layer_names, "a list of text is accepted");
                continue;
            };
            let layer_names = names.iter().enumerate().map(|(i, layer)| self.text(&format!("{name}[{i}]"), layer));
            let layer_names = layer_names.collect();
            read.push(Group { tokens_per_block, layer_names });
        }
        read
    }

    fn refuse(&mut self, name: &str, object: &Bound<'_, PyAny>, accepted: &str) {
        self.problems.push(format!("{name} is {}, {accepted}", shown(object)));
    }
}

/// Stands in for text that can't be read.
fn no_text() -> Text {
    "?".into()
}

/// The argument, unless it was left out or is `None`.
fn stated<'a, 'py>(arg: &'a Arg<'py>) -> Option<&'a Bound<'py, PyAny>> {
    match arg {
        Arg::Given(object) if !object.is_none() => Some(object),
        _ => None,
    }
}

/// The items of a list or tuple.
fn items_of<'py>(object: &Bound<'py, PyAny>) -> Option<Vec<Bound<'py, PyAny>>> {
    if let Ok(list) = object.cast::<PyList>() {
        return Some(list.iter().collect());
    }
    Some(object.cast::<PyTuple>().ok()?.iter().collect())
}

/// Tokens per block and layer names of a group that has these and nothing else.
fn group_parts<'py>(group: &Bound<'py, PyAny>) -> Option<[Bound<'py, PyAny>; 2]> {
    let group = group.cast::<PyDict>().ok().filter(|group| group.len() == 2)?;
    Some([group.get_item("tokens_per_block").ok()??, group.get_item("layer_names").ok()??])
}
