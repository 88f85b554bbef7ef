//! What differs between two sets of fields.

use std::collections::BTreeSet;
use std::fmt;

use super::fields::Fields;
use super::value::Value;

/// Longest value that is shown whole, in characters.
const SHOWN_CHARS: usize = 120;

/// One place where two identities differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The field, with the way into it where lists or maps differ within: `kv_cache_groups[0].layer_names[3]`.
    pub field: String,
    /// The left one's value; `None` when it has none there, which is not the same as null.
    pub left: Option<Value>,
    /// The right one's value.
    pub right: Option<Value>,
}

impl Difference {
    /// The left value for people: JSON, shortened when long, or `(absent)`.
    pub fn left_shown(&self) -> String {
        shown(self.left.as_ref())
    }

    /// The right value for people.
    pub fn right_shown(&self) -> String {
        shown(self.right.as_ref())
    }
}

/// `tp_size: 2 | 4`
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} | {}", self.field, self.left_shown(), self.right_shown())
    }
}

impl Fields {
    /// Every place where `self` (left) and `other` (right) differ, in the order of the fields; empty when they share
    /// their blocks.
    pub fn diff(&self, other: &Self) -> Vec<Difference> {
        let mut found = Vec::new();
        let names = self.iter().chain(other.iter().filter(|(name, _)| !self.as_map().contains_key(*name)));
        for (name, _) in names {
            walk(name.to_string(), self.as_map().get(name), other.as_map().get(name), &mut found);
        }
        found
    }
}

/// Goes into maps, and into lists of equal length, as far as there is something on both sides.
fn walk(field: String, left: Option<&Value>, right: Option<&Value>, found: &mut Vec<Difference>) {
    match (left, right) {
        (Some(Value::Map(l)), Some(Value::Map(r))) => {
            for key in l.keys().chain(r.keys()).collect::<BTreeSet<_>>() {
                walk(format!("{field}.{key}"), l.get(key), r.get(key), found);
            }
        }
        (Some(Value::List(l)), Some(Value::List(r))) if l.len() == r.len() => {
            for (i, (l, r)) in l.iter().zip(r).enumerate() {
                walk(format!("{field}[{i}]"), Some(l), Some(r), found);
            }
        }
        _ if spelled(left) == spelled(right) => {}
        _ => found.push(Difference { field, left: left.cloned(), right: right.cloned() }),
    }
}

/// Values are compared as they are hashed: a surrogate pair given as two code points is the character that it spells.
fn spelled(value: Option<&Value>) -> Option<String> {
    value.map(Value::to_canonical_json)
}

fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else { return "(absent)".into() };
    let json = value.to_canonical_json();
    if json.len() <= SHOWN_CHARS {
        return json;
    }
    // Canonical JSON is ASCII, so any index is a character's boundary.
    let ends = SHOWN_CHARS / 2;
    format!("{} … {}", &json[..ends], &json[json.len() - ends..])
}
