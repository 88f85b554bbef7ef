//! JSON values as Python knows them: integers of any size, finite floats, text with lone surrogates.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};

use super::text::Text;

/// How deeply lists and maps may nest in a value that comes from outside; more is an error, never a stack overflow.
///
/// Python's own `json` gives up at about the same depth.
pub const MAX_DEPTH: usize = 1000;

/// A JSON value.
///
/// Two values are equal exactly when their types and contents are: `1`, `1.0` and `true` are three values. See
/// [`Value::with_numbers_normalised`] for where that is too strict.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number written without fraction and exponent.
    Int(Int),
    /// A number written with one.
    Float(Float),
    /// Text.
    Text(Text),
    /// A list.
    List(Vec<Value>),
    /// A map, in the order of its keys' code points.
    Map(BTreeMap<Text, Value>),
}

impl Value {
    /// The same value, with every float that is a whole number written as that integer, at any depth.
    ///
    /// Configurations that mean the same are spelled differently by different tools (`2` and `2.0`, `1e4` and `10000`);
    /// after this two numbers are equal exactly when they are equal as numbers. Keys are ordered already.
    #[must_use]
    pub fn with_numbers_normalised(self) -> Self {
        match self {
            Self::Float(f) if f.get().fract() == 0.0 => Self::Int(Int::from_whole(f)),
            Self::List(items) => Self::List(items.into_iter().map(Self::with_numbers_normalised).collect()),
            Self::Map(map) => Self::Map(map.into_iter().map(|(k, v)| (k, v.with_numbers_normalised())).collect()),
            other => other,
        }
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Self {
        Self::Bool(b)
    }
}

impl From<u64> for Value {
    fn from(n: u64) -> Self {
        Self::Int(n.into())
    }
}

impl From<Text> for Value {
    fn from(text: Text) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Value>, const N: usize> From<[(&str, T); N]> for Value {
    fn from(entries: [(&str, T); N]) -> Self {
        Self::Map(entries.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}

/// An integer of any size, as its decimal digits: identities compare and print integers, they never calculate.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Int(Box<str>);

impl Int {
    /// Takes decimal digits, with a `-` in front or without; `None` when they are something else.
    pub fn from_decimal(digits: &str) -> Option<Self> {
        let (sign, magnitude) = match digits.strip_prefix('-') {
            Some(magnitude) => ("-", magnitude),
            None => ("", digits),
        };
        if magnitude.is_empty() || !magnitude.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        Some(match magnitude.trim_start_matches('0') {
            "" => Self("0".into()),
            significant => Self(format!("{sign}{significant}").into()),
        })
    }

    /// The decimal digits without leading zeros, `-` in front of a negative number.
    pub fn as_decimal(&self) -> &str {
        &self.0
    }

    /// The number, if it is not negative and fits.
    pub fn to_u64(&self) -> Option<u64> {
        self.0.parse().ok()
    }

    /// The integer that a whole float equals.
    fn from_whole(float: Float) -> Self {
        // Adding 0.0 turns -0.0, which equals the integer zero, into 0.0. `{:.0}` prints a whole float exactly.
        Self(format!("{:.0}", float.get() + 0.0).into())
    }
}

impl From<u64> for Int {
    fn from(n: u64) -> Self {
        Self(n.to_string().into())
    }
}

impl From<i64> for Int {
    fn from(n: i64) -> Self {
        Self(n.to_string().into())
    }
}

impl fmt::Display for Int {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Int {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A finite float, equal by its bits: `0.0` and `-0.0` are spelled differently in JSON, so they are different values.
#[derive(Clone, Copy)]
pub struct Float(f64);

impl Float {
    /// `None` for NaN and the infinities, which JSON can't spell.
    pub fn new(value: f64) -> Option<Self> {
        value.is_finite().then_some(Self(value))
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl PartialEq for Float {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Float {}

impl Hash for Float {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl fmt::Debug for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(value: f64) -> Value {
        Value::Float(Float::new(value).unwrap())
    }

    #[test]
    fn integers_have_one_spelling() {
        for (given, kept) in
            [("007", "7"), ("-0", "0"), ("-010", "-10"), ("0", "0"), ("18446744073709551616", "18446744073709551616")]
        {
            assert_eq!(Int::from_decimal(given).unwrap().as_decimal(), kept);
        }
        for wrong in ["", "-", "+1", "1.0", " 1", "--1"] {
            assert_eq!(Int::from_decimal(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn whole_floats_become_the_integer_they_equal() {
        let normal = |v: f64| float(v).with_numbers_normalised();
        assert_eq!(normal(2.0), Value::from(2));
        assert_eq!(normal(-0.0), Value::from(0));
        assert_eq!(normal(1e22), Value::Int(Int::from_decimal("10000000000000000000000").unwrap()));
        assert_eq!(normal(-3.0), Value::Int(Int::from(-3_i64)));
        assert_eq!(normal(2.5), float(2.5));
        assert_eq!(Value::from(true).with_numbers_normalised(), Value::from(true));
    }

    #[test]
    fn types_are_part_of_a_value() {
        assert_ne!(Value::from(1), float(1.0));
        assert_ne!(Value::from(1), Value::from(true));
        assert_ne!(float(0.0), float(-0.0));
    }

    #[test]
    fn only_finite_floats_are_values() {
        assert!([f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().all(|v| Float::new(v).is_none()));
    }
}
