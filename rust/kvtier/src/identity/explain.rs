//! Why an identity is what it is, field by field: the answer to "why no hits?" before there is a second one to compare.

use std::fmt;

use super::facts::Identity;
use super::fields::{FIELDS, Field, Fields};
use super::namespace::NamespaceKind;
use super::text::Text;
use super::value::Value;

/// What a fact does in an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It is part of the digest.
    Hashed,
    /// It is part of the digest as 1, whatever it is, since rows don't depend on it.
    Collapsed,
    /// It was not stated, so nothing protects from it.
    Absent,
    /// It was stated, but is not part of the digest.
    Unhashed,
}

impl Role {
    /// The stable lower-case name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hashed => "hashed",
            Self::Collapsed => "collapsed",
            Self::Absent => "absent",
            Self::Unhashed => "unhashed",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One fact of an identity, explained.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Explanation {
    /// The fact's name.
    pub field: Text,
    /// Its value as stated; `None` when it has none.
    pub value: Option<Value>,
    /// What it does.
    pub role: Role,
    /// What goes wrong between two engines that differ in it and share blocks all the same.
    pub protects_from: &'static str,
    /// Why it has this role, where that isn't plain.
    pub note: Option<&'static str>,
}

const BY_ABSENCE: &str = "said by leaving the field out, as digests older than the field do";
const COLLAPSED_AGNOSTIC: &str = "1 in the digest: rows are stated to be the same bytes under any parallel layout";
const COLLAPSED_REPLICATED: &str = "1 in the digest: every rank is stated to hold the same bytes";
const NOT_IN_VLLM: &str = "the engine's own naming leaves it out";
const DIRECT_LAYOUT: &str = "the engine's direct layout is said by leaving the field out";
const ROW_BYTES_PENDING: &str = "known when a tier opens";
const ROW_BYTES_ARE_PAYLOAD: &str = "payload_bytes stand for it";
const MODEL_ID_STANDS: &str = "model_id stands for it";
const UNKNOWN: &str = "unknown to this version of kvtier";

impl Fields {
    /// What each field of the list does here, and each other one that was found, in the order of the list.
    ///
    /// Of a collapsed size only the hashed 1 is known; [`Identity::explain`] knows what was stated.
    pub fn explain(&self) -> Vec<Explanation> {
        let known = FIELDS.iter().map(|field| self.explain_field(field));
        let others = self.iter().filter(|(name, _)| FIELDS.iter().all(|field| **name != *field.name));
        let others = others.map(|(name, value)| Explanation {
            field: name.clone(),
            value: Some(value.clone()),
            role: Role::Hashed,
            protects_from: "",
            note: Some(UNKNOWN),
        });
        known.chain(others).collect()
    }

    fn explain_field(&self, field: &Field) -> Explanation {
        let value = self.get(field.name).cloned();
        let agnostic = self.get("parallel_agnostic").is_none();
        let replicated = self.get("replicated_layout").is_some();
        let (value, role, note) = match (field.name, value) {
            ("tp_size" | "pp_size" | "pcp_size" | "dcp_size", Some(one)) if agnostic => {
                let why = if replicated { COLLAPSED_REPLICATED } else { COLLAPSED_AGNOSTIC };
                (Some(one), Role::Collapsed, Some(why))
            }
            ("parallel_agnostic", None) => (Some(true.into()), Role::Hashed, Some(BY_ABSENCE)),
            ("replicated_layout", None) => (Some(false.into()), Role::Hashed, Some(BY_ABSENCE)),
            (_, Some(value)) => (Some(value), Role::Hashed, None),
            ("canonical_format", None) => (None, Role::Hashed, Some(DIRECT_LAYOUT)),
            (_, None) if self.kind() == NamespaceKind::Vllm => (None, Role::Absent, Some(NOT_IN_VLLM)),
            ("row_bytes", None) => (None, Role::Absent, Some(ROW_BYTES_PENDING)),
            (_, None) => (None, Role::Absent, None),
        };
        Explanation { field: field.name.into(), value, role, protects_from: field.protects_from, note }
    }
}

impl Identity {
    /// What each fact does in a namespace of this kind, with what was stated of it, the rank last.
    pub fn explain(&self, kind: NamespaceKind) -> Vec<Explanation> {
        let facts = self.facts();
        let stated = self.fields(NamespaceKind::Kvtier);
        let mut explained = self.fields(kind).explain();
        for line in &mut explained {
            match line.field.as_str() {
                Some("tp_size") => line.value = Some(facts.tp_size.into()),
                Some("pp_size") => line.value = Some(facts.pp_size.into()),
                Some("pcp_size") => line.value = Some(facts.pcp_size.into()),
                Some("dcp_size") => line.value = Some(facts.dcp_size.into()),
                Some("row_bytes") if facts.payload_bytes.is_some() && kind == NamespaceKind::Kvtier => {
                    line.note = Some(ROW_BYTES_ARE_PAYLOAD);
                }
                Some("model_name") if facts.model_id.is_some() && kind == NamespaceKind::Kvtier => {
                    line.note = Some(MODEL_ID_STANDS);
                }
                // The format is kvtier's own statement; the rest of what the engine's naming leaves out is the caller's.
                Some(name) if line.role == Role::Absent && name != "storage_format" => {
                    if let Some(value) = stated.get(name) {
                        line.value = Some(value.clone());
                        line.role = Role::Unhashed;
                    }
                }
                _ => {}
            }
        }
        explained.push(Explanation {
            field: "rank".into(),
            value: Some(u64::from(facts.rank).into()),
            role: if facts.parallel_agnostic { Role::Collapsed } else { Role::Unhashed },
            protects_from: "one rank's part of a row taken for another's",
            note: Some(if facts.parallel_agnostic {
                "0 in the path: rows don't depend on the rank"
            } else {
                "in the path: all ranks share one config.json"
            }),
        });
        explained
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Facts;

    fn line(explained: &[Explanation], field: &str) -> (Option<Value>, Role, &'static str) {
        let line = explained.iter().find(|line| line.field == *field).unwrap();
        (line.value.clone(), line.role, line.note.unwrap_or_default())
    }

    fn replicated_tp4() -> Identity {
        Identity::new(Facts {
            tp_size: 4,
            rank: 3,
            parallel_agnostic: true,
            replicated_layout: true,
            rope: Some(Value::from([("factor", 2)])),
            ..Facts::new("m", 16, "bfloat16")
        })
        .unwrap()
    }

    #[test]
    fn a_collapsed_size_shows_what_was_stated_and_why_it_does_not_matter() {
        let explained = replicated_tp4().explain(NamespaceKind::Kvtier);
        assert_eq!(line(&explained, "tp_size"), (Some(4.into()), Role::Collapsed, COLLAPSED_REPLICATED));
        assert_eq!(line(&explained, "parallel_agnostic"), (Some(true.into()), Role::Hashed, BY_ABSENCE));
        assert_eq!(line(&explained, "rank").1, Role::Collapsed);
        assert_eq!(line(&explained, "row_bytes"), (None, Role::Absent, ROW_BYTES_PENDING));
        assert_eq!(line(&explained, "model_revision"), (None, Role::Absent, ""));
        assert_eq!(line(&explained, "rope").1, Role::Hashed);
    }

    #[test]
    fn the_engines_own_naming_is_said_to_leave_facts_out() {
        let explained = replicated_tp4().explain(NamespaceKind::Vllm);
        assert_eq!(line(&explained, "rope").1, Role::Unhashed);
        assert_eq!(line(&explained, "storage_format"), (None, Role::Absent, NOT_IN_VLLM));
        assert_eq!(line(&explained, "model_revision"), (None, Role::Absent, NOT_IN_VLLM));
    }

    #[test]
    fn without_opt_in_nothing_collapses() {
        let identity = Identity::new(Facts { tp_size: 4, rank: 3, ..Facts::new("m", 16, "bfloat16") }).unwrap();
        let explained = identity.explain(NamespaceKind::Kvtier);
        assert_eq!(line(&explained, "tp_size"), (Some(4.into()), Role::Hashed, ""));
        assert_eq!(line(&explained, "parallel_agnostic"), (Some(false.into()), Role::Hashed, ""));
        assert_eq!(line(&explained, "replicated_layout"), (Some(false.into()), Role::Hashed, BY_ABSENCE));
        assert_eq!(line(&explained, "rank").1, Role::Unhashed);
        assert!(explained.iter().all(|line| line.role != Role::Collapsed));
    }

    #[test]
    fn a_field_of_a_newer_version_is_shown_as_hashed() {
        let map =
            [("quantum_layout".into(), Value::from("x"))].into_iter().collect::<std::collections::BTreeMap<_, _>>();
        assert_eq!(line(&Fields::from(map).explain(), "quantum_layout"), (Some("x".into()), Role::Hashed, UNKNOWN));
    }
}
