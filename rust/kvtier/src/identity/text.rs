//! Text as Python's `str` holds it: any sequence of code points, lone surrogates included.

use std::borrow::Cow;
use std::fmt;

use crate::error::{Error, ErrorKind, Result};

/// Text in generalised UTF-8: UTF-8 in which surrogates (U+D800 to U+DFFF) are encoded like any other code point.
///
/// Python's `str` can hold lone surrogates, and its JSON escapes them, so a name that has one still has a digest.
/// Ordering is by byte, which in this encoding is ordering by code point.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Text(Vec<u8>);

impl Text {
    /// Takes generalised UTF-8, as Python's `str.encode("utf-8", "surrogatepass")` gives it.
    pub fn from_generalised_utf8(bytes: Vec<u8>) -> Result<Self> {
        let mut rest = bytes.as_slice();
        while let Err(e) = std::str::from_utf8(rest) {
            rest = &rest[e.valid_up_to()..];
            match rest {
                [0xED, 0xA0..=0xBF, 0x80..=0xBF, tail @ ..] => rest = tail,
                _ => return Err(Error::new(ErrorKind::InvalidInput, "text is not (generalised) UTF-8")),
            }
        }
        Ok(Self(bytes))
    }

    /// The generalised UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text as `str`; `None` when it holds a surrogate.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// True when there is no code point at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The code points, surrogates included, in order.
    pub fn code_points(&self) -> impl Iterator<Item = u32> + '_ {
        let mut rest = self.0.as_slice();
        std::iter::from_fn(move || {
            let (&lead, _) = rest.split_first()?;
            let (len, bits) = match lead {
                0..=0x7F => (1, lead),
                0x80..=0xDF => (2, lead & 0x1F),
                0xE0..=0xEF => (3, lead & 0x0F),
                0xF0..=0xFF => (4, lead & 0x07),
            };
            let (char, tail) = rest.split_at(len);
            rest = tail;
            Some(char[1..].iter().fold(u32::from(bits), |n, b| n << 6 | u32::from(b & 0x3F)))
        })
    }

    /// The text for people: each surrogate becomes U+FFFD.
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        match self.as_str() {
            Some(s) => Cow::Borrowed(s),
            None => self.code_points().map(|c| char::from_u32(c).unwrap_or(char::REPLACEMENT_CHARACTER)).collect(),
        }
    }

    /// Appends one code point; `code_point` is at most U+10FFFF.
    pub(super) fn push(&mut self, code_point: u32) {
        if let Some(c) = char::from_u32(code_point) {
            self.0.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            let tail = |shift: u32| 0x80 | (code_point >> shift & 0x3F) as u8;
            self.0.extend_from_slice(&[0xE0 | (code_point >> 12) as u8, tail(6), tail(0)]);
        }
    }

    /// Appends another text as it stands.
    pub(super) fn push_text(&mut self, other: &Text) {
        self.0.extend_from_slice(&other.0);
    }

    /// The text with every occurrence of an ASCII character replaced by another one.
    pub(super) fn replace_ascii(&self, from: u8, to: u8) -> Self {
        debug_assert!(from.is_ascii() && to.is_ascii(), "only ASCII bytes stand for a character of their own");
        Self(self.0.iter().map(|&b| if b == from { to } else { b }).collect())
    }
}

impl From<&str> for Text {
    fn from(s: &str) -> Self {
        Self(s.as_bytes().to_vec())
    }
}

impl From<String> for Text {
    fn from(s: String) -> Self {
        Self(s.into_bytes())
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

/// Map keys can be looked up by the bytes of their name.
impl std::borrow::Borrow<[u8]> for Text {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_string_lossy())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text_of(code_points: &[u32]) -> Text {
        let mut text = Text::default();
        for &code_point in code_points {
            text.push(code_point);
        }
        text
    }

    proptest! {
        #[test]
        fn any_code_points_survive(code_points in prop::collection::vec(0_u32..=0x10_FFFF, 0..40)) {
            let text = text_of(&code_points);
            prop_assert_eq!(text.code_points().collect::<Vec<_>>(), code_points);
            prop_assert_eq!(Text::from_generalised_utf8(text.as_bytes().to_vec()).unwrap(), text);
        }

        #[test]
        fn order_is_by_code_point(a in prop::collection::vec(0_u32..=0x10_FFFF, 0..4), b in prop::collection::vec(0_u32..=0x10_FFFF, 0..4)) {
            prop_assert_eq!(text_of(&a).cmp(&text_of(&b)), a.cmp(&b));
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            if let Ok(text) = Text::from_generalised_utf8(bytes) {
                prop_assert_eq!(&text_of(&text.code_points().collect::<Vec<_>>()), &text);
            }
        }
    }

    #[test]
    fn a_lone_surrogate_is_no_str_but_can_be_shown() {
        let text = text_of(&[0x61, 0xD800, 0x62]);
        assert_eq!(text.as_str(), None);
        assert_eq!(text.to_string(), "a\u{FFFD}b");
    }

    #[test]
    fn a_truncated_surrogate_is_refused() {
        assert!(Text::from_generalised_utf8(vec![b'a', 0xED, 0xA0]).is_err());
    }
}
