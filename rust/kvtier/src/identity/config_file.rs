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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

    /// Where two namespaces differ in a way that keeps one from finding the other's blocks.
    ///
    /// That is every field, and the way block hashes are made, where both say it: it is not hashed, but under another
    /// seed no hash is ever the same.
    pub fn diff(&self, other: &Self) -> Vec<Difference> {
        let mut found = self.fields.diff(&other.fields);
        if let (Some(left), Some(right)) = (&self.origin, &other.origin) {
            for (name, left, right) in [
                ("written_by.hash_algorithm", &left.hash_algorithm, &right.hash_algorithm),
                ("written_by.hash_seed", &left.hash_seed, &right.hash_seed),
            ] {
                if let (Some(left), Some(right)) = (left, right)
                    && left != right
                {
                    found.push(Difference {
                        field: name.into(),
                        left: Some(left.clone().into()),
                        right: Some(right.clone().into()),
                    });
                }
            }
        }
        found
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
        Value::Map(self.entries().map(|(name, text)| (name.into(), text.clone().into())).collect())
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

    /// What is known, by the name it has in the file.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, &Text)> {
        [
            ("kvtier", &self.kvtier),
            ("display_name", &self.display_name),
            ("hash_algorithm", &self.hash_algorithm),
            ("hash_seed", &self.hash_seed),
        ]
        .into_iter()
        .filter_map(|(name, text)| Some((name, text.as_ref()?)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Facts, Identity, MAX_DEPTH, Namespace};

    fn namespace(tp_size: u64, kind: NamespaceKind) -> Namespace {
        let facts = Facts { tp_size, row_bytes: Some(4096), ..Facts::new("org/m", 16, "bfloat16") };
        Namespace::new(&Identity::new(facts).unwrap(), kind).unwrap()
    }

    fn is_same(check: &ConfigCheck) -> bool {
        matches!(check, ConfigCheck::Same)
    }

    #[test]
    fn what_is_written_is_accepted_whoever_wrote_it() {
        let ours = namespace(1, NamespaceKind::Kvtier).with_hashing(Some("sha256".into()), Some("5eed".into()));
        assert!(is_same(&ours.check_config(ours.config_text().as_bytes())));
        // Another version, another name, other hashes: none of it is hashed.
        assert!(is_same(&ours.check_config(namespace(1, NamespaceKind::Kvtier).config_text().as_bytes())));

        let engines = namespace(1, NamespaceKind::Vllm);
        let by_engine = engines.config_text();
        let by_kvtier = StoredConfig::encode(NamespaceKind::Kvtier, engines.fields(), &Origin::default());
        for text in [by_engine, by_kvtier] {
            assert!(is_same(&engines.check_config(text.as_bytes())), "{text}");
        }
    }

    #[test]
    fn the_origin_is_recorded_and_read_back() {
        let ours = namespace(1, NamespaceKind::Kvtier).with_hashing(Some("sha256".into()), Some("5eed".into()));
        let stored = StoredConfig::from_json(ours.config_text().as_bytes()).unwrap();
        assert_eq!(stored.fields, *ours.fields());
        let origin = stored.origin.unwrap();
        assert_eq!(origin.kvtier.unwrap(), *env!("CARGO_PKG_VERSION"));
        assert_eq!(origin.display_name.unwrap(), *"org/m");
        assert_eq!((origin.hash_algorithm.unwrap(), origin.hash_seed.unwrap()), ("sha256".into(), "5eed".into()));
        // The engine's own file has no room for it.
        let engines = namespace(1, NamespaceKind::Vllm).config_text();
        assert_eq!(StoredConfig::from_json(engines.as_bytes()).unwrap().origin, None);
    }

    #[test]
    fn other_hashes_keep_blocks_apart_though_they_are_no_mismatch() {
        let stored = |seed: Option<&str>| {
            let namespace =
                namespace(1, NamespaceKind::Kvtier).with_hashing(Some("sha256".into()), seed.map(Into::into));
            StoredConfig::from_json(namespace.config_text().as_bytes()).unwrap()
        };
        let found = stored(Some("1")).diff(&stored(Some("2")));
        assert_eq!(found[0].to_string(), "written_by.hash_seed: \"1\" | \"2\"");
        assert!(stored(Some("1")).diff(&stored(None)).is_empty());
    }

    #[test]
    fn another_identity_is_named_field_by_field() {
        let ours = namespace(4, NamespaceKind::Kvtier);
        let theirs = namespace(2, NamespaceKind::Kvtier).config_text().replace("4096", "4096.0");
        let ConfigCheck::Different(error) = ours.check_config(theirs.as_bytes()) else {
            panic!("a difference expected")
        };
        assert_eq!(error.kind(), ErrorKind::IdentityMismatch);
        assert!(
            error.message().ends_with("tp_size is 2 on storage, 4 here; row_bytes is 4096.0 on storage, 4096 here"),
            "{error}"
        );
    }

    #[test]
    fn an_absent_field_is_a_difference_also_where_null_stands_for_it() {
        let ours = namespace(1, NamespaceKind::Kvtier);
        let theirs = ours.config_text().replacen("\"fields\": {", "\"fields\": {\"rope\": null,", 1);
        let ConfigCheck::Different(error) = ours.check_config(theirs.as_bytes()) else {
            panic!("a difference expected")
        };
        assert!(error.message().ends_with("rope is null on storage, (absent) here"), "{error}");
    }

    #[test]
    fn the_deepest_value_still_makes_a_readable_file() {
        let deep = "[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH);
        let rope = Some(Value::from_json(deep.as_bytes()).unwrap());
        let facts = Facts { rope, row_bytes: Some(4096), ..Facts::new("m", 16, "bfloat16") };
        let namespace = Namespace::new(&Identity::new(facts).unwrap(), NamespaceKind::Kvtier).unwrap();
        assert!(is_same(&namespace.check_config(namespace.config_text().as_bytes())));
    }

    #[test]
    fn every_cut_of_a_file_is_unreadable_not_different() {
        for kind in [NamespaceKind::Kvtier, NamespaceKind::Vllm] {
            let namespace = namespace(1, kind);
            let text = namespace.config_text();
            let text = text.trim_end();
            for end in 0..text.len() {
                let check = namespace.check_config(&text.as_bytes()[..end]);
                assert!(matches!(check, ConfigCheck::Unreadable(_)), "{kind} cut at {end}: {check:?}");
            }
        }
    }

    #[test]
    fn unreadable_files_say_why() {
        for (text, problem) in [
            (&b""[..], "it is empty"),
            (b"  \n", "it is empty"),
            (b"[]", "it holds no JSON object"),
            (b"{}", "it has neither"),
            (b"{\"fields\": 1}", "it has neither"),
            (b"{\"model_name\": \"a\", \"model_name\": \"a\"}", "the key \"model_name\" is given twice"),
            (b"\xff\xfe", "a JSON value is expected"),
        ] {
            let error = StoredConfig::from_json(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.message().contains(problem), "{error}");
        }
    }
}
