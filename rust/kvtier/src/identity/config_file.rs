//! `config.json`: the fields of a namespace in the open, so that people and other programs can read them.
//!
//! Text in, text out; the stores do the IO. Two layouts exist. The engine's own tier writes the bare fields. kvtier
//! writes them under `fields`, next to `written_by`, which says who wrote the file and is not hashed. Either is read.

use std::collections::BTreeMap;

use super::diff::Difference;
use super::fields::Fields;
use super::namespace::NamespaceKind;
use super::text::Text;
use super::value::Value;
use crate::error::{Error, ErrorKind, Result};

/// Name of the file in a namespace's base directory.
pub const CONFIG_FILE_NAME: &str = "config.json";

/// Who wrote a namespace's first block, and with which hashes. Recorded, never hashed, never a mismatch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Version of kvtier.
    pub kvtier: Option<Text>,
    /// The model's name as the engine states it, when an id stands for it in the fields.
    pub display_name: Option<Text>,
    /// Name of the algorithm that makes block hashes, if known.
    pub hash_algorithm: Option<Text>,
    /// Fingerprint of the seed that block hashes start from, if known. Under another seed no block is ever found.
    pub hash_seed: Option<Text>,
}

/// A `config.json` as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredConfig {
    /// The hashed fields.
    pub fields: Fields,
    /// Who wrote it; `None` in the engine's layout.
    pub origin: Option<Origin>,
}

/// What an existing `config.json` says about the one who opens the namespace.
#[derive(Debug)]
pub enum ConfigCheck {
    /// It holds exactly the expected fields.
    Same,
    /// It holds others. The error is of kind [`ErrorKind::IdentityMismatch`] and names each field with both values.
    Different(Error),
    /// It can't be understood: cut short, edited into something else, or not JSON. Nothing is proven by that.
    Unreadable(Error),
}

impl StoredConfig {
    /// The text of a `config.json` of this kind.
    pub(super) fn encode(kind: NamespaceKind, fields: &Fields, origin: &Origin) -> String {
        match kind {
            NamespaceKind::Vllm => Value::from(fields.clone()).to_indented_json(),
            NamespaceKind::Kvtier => {
                let entries = [("fields", Value::from(fields.clone())), ("written_by", origin.to_value())];
                Value::from(entries).to_indented_json() + "\n"
            }
        }
    }

    /// Reads a `config.json` in either layout.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        let unreadable =
            |problem: &str| Error::new(ErrorKind::Config, format!("{CONFIG_FILE_NAME} is unreadable: {problem}"));
        if text.iter().all(u8::is_ascii_whitespace) {
            return Err(unreadable("it is empty"));
        }
        let Value::Map(mut map) = Value::from_json(text).map_err(|e| unreadable(e.message()).with_source(e))? else {
            return Err(unreadable("it holds no JSON object"));
        };
        // The engine's layout has the model's name at the top; kvtier's never has.
        if map.contains_key(b"model_name".as_slice()) {
            return Ok(Self { fields: map.into(), origin: None });
        }
        match map.remove(b"fields".as_slice()) {
            Some(Value::Map(fields)) => {
                let origin = match map.get(b"written_by".as_slice()) {
                    Some(Value::Map(written_by)) => Origin::from_map(written_by),
                    _ => Origin::default(),
                };
                Ok(Self { fields: fields.into(), origin: Some(origin) })
            }
            _ => Err(unreadable(
                "it has neither \"fields\" (kvtier) nor \"model_name\" (the engine's own tier) at its top",
            )),
        }
    }

    /// Compares an existing `config.json` with the fields of the one who opens the namespace.
    pub(super) fn check(existing: &[u8], expected: &Fields) -> ConfigCheck {
        match Self::from_json(existing) {
            Err(e) => ConfigCheck::Unreadable(e),
            Ok(stored) => match stored.fields.diff(expected).as_slice() {
                [] => ConfigCheck::Same,
                differences => ConfigCheck::Different(mismatch(differences)),
            },
        }
    }
}

impl Origin {
    fn to_value(&self) -> Value {
        let entries = self.entries().into_iter();
        Value::Map(entries.filter_map(|(name, text)| Some((name.into(), text.clone()?.into()))).collect())
    }

    fn from_map(map: &BTreeMap<Text, Value>) -> Self {
        let text = |name: &str| match map.get(name.as_bytes()) {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => None,
        };
        Self {
            kvtier: text("kvtier"),
            display_name: text("display_name"),
            hash_algorithm: text("hash_algorithm"),
            hash_seed: text("hash_seed"),
        }
    }

    fn entries(&self) -> [(&'static str, &Option<Text>); 4] {
        [
            ("kvtier", &self.kvtier),
            ("display_name", &self.display_name),
            ("hash_algorithm", &self.hash_algorithm),
            ("hash_seed", &self.hash_seed),
        ]
    }
}

fn mismatch(differences: &[Difference]) -> Error {
    let listed: Vec<_> = differences
        .iter()
        .map(|d| format!("{} is {} on storage, {} here", d.field, d.left_shown(), d.right_shown()))
        .collect();
    Error::new(
        ErrorKind::IdentityMismatch,
        format!("the namespace was written under another identity: {}", listed.join("; ")),
    )
}
