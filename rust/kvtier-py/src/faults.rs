//! `kvtier.testing.Faults`: storage that misbehaves on demand.

use std::sync::Arc;
use std::time::Duration;

use kvtier::error::ErrorKind;
use kvtier::store::faulty::{self, Fault, Misbehaviour, Operation};
use pyo3::prelude::*;

use crate::arguments::key_of;
use crate::errors::{Failure, Result};

/// A script of what goes wrong in the storage of a tier, for tests of what stands above it.
#[pyclass(frozen, module = "kvtier._kvtier")]
#[derive(Default)]
pub(crate) struct Faults(Arc<faulty::Faults>);

#[pymethods]
impl Faults {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Adds a fault behind those that are there; the first that fits an operation happens to it.
    #[pyo3(signature = (operation, what, *, key=None, after=0, times=1, kind=None, seconds=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of one sentence")]
    fn inject(
        &self,
        operation: &str,
        what: &str,
        key: Option<&Bound<'_, PyAny>>,
        after: u32,
        times: u32,
        kind: Option<&str>,
        seconds: Option<f64>,
    ) -> Result<()> {
        let operation = match operation {
            "store" => Operation::Store,
            "load" => Operation::Load,
            "probe" => Operation::Probe,
            other => return Err(refused("operation", other, "\"store\", \"load\" or \"probe\"")),
        };
        let what = match (what, kind, seconds) {
            ("fail", Some(kind), None) => Misbehaviour::Fail(kind_of(kind)?),
            ("panic", None, None) => Misbehaviour::Panic,
            ("lose", None, None) => Misbehaviour::Lose,
            ("stall", None, None) => Misbehaviour::Stall,
            ("stall_in_row", None, None) => Misbehaviour::StallInRow,
            ("stall_answer", None, None) => Misbehaviour::StallAnswer,
            ("delay", None, Some(seconds)) => Misbehaviour::Delay(
                Duration::try_from_secs_f64(seconds).map_err(|e| Failure::invalid_input(format!("seconds: {e}")))?,
            ),
            (other, _, _) => {
                let accepted = "\"fail\" with a kind, \"delay\" with seconds, \"panic\", \"lose\", \"stall\", \
                                \"stall_in_row\" or \"stall_answer\"";
                return Err(refused("what", other, accepted));
            }
        };
        let key = key.map(key_of).transpose()?;
        self.0.inject(Fault { operation, key, after, times, what });
        Ok(())
    }

    /// Lets everything go on that has stalled.
    fn release(&self) {
        self.0.release();
    }

    /// How many operations are stalled now.
    #[getter]
    fn stalled(&self) -> usize {
        self.0.stalled()
    }

    /// How many faults have not happened yet.
    #[getter]
    fn pending(&self) -> usize {
        self.0.pending()
    }

    /// Drops the faults that have not happened yet.
    fn clear(&self) {
        self.0.clear();
    }
}

impl Faults {
    pub(crate) fn script(&self) -> Arc<faulty::Faults> {
        Arc::clone(&self.0)
    }
}

fn kind_of(name: &str) -> Result<ErrorKind> {
    let kind = ErrorKind::ALL.into_iter().find(|kind| kind.as_str() == name);
    kind.ok_or_else(|| refused("kind", name, "a kind of kvtier.KvTierError"))
}

fn refused(argument: &str, value: &str, accepted: &str) -> Failure {
    Failure::invalid_input(format!("{argument}: {value:?} given; {accepted} accepted"))
}
