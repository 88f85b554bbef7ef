//! What differs between two sets of fields.

use std::collections::BTreeSet;
use std::fmt;

use super::fields::Fields;
use super::text::Text;
use super::value::Value;

/// Longest value that is shown whole, in characters.
const SHOWN_CHARS: usize = 120;

/// One place where two identities differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
            walk(step(name), self.as_map().get(name), other.as_map().get(name), &mut found);
        }
        found
    }
}

/// Goes into maps, and into lists of equal length, as far as there is something on both sides.
fn walk(field: String, left: Option<&Value>, right: Option<&Value>, found: &mut Vec<Difference>) {
    match (left, right) {
        (Some(Value::Map(l)), Some(Value::Map(r))) => {
            for key in l.keys().chain(r.keys()).collect::<BTreeSet<_>>() {
                walk(format!("{field}.{}", step(key)), l.get(key), r.get(key), found);
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

/// A key as it stands, or as JSON where it could be taken for something else or break a line of a log.
fn step(key: &Text) -> String {
    match key.as_str() {
        Some(plain) if !plain.is_empty() && plain.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => {
            plain.into()
        }
        _ => Value::from(key.clone()).to_canonical_json(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::value::Float;
    use crate::identity::{Facts, Group, Identity, NamespaceKind};

    fn fields_of(facts: Facts) -> Fields {
        Identity::new(facts).unwrap().fields(NamespaceKind::Kvtier)
    }

    fn shown_diff(left: Facts, right: Facts) -> Vec<String> {
        fields_of(left).diff(&fields_of(right)).iter().map(ToString::to_string).collect()
    }

    fn base() -> Facts {
        Facts::new("m", 16, "bfloat16")
    }

    #[test]
    fn each_difference_is_named_with_both_values_in_the_order_of_the_fields() {
        let left = Facts { tp_size: 2, namespace: Some("a".into()), ..base() };
        let right = Facts { tp_size: 4, dtype: "float16".into(), ..base() };
        assert_eq!(
            shown_diff(left, right),
            ["tp_size: 2 | 4", "dtype: \"bfloat16\" | \"float16\"", "namespace: \"a\" | (absent)"]
        );
        assert!(shown_diff(base(), base()).is_empty());
    }

    #[test]
    fn what_differs_inside_is_named_by_its_way() {
        let groups = |layer: &str| vec![Group { tokens_per_block: 16, layer_names: vec!["l.0".into(), layer.into()] }];
        let left = Facts {
            kv_cache_groups: groups("l.1"),
            rope: Some(Value::from([("factor", Value::from(2)), ("type", "yarn".into())])),
            ..base()
        };
        let right = Facts {
            kv_cache_groups: groups("l.2"),
            rope: Some(Value::from([("factor", Value::Float(Float::new(1.5).unwrap()))])),
            ..base()
        };
        assert_eq!(
            shown_diff(left, right),
            [
                "kv_cache_groups[0].layer_names[1]: \"l.1\" | \"l.2\"",
                "rope.factor: 2 | 1.5",
                "rope.type: \"yarn\" | (absent)"
            ]
        );
    }

    #[test]
    fn keys_that_are_no_words_are_quoted() {
        let with = |key: &str| Facts { rope: Some(Value::from([(key, 1)])), ..base() };
        assert_eq!(
            shown_diff(with("a\nb"), with("é")),
            ["rope.\"a\\nb\": 1 | (absent)", "rope.\"\\u00e9\": (absent) | 1"]
        );
    }

    #[test]
    fn absent_is_not_null_and_one_is_neither_one_point_zero_nor_true() {
        let with = |value: Value| {
            Fields::from([("rope".into(), value)].into_iter().collect::<std::collections::BTreeMap<_, _>>())
        };
        let found = with(Value::Null).diff(&Fields::default());
        assert_eq!((found[0].left.clone(), found[0].right.clone()), (Some(Value::Null), None));
        let one_point_zero = Value::Float(Float::new(1.0).unwrap());
        assert_eq!(with(1.into()).diff(&with(one_point_zero)).len(), 1);
        assert_eq!(with(1.into()).diff(&with(true.into())).len(), 1);
    }

    #[test]
    fn there_is_a_difference_exactly_when_the_digest_differs() {
        // A surrogate pair as two code points is hashed as the character that it spells.
        let mut pair = Text::default();
        pair.push(0xD83D);
        pair.push(0xDE00);
        let left = Facts { model_revision: Some(pair), ..base() };
        let right = Facts { model_revision: Some("\u{1F600}".into()), ..base() };
        assert_eq!(fields_of(left.clone()).digest(), fields_of(right.clone()).digest());
        assert!(shown_diff(left, right).is_empty());
    }

    #[test]
    fn long_values_are_shortened_when_shown() {
        let left = Facts { model_revision: Some("x".repeat(10_000).into()), ..base() };
        let shown = shown_diff(left, base());
        assert!(shown[0].len() < 200 && shown[0].contains(" … "), "{shown:?}");
    }
}
