//! Where the blocks of one identity live below a root, and what proves that they are its own.

use std::fmt;
use std::str::FromStr;

use super::config_file::{CONFIG_FILE_NAME, ConfigCheck, Origin, StoredConfig};
use super::facts::Identity;
use super::fields::Fields;
use super::text::Text;
use crate::error::{Error, ErrorKind, Result};

/// Longest name of a file or directory, in bytes, on every file system that kvtier meets.
pub const MAX_COMPONENT_BYTES: usize = 255;

/// Longest model part in a directory's name: behind it come `_<12 digits>` and, in the longest case, `_r4294967295`.
const MAX_MODEL_BYTES: usize = MAX_COMPONENT_BYTES - 13 - 12;

/// Whose rules a namespace follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NamespaceKind {
    /// kvtier's own: every stated fact is hashed, blocks are framed and verified.
    #[default]
    Kvtier,
    /// The engine's own tiers': exactly their fields and paths, blocks are raw. Each reads the other's blocks, and
    /// neither is protected from what those fields leave out.
    Vllm,
}

impl NamespaceKind {
    /// The stable name: `kvtier` or `vllm`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kvtier => "kvtier",
            Self::Vllm => "vllm",
        }
    }
}

impl fmt::Display for NamespaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for NamespaceKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "kvtier" => Ok(Self::Kvtier),
            "vllm" => Ok(Self::Vllm),
            other => Err(Error::new(
                ErrorKind::Config,
                format!("there is no namespace kind {other:?}; \"kvtier\" and \"vllm\" are accepted"),
            )),
        }
    }
}

/// One identity's place below a root: what a store needs to know, and all that it needs to know.
///
/// ```text
/// <base_dir>/config.json             shared by all ranks
/// <blocks_dir>/hhh/hh_g<group>/<hash>.bin      blocks_dir = <base_dir>_r<rank>
/// ```
/// Both names are single path components, the same below a directory and below an object store's prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    kind: NamespaceKind,
    fields: Fields,
    sha256: [u8; 32],
    base_dir: String,
    blocks_dir: String,
    row_bytes: u64,
    payload_bytes: u64,
    origin: Origin,
}

impl Namespace {
    /// The namespace of `identity`, whose row length must be known by now ([`Identity::with_row_bytes`]).
    ///
    /// An error of kind [`ErrorKind::Config`] says why this identity can't be opened as this kind.
    pub fn new(identity: &Identity, kind: NamespaceKind) -> Result<Self> {
        identity.check_kind(kind)?;
        let facts = identity.facts();
        let Some(row_bytes) = facts.row_bytes else {
            return Err(Error::new(
                ErrorKind::Config,
                "row_bytes is not known yet, and no namespace is complete without it",
            ));
        };
        let fields = identity.fields(kind);
        let model = identity.model(kind);
        let model_part = match kind {
            NamespaceKind::Kvtier => visible_model_part(model),
            NamespaceKind::Vllm => engine_model_part(model)?,
        };
        let base_dir = format!("{model_part}_{}", fields.digest());
        let blocks_dir = format!("{base_dir}_r{}", facts.effective_rank());
        if blocks_dir.len() > MAX_COMPONENT_BYTES {
            return Err(Error::new(
                ErrorKind::Config,
                format!(
                    "the engine's own naming gives a directory name of {} bytes, {MAX_COMPONENT_BYTES} are possible; \
                     a shorter model name or the \"kvtier\" kind helps",
                    blocks_dir.len()
                ),
            ));
        }
        Ok(Self {
            kind,
            sha256: fields.sha256(),
            fields,
            base_dir,
            blocks_dir,
            row_bytes,
            payload_bytes: match kind {
                NamespaceKind::Kvtier => facts.payload_bytes.unwrap_or(row_bytes),
                NamespaceKind::Vllm => row_bytes,
            },
            origin: Origin {
                kvtier: Some(env!("CARGO_PKG_VERSION").into()),
                display_name: Some(facts.model_name.clone()),
                ..Origin::default()
            },
        })
    }

    /// Records how block hashes are made: the algorithm's name and a fingerprint of the seed, if known.
    #[must_use]
    pub fn with_hashing(mut self, algorithm: Option<Text>, seed: Option<Text>) -> Self {
        self.origin.hash_algorithm = algorithm;
        self.origin.hash_seed = seed;
        self
    }

    /// Whose rules it follows; raw blocks in the `vllm` kind, framed ones in the `kvtier` kind.
    pub fn kind(&self) -> NamespaceKind {
        self.kind
    }

    /// The hashed fields.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// SHA-256 over the fields, as it stands in each framed block's trailer.
    pub fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }

    /// Name of the directory that holds `config.json`: `<model>_<digest>`.
    pub fn base_dir(&self) -> &str {
        &self.base_dir
    }

    /// Name of the directory that holds this rank's blocks: `<model>_<digest>_r<rank>`.
    pub fn blocks_dir(&self) -> &str {
        &self.blocks_dir
    }

    /// Path of `config.json` below the root.
    pub fn config_path(&self) -> String {
        format!("{}/{CONFIG_FILE_NAME}", self.base_dir)
    }

    /// Bytes from one row to the next in the engine's buffer, padding included.
    pub fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Bytes of a row that are stored and compared: all of it, unless the identity states `payload_bytes`.
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// The text of this namespace's `config.json`.
    pub fn config_text(&self) -> String {
        StoredConfig::encode(self.kind, &self.fields, &self.origin)
    }

    /// Compares an existing `config.json` with this namespace, field by field.
    pub fn check_config(&self, existing: &[u8]) -> ConfigCheck {
        StoredConfig::check(existing, &self.fields)
    }
}

/// The model's name as part of a directory's name: nothing in it can end, leave or garble the component.
///
/// It is there for people; the digest behind it makes the name unique.
fn visible_model_part(model: &Text) -> String {
    let mut part = String::new();
    for code_point in model.code_points() {
        let c = char::from_u32(code_point).filter(|c| !c.is_control() && !matches!(c, '/' | '\\')).unwrap_or('_');
        if part.len() + c.len_utf8() > MAX_MODEL_BYTES {
            break;
        }
        part.push(c);
    }
    part
}

/// The model's name as the engine's own tiers write it, or why no file system takes it.
fn engine_model_part(model: &Text) -> Result<String> {
    let refused = |what: &str| {
        let advice = "the engine's own naming can't be used; the \"kvtier\" kind replaces such characters";
        Error::new(ErrorKind::Config, format!("the model name {model:?} holds {what}: {advice}"))
    };
    match model.replace_ascii(b'/', b'_').as_str() {
        None => Err(refused("a lone surrogate")),
        Some(name) if name.contains('\0') => Err(refused("a NUL character")),
        Some(name) => Ok(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::identity::{Facts, FileMapper, MapperArguments};

    fn identity(model_name: impl Into<Text>) -> Identity {
        Identity::new(Facts { row_bytes: Some(4096), rank: 7, ..Facts::new(model_name, 16, "bfloat16") }).unwrap()
    }

    fn open(model_name: impl Into<Text>, kind: NamespaceKind) -> Result<Namespace> {
        Namespace::new(&identity(model_name), kind)
    }

    proptest! {
        #[test]
        fn any_name_of_any_length_gives_good_components(name in r"[\x{0}-\x{10ffff}]{1,400}", rank: u32) {
            let facts = Facts { rank, row_bytes: Some(1), ..Facts::new(name, 1, "x") };
            let namespace = Namespace::new(&Identity::new(facts).unwrap(), NamespaceKind::Kvtier).unwrap();
            let blocks_dir = namespace.blocks_dir();
            prop_assert!(blocks_dir.len() <= MAX_COMPONENT_BYTES);
            prop_assert!(!blocks_dir.contains(['/', '\\']) && !blocks_dir.contains(char::is_control));
            prop_assert_eq!(blocks_dir, format!("{}_r{rank}", namespace.base_dir()));
        }

        #[test]
        fn the_vllm_kind_is_the_mapper_or_an_error(name in r"[\x{0}-\x{10ffff}]{1,300}") {
            let mapper = FileMapper::new(&"".into(), &MapperArguments::from(identity(name.as_str()).facts()));
            if let Ok(namespace) = open(name, NamespaceKind::Vllm) {
                prop_assert_eq!(mapper.base_path(), &Text::from(format!("/{}", namespace.base_dir())));
                prop_assert_eq!(mapper.fields(), namespace.fields());
                prop_assert!(namespace.blocks_dir().len() <= MAX_COMPONENT_BYTES);
            }
        }
    }

    #[test]
    fn a_long_name_is_cut_at_a_character_and_the_digest_keeps_it_apart() {
        let [a, b] = ["a", "b"].map(|last| open("千".repeat(10_000) + last, NamespaceKind::Kvtier).unwrap());
        assert_eq!(a.base_dir().rsplit_once('_').unwrap().0, "千".repeat(76));
        assert_ne!(a.base_dir(), b.base_dir());
    }

    #[test]
    fn the_longest_component_is_used_to_the_last_byte() {
        let facts = Facts { rank: u32::MAX, row_bytes: Some(1), ..Facts::new("x".repeat(1000), 1, "x") };
        let namespace = Namespace::new(&Identity::new(facts).unwrap(), NamespaceKind::Kvtier).unwrap();
        assert_eq!(namespace.blocks_dir().len(), MAX_COMPONENT_BYTES);
    }

    #[test]
    fn what_could_leave_or_end_a_component_is_replaced_for_the_eye_only() {
        let [a, b] = ["a/b\\c\0d\u{7f}e\u{85}f", "a_b_c_d_e_f"].map(|name| open(name, NamespaceKind::Kvtier).unwrap());
        assert!(a.base_dir().starts_with("a_b_c_d_e_f_") && b.base_dir().starts_with("a_b_c_d_e_f_"));
        assert_ne!(a.sha256(), b.sha256());
        let surrogate = Text::from_generalised_utf8(vec![b'a', 0xED, 0xA0, 0x80]).unwrap();
        assert!(open(surrogate, NamespaceKind::Kvtier).unwrap().base_dir().starts_with("a__"));
    }

    #[test]
    fn the_vllm_kind_refuses_names_that_no_file_system_takes() {
        let surrogate = Text::from_generalised_utf8(vec![0xED, 0xA0, 0x80]).unwrap();
        for (name, problem) in [
            ("n\0l".into(), "a NUL character"),
            (surrogate, "a lone surrogate"),
            (Text::from("x".repeat(240)), "255 are possible"),
        ] {
            let error = open(name, NamespaceKind::Vllm).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.message().contains(problem), "{error}");
        }
        let raw = open("a\\b\tc", NamespaceKind::Vllm).unwrap();
        assert!(raw.base_dir().starts_with("a\\b\tc_"));
    }

    #[test]
    fn payload_bytes_stand_for_the_row_where_blocks_are_framed() {
        let facts = Facts { row_bytes: Some(8192), payload_bytes: Some(8000), ..Facts::new("m", 16, "bfloat16") };
        let identity = Identity::new(facts).unwrap();
        let framed = Namespace::new(&identity, NamespaceKind::Kvtier).unwrap();
        assert_eq!((framed.row_bytes(), framed.payload_bytes()), (8192, 8000));
        let raw = Namespace::new(&identity, NamespaceKind::Vllm).unwrap();
        assert_eq!((raw.row_bytes(), raw.payload_bytes()), (8192, 8192));
    }

    #[test]
    fn nothing_opens_before_the_row_length_is_known() {
        let identity = Identity::new(Facts::new("m", 16, "bfloat16")).unwrap();
        for kind in [NamespaceKind::Kvtier, NamespaceKind::Vllm] {
            assert_eq!(Namespace::new(&identity, kind).unwrap_err().kind(), ErrorKind::Config);
            assert!(Namespace::new(&identity.with_row_bytes(4096).unwrap(), kind).is_ok());
        }
    }

    #[test]
    fn kinds_have_names() {
        for kind in [NamespaceKind::Kvtier, NamespaceKind::Vllm] {
            assert_eq!(kind.as_str().parse::<NamespaceKind>().unwrap(), kind);
        }
        assert!("VLLM".parse::<NamespaceKind>().unwrap_err().message().contains("\"kvtier\" and \"vllm\""));
    }
}
