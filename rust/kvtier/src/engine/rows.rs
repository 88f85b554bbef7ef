//! Which rows open jobs have.

use super::job::JobKind;
use crate::error::{Error, ErrorKind, Result};

/// Who has each row: several stores, or one load, or nobody.
///
/// Two loads into one row would leave either block's bytes there and report both as loaded; a store beside a load would
/// keep anything. So a row is taken when a job is submitted, and given back when the job's result is handed out.
#[derive(Debug)]
pub(super) struct RowsInUse(Vec<u32>);

/// A load has the row.
const LOAD: u32 = u32::MAX;

impl RowsInUse {
    pub(super) fn new(num_rows: usize) -> Self {
        // Zeroed pages cost nothing until they are used.
        Self(vec![0; num_rows])
    }

    /// Takes the rows of a job, all or none. They exist.
    ///
    /// # Errors
    /// `InvalidInput` naming a row that another operation has.
    pub(super) fn take(&mut self, kind: JobKind, rows: &[u32]) -> Result<()> {
        for (i, row) in rows.iter().enumerate() {
            let users = &mut self.0[*row as usize];
            match kind {
                JobKind::Load if *users == 0 => *users = LOAD,
                JobKind::Store if *users < LOAD - 1 => *users += 1,
                _ => {
                    let used = if rows[..i].contains(row) {
                        "is given for two blocks, of which only one can be loaded there"
                    } else if *users == LOAD {
                        "is in use: an open job loads into it"
                    } else {
                        "is in use: an open job stores it"
                    };
                    self.give_back(kind, &rows[..i]);
                    return Err(Error::new(ErrorKind::InvalidInput, format!("row {row} {used}")));
                }
            }
        }
        Ok(())
    }

    /// Gives back what [`RowsInUse::take`] has taken.
    pub(super) fn give_back(&mut self, kind: JobKind, rows: &[u32]) {
        for row in rows {
            let users = &mut self.0[*row as usize];
            *users = match kind {
                JobKind::Load => 0,
                JobKind::Store => *users - 1,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(rows: &mut RowsInUse, kind: JobKind, wanted: &[u32]) -> String {
        rows.take(kind, wanted).unwrap_err().message().to_owned()
    }

    #[test]
    fn a_load_has_its_row_alone() {
        let mut rows = RowsInUse::new(4);
        rows.take(JobKind::Load, &[1, 2]).unwrap();
        rows.take(JobKind::Store, &[3, 3]).unwrap();
        rows.take(JobKind::Store, &[3]).unwrap();
        assert_eq!(refusal(&mut rows, JobKind::Load, &[0, 2]), "row 2 is in use: an open job loads into it");
        assert_eq!(refusal(&mut rows, JobKind::Store, &[0, 1]), "row 1 is in use: an open job loads into it");
        assert_eq!(refusal(&mut rows, JobKind::Load, &[0, 3]), "row 3 is in use: an open job stores it");
        assert!(refusal(&mut rows, JobKind::Load, &[0, 0]).starts_with("row 0 is given for two blocks"));
        rows.give_back(JobKind::Store, &[3]);
        assert!(rows.take(JobKind::Load, &[3]).is_err());
        rows.give_back(JobKind::Store, &[3, 3]);
        rows.give_back(JobKind::Load, &[1, 2]);
        rows.take(JobKind::Load, &[0, 1, 2, 3]).expect("what was refused has left nothing taken");
    }
}
