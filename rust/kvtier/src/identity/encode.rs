//! JSON text byte for byte as Python's `json.dumps` writes it, keys sorted.
//!
//! The digest of an identity is taken over this text, so it is a storage format: it never changes.

use std::fmt::Write as _;

use super::text::Text;
use super::value::{Float, Value};

impl Value {
    /// `json.dumps(value, sort_keys=True, separators=(",", ":"))`: pure ASCII on one line.
    pub fn to_canonical_json(&self) -> String {
        let mut out = String::new();
        self.write_json(&mut out, Style::Canonical, 0);
        out
    }

    /// `json.dumps(value, sort_keys=True, indent=2)`: pure ASCII, for people, without a final line feed.
    pub fn to_indented_json(&self) -> String {
        let mut out = String::new();
        self.write_json(&mut out, Style::Indented, 0);
        out
    }

    fn write_json(&self, out: &mut String, style: Style, depth: usize) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Self::Int(n) => out.push_str(n.as_decimal()),
            Self::Float(f) => write_float(out, *f),
            Self::Text(text) => write_text(out, text),
            Self::List(items) => style.write_all(out, ['[', ']'], depth, items, |out, item| {
                item.write_json(out, style, depth + 1);
            }),
            Self::Map(map) => style.write_all(out, ['{', '}'], depth, map, |out, (key, value)| {
                write_text(out, key);
                out.push_str(if style == Style::Canonical { ":" } else { ": " });
                value.write_json(out, style, depth + 1);
            }),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Style {
    Canonical,
    Indented,
}

impl Style {
    /// Writes the items of a list or map between its brackets; an empty one takes no line of its own.
    fn write_all<I: IntoIterator>(
        self,
        out: &mut String,
        [open, close]: [char; 2],
        depth: usize,
        items: I,
        mut write: impl FnMut(&mut String, I::Item),
    ) {
        out.push(open);
        let mut any = false;
        for item in items {
            if any {
                out.push(',');
            }
            any = true;
            self.break_line(out, depth + 1);
            write(out, item);
        }
        if any {
            self.break_line(out, depth);
        }
        out.push(close);
    }

    fn break_line(self, out: &mut String, depth: usize) {
        if self == Self::Indented {
            out.push('\n');
            out.extend(std::iter::repeat_n("  ", depth));
        }
    }
}

/// Python escapes everything but printable ASCII, 0x7f included.
fn write_text(out: &mut String, text: &Text) {
    out.push('"');
    for code_point in text.code_points() {
        match char::from_u32(code_point) {
            Some('"') => out.push_str("\\\""),
            Some('\\') => out.push_str("\\\\"),
            Some('\n') => out.push_str("\\n"),
            Some('\r') => out.push_str("\\r"),
            Some('\t') => out.push_str("\\t"),
            Some('\u{8}') => out.push_str("\\b"),
            Some('\u{c}') => out.push_str("\\f"),
            Some(c @ ' '..='~') => out.push(c),
            Some(c) => c.encode_utf16(&mut [0; 2]).iter().for_each(|&unit| write_escape(out, unit)),
            None => write_escape(out, code_point as u16),
        }
    }
    out.push('"');
}

fn write_escape(out: &mut String, unit: u16) {
    out.push_str("\\u");
    for shift in [12, 8, 4, 0] {
        out.push(char::from(b"0123456789abcdef"[usize::from(unit >> shift & 0xF)]));
    }
}

/// Python's `repr(float)`: the shortest digits that give the same float back, with an exponent below 1e-4 and from
/// 1e16 on.
fn write_float(out: &mut String, float: Float) {
    let scientific = shortest_digits(float.get());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let magnitude = mantissa.strip_prefix('-').unwrap_or(mantissa);
    if magnitude.len() < mantissa.len() {
        out.push('-');
    }
    let digits = magnitude.replace('.', "");
    match exponent {
        0..16 => {
            let whole = exponent.unsigned_abs() as usize + 1;
            let (integer, fraction) = digits.split_at(whole.min(digits.len()));
            out.push_str(integer);
            out.extend(std::iter::repeat_n('0', whole - integer.len()));
            out.push('.');
            out.push_str(if fraction.is_empty() { "0" } else { fraction });
        }
        -4..0 => {
            out.push_str("0.");
            out.extend(std::iter::repeat_n('0', exponent.unsigned_abs() as usize - 1));
            out.push_str(&digits);
        }
        _ => {
            out.push_str(magnitude);
            let sign = if exponent < 0 { '-' } else { '+' };
            // Writing to a String can't fail.
            let _ = write!(out, "e{sign}{:02}", exponent.unsigned_abs());
        }
    }
}

/// The shortest digits as `[-]d[.ddd]e[-]xxx`; of two that are equally close, the even ones.
fn shortest_digits(float: f64) -> String {
    let shortest = format!("{float:e}");
    let digits = shortest.bytes().take_while(|b| *b != b'e').filter(u8::is_ascii_digit).count();
    // Rust breaks ties in `{:e}` upwards, but to even where the number of digits is given. That many digits may round to
    // a decimal that reads back as the neighbour, where floats below are closer together than above.
    let rounded = format!("{float:.*e}", digits - 1);
    if rounded.parse() == Ok(float) { rounded } else { shortest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::value::Int;

    fn float_text(value: f64) -> String {
        Value::Float(Float::new(value).unwrap()).to_canonical_json()
    }

    #[test]
    fn floats_are_spelled_as_python_does() {
        for (value, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (123_456.75, "123456.75"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (9_007_199_254_740_993.0, "9007199254740992.0"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.000_123, "0.000123"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (5e-324, "5e-324"),
            (2.225_073_858_507_201e-308, "2.225073858507201e-308"),
            (f64::MAX, "1.7976931348623157e+308"),
            (-1234.5, "-1234.5"),
            // Exactly between two decimals of 17 digits.
            (222_507_385_850_720.0 + 0.125, "222507385850720.12"),
            (222_507_385_850_720.0 + 0.375, "222507385850720.38"),
        ] {
            assert_eq!(float_text(value), text);
        }
    }

    #[test]
    fn text_is_escaped_as_python_does() {
        let mut text = Text::from("\"\\/\n\r\t\u{8}\u{c}\u{0}\u{1f} ~\u{7f}\u{80}é千\u{1F600}");
        text.push(0xD800);
        assert_eq!(
            Value::Text(text).to_canonical_json(),
            r#""\"\\/\n\r\t\b\f\u0000\u001f ~\u007f\u0080\u00e9\u5343\ud83d\ude00\ud800""#
        );
    }

    #[test]
    fn keys_are_sorted_by_code_point_not_by_utf16() {
        let map = Value::from([("\u{1F600}", 1), ("\u{FFFF}", 2), ("b", 3), ("B", 4), ("", 5)]);
        assert_eq!(map.to_canonical_json(), r#"{"":5,"B":4,"b":3,"\uffff":2,"\ud83d\ude00":1}"#);
    }

    #[test]
    fn big_integers_are_exact() {
        let digits = "-340282366920938463463374607431768211457";
        assert_eq!(Value::Int(Int::from_decimal(digits).unwrap()).to_canonical_json(), digits);
    }

    #[test]
    fn indented_text_is_what_python_writes_with_indent_2() {
        let value = Value::from([
            ("list", Value::from(vec![Value::from(1), Value::Null, Value::from([("k", false)])])),
            ("empty", Value::List(Vec::new())),
            ("map", Value::Map(std::collections::BTreeMap::new())),
        ]);
        let expected = "{\n  \"empty\": [],\n  \"list\": [\n    1,\n    null,\n    {\n      \"k\": false\n    }\n  ],\n  \"map\": {}\n}";
        assert_eq!(value.to_indented_json(), expected);
    }
}
