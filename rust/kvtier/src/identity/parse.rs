//! JSON text to [`Value`].
//!
//! Not `serde_json`: it refuses lone surrogates, takes the last of two equal keys without a word, and keeps large
//! integers only under a feature that changes numbers for every crate of the build.

use std::collections::BTreeMap;

use super::text::Text;
use super::value::{Float, Int, MAX_DEPTH, Value};
use crate::error::{Error, ErrorKind, Result};

/// Levels of nesting that are read: a `config.json` holds the deepest value below `fields` and the field's name.
const MAX_DEPTH_READ: usize = MAX_DEPTH + 2;

impl Value {
    /// Reads one JSON text (RFC 8259, UTF-8) and nothing after it but blanks.
    ///
    /// Integers stay exact at any size, `1` and `1.0` stay different, and escaped lone surrogates survive. Refused, with
    /// line and column: a key given twice, `NaN` and the infinities, numbers beyond the floats, nesting deeper than what a
    /// `config.json` with a value of [`MAX_DEPTH`] has.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        let mut parser = Parser { text, at: 0 };
        let value = parser.value(0)?;
        parser.skip_blanks();
        if parser.at < text.len() { Err(parser.error("there is more text after the value")) } else { Ok(value) }
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn value(&mut self, depth: usize) -> Result<Value> {
        self.skip_blanks();
        match self.peek() {
            Some(b'{' | b'[') if depth == MAX_DEPTH_READ => {
                Err(self.error(&format!("nested deeper than {MAX_DEPTH_READ} levels")))
            }
            Some(b'{') => self.map(depth + 1),
            Some(b'[') => self.list(depth + 1),
            Some(b'"') => Ok(Value::Text(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => self.word(),
            None => Err(self.error("the text ends where a value is expected")),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value> {
        let mut map = BTreeMap::new();
        self.at += 1;
        self.skip_blanks();
        if self.take(b'}') {
            return Ok(Value::Map(map));
        }
        loop {
            self.skip_blanks();
            if self.peek() != Some(b'"') {
                return Err(self.error("a key in double quotes is expected"));
            }
            let key_at = self.at;
            let key = self.string()?;
            if map.contains_key(&key) {
                self.at = key_at;
                return Err(self.error(&format!("the key {key:?} is given twice")));
            }
            self.skip_blanks();
            if !self.take(b':') {
                return Err(self.error("a colon is expected"));
            }
            map.insert(key, self.value(depth)?);
            self.skip_blanks();
            if self.take(b'}') {
                return Ok(Value::Map(map));
            }
            if !self.take(b',') {
                return Err(self.error("a comma or a closing brace is expected"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value> {
        let mut items = Vec::new();
        self.at += 1;
        self.skip_blanks();
        if self.take(b']') {
            return Ok(Value::List(items));
        }
        loop {
            items.push(self.value(depth)?);
            self.skip_blanks();
            if self.take(b']') {
                return Ok(Value::List(items));
            }
            if !self.take(b',') {
                return Err(self.error("a comma or a closing bracket is expected"));
            }
        }
    }

    fn string(&mut self) -> Result<Text> {
        let mut text = Text::default();
        self.at += 1;
        loop {
            let start = self.at;
            while self.peek().is_some_and(|b| b >= 0x20 && b != b'"' && b != b'\\') {
                self.at += 1;
            }
            match std::str::from_utf8(&self.text[start..self.at]) {
                Ok(plain) => text.push_text(&plain.into()),
                Err(e) => {
                    self.at = start + e.valid_up_to();
                    return Err(self.error("the text is not UTF-8"));
                }
            }
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => self.escape(&mut text)?,
                Some(_) => return Err(self.error("a control character stands unescaped in a string")),
                None => return Err(self.error("the text ends within a string")),
            }
        }
    }

    fn escape(&mut self, text: &mut Text) -> Result<()> {
        let code_point = match self.text.get(self.at + 1) {
            Some(&c @ (b'"' | b'\\' | b'/')) => c,
            Some(b'b') => 0x08,
            Some(b'f') => 0x0C,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'u') => {
                let unit = self.unicode_escape()?;
                text.push(unit);
                return Ok(());
            }
            Some(_) => return Err(self.error("no such escape in JSON")),
            None => return Err(self.error("the text ends within a string")),
        };
        self.at += 2;
        text.push(code_point.into());
        Ok(())
    }

    /// One `\uXXXX`, or two of them that are a surrogate pair; a surrogate without its partner stands for itself.
    fn unicode_escape(&mut self) -> Result<u32> {
        let Some(unit) = self.hex_unit() else { return Err(self.error("\\u needs four hex digits")) };
        self.at += 6;
        if (0xD800..0xDC00).contains(&unit)
            && let Some(low @ 0xDC00..0xE000) = self.hex_unit()
        {
            self.at += 6;
            return Ok(0x1_0000 + ((unit - 0xD800) << 10 | (low - 0xDC00)));
        }
        Ok(unit)
    }

    fn hex_unit(&self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 6)?.strip_prefix(b"\\u")?;
        digits.iter().try_fold(0, |n, &b| Some(n << 4 | char::from(b).to_digit(16)?))
    }

    fn number(&mut self) -> Result<Value> {
        let start = self.at;
        self.take(b'-');
        if !self.take(b'0') && self.digits() == 0 {
            return Err(self.error("a digit is expected"));
        }
        let integer_end = self.at;
        if self.take(b'.') && self.digits() == 0 {
            return Err(self.error("a digit is expected after the decimal point"));
        }
        if self.take(b'e') || self.take(b'E') {
            let _ = self.take(b'+') || self.take(b'-');
            if self.digits() == 0 {
                return Err(self.error("a digit is expected in the exponent"));
            }
        }
        let is_integer = self.at == integer_end;
        // Only ASCII was taken.
        let text = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        let number = if is_integer {
            Int::from_decimal(text).map(Value::Int)
        } else {
            text.parse().ok().and_then(Float::new).map(Value::Float)
        };
        number.ok_or_else(|| {
            self.at = start;
            self.error("the number is too large for a float")
        })
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }

    fn word(&mut self) -> Result<Value> {
        for (word, value) in [("null", Value::Null), ("true", Value::Bool(true)), ("false", Value::Bool(false))] {
            if self.text[self.at..].starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.error("a JSON value is expected"))
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn error(&self, problem: &str) -> Error {
        let before = &self.text[..self.at];
        let lines = before.split(|&b| b == b'\n');
        let column = lines.clone().next_back().map_or(0, <[u8]>::len) + 1;
        let line = lines.count();
        Error::new(ErrorKind::InvalidInput, format!("{problem} (line {line}, column {column})"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Value> {
        Value::from_json(text.as_bytes())
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let text = prop::collection::vec(0_u32..=0x10_FFFF, 0..6).prop_map(|code_points| {
            let mut text = Text::default();
            // A high surrogate before a low one reads back as the one character that both spell.
            code_points.iter().filter(|c| !(0xDC00..0xE000).contains(*c)).for_each(|&c| text.push(c));
            text
        });
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(|n| Value::Int(n.into())),
            "-?[1-9][0-9]{20,60}".prop_map(|digits| Value::Int(Int::from_decimal(&digits).unwrap())),
            any::<f64>().prop_filter_map("finite", |f| Float::new(f).map(Value::Float)),
            text.clone().prop_map(Value::Text),
        ];
        leaf.prop_recursive(4, 32, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::List),
                prop::collection::btree_map(text.clone(), inner, 0..6).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(value in any_value()) {
            prop_assert_eq!(&parse(&value.to_canonical_json()).unwrap(), &value);
            prop_assert_eq!(&parse(&value.to_indented_json()).unwrap(), &value);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Value::from_json(&bytes);
        }

        #[test]
        fn json_like_bytes_never_panic(text in r#"[\[\]{}",:\\u0-9a-fdD8.eE+\- ]{0,40}"#) {
            let _ = parse(&text);
        }
    }

    #[test]
    fn every_escape_and_pairing() {
        let text = parse(r#""\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00\ud800\ud800\ude00\udfff""#).unwrap();
        let Value::Text(text) = text else { panic!("text expected") };
        let expected = [0x22, 0x5C, 0x2F, 8, 12, 10, 13, 9, 0xE9, 0x1_F600, 0xD800, 0x1_0200, 0xDFFF];
        assert_eq!(text.code_points().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn errors_say_where() {
        for (text, message) in [
            ("", "the text ends where a value is expected (line 1, column 1)"),
            ("{\"a\": 1,\n \"a\": 2}", "the key \"a\" is given twice (line 2, column 2)"),
            ("{\"a\": 1", "a comma or a closing brace is expected (line 1, column 8)"),
            ("[1, NaN]", "a JSON value is expected (line 1, column 5)"),
            ("[1e999]", "the number is too large for a float (line 1, column 2)"),
            ("01", "there is more text after the value (line 1, column 2)"),
            ("{'a': 1}", "a key in double quotes is expected (line 1, column 2)"),
            ("\"a\nb\"", "a control character stands unescaped in a string (line 1, column 3)"),
            (r#""\ud8""#, "\\u needs four hex digits (line 1, column 2)"),
            ("1.", "a digit is expected after the decimal point (line 1, column 3)"),
        ] {
            assert_eq!(parse(text).unwrap_err().message(), message, "{text}");
        }
        assert!(Value::from_json(b"\"\xff\"").is_err());
    }

    #[test]
    fn deep_nesting_is_an_error_not_a_stack_overflow() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        let deepest = parse(&nested(MAX_DEPTH_READ)).unwrap();
        assert_eq!(deepest.to_canonical_json(), nested(MAX_DEPTH_READ));
        assert!(parse(&nested(MAX_DEPTH_READ + 1)).unwrap_err().message().contains("nested deeper than 1002 levels"));
        assert!(parse(&"{\"a\":".repeat(1_000_000)).is_err());
    }
}
