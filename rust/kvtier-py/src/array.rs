//! Memory as Python describes it, and how rows lie in it.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

use kvtier::buffer::RowPart;
use kvtier::error::{Error, ErrorKind, Result};

/// An n-dimensional array in host memory, however it was handed over.
pub(crate) struct Array {
    /// Where the element with all indices zero is; null only when there is no element.
    pub(crate) base: *mut u8,
    /// Bytes of one element.
    pub(crate) item_bytes: usize,
    /// Elements along each dimension.
    pub(crate) shape: Vec<usize>,
    /// Bytes from one element to the next along each dimension.
    pub(crate) strides: Vec<isize>,
    pub(crate) writable: bool,
    /// Keeps the memory where it is.
    pub(crate) owner: Box<dyn Any + Send + Sync>,
}

impl Array {
    /// The whole array as a single row.
    pub(crate) fn into_one_row(mut self) -> Self {
        self.shape.insert(0, 1);
        self.strides.insert(0, 0);
        self
    }

    /// The array as rows: its first dimension counts them, the others lie back to back within each.
    ///
    /// An array of one dimension is split into rows of `row_bytes`. `name` is the argument's, for errors.
    ///
    /// # Errors
    /// `InvalidInput` when there are no rows, or the bytes of each are not in one piece, or rows overlap.
    pub(crate) fn as_rows(&self, name: &str, row_bytes: Option<usize>) -> Result<(RowPart, usize)> {
        let refuse = |why: fmt::Arguments<'_>| {
            let (shape, strides) = (Dimensions(&self.shape), Dimensions(&self.strides));
            Error::new(
                ErrorKind::InvalidInput,
                format!("{name}: {why} (shape {shape}, strides {strides} bytes, {} bytes an element)", self.item_bytes),
            )
        };
        let Some((&count, inner)) = self.shape.split_first() else {
            return Err(refuse(format_args!("a single element has no rows; the shape must be (num_rows, row_bytes)")));
        };
        if self.item_bytes == 0 || self.shape.contains(&0) {
            return Err(refuse(format_args!("there are no bytes; at least one row of at least one byte is needed")));
        }
        let base = NonNull::new(self.base)
            .ok_or_else(|| refuse(format_args!("the memory has no address (a meta or fake tensor?)")))?;
        let inner_bytes = self
            .contiguous_bytes_within_a_row()
            .ok_or_else(|| refuse(format_args!("the bytes of each row must be in one piece (C-contiguous)")))?;
        if inner.is_empty() {
            let Some(row_bytes) = row_bytes else {
                return Err(refuse(format_args!(
                    "an array of one dimension doesn't say how long a row is; give it the shape (num_rows, row_bytes), \
                     as in memoryview(buffer).cast('B', (num_rows, row_bytes)), or the identity its row_bytes"
                )));
            };
            let total = count * inner_bytes;
            if count > 1 && self.strides.first() != Some(&inner_bytes.cast_signed()) {
                return Err(refuse(format_args!("an array of one dimension must be contiguous")));
            }
            if row_bytes == 0 || !total.is_multiple_of(row_bytes) {
                return Err(refuse(format_args!("{total} bytes can't be split into rows of {row_bytes} bytes")));
            }
            return Ok((RowPart { base, row_bytes, stride: row_bytes }, total / row_bytes));
        }
        let stride = match self.strides.first() {
            Some(&stride) if count > 1 => usize::try_from(stride).unwrap_or(0),
            _ => inner_bytes,
        };
        if stride < inner_bytes {
            return Err(refuse(format_args!("rows overlap or run backwards")));
        }
        Ok((RowPart { base, row_bytes: inner_bytes, stride }, count))
    }

    /// Bytes of one row, if its elements lie back to back.
    fn contiguous_bytes_within_a_row(&self) -> Option<usize> {
        let mut bytes = self.item_bytes;
        for (&len, &stride) in self.shape.iter().zip(&self.strides).skip(1).rev() {
            if len > 1 && stride != bytes.cast_signed() {
                return None;
            }
            bytes *= len;
        }
        Some(bytes)
    }
}

/// Shapes the way Python writes them.
struct Dimensions<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Dimensions<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, n) in self.0.iter().enumerate() {
            write!(f, "{}{n}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str(if self.0.len() == 1 { ",)" } else { ")" })
    }
}
