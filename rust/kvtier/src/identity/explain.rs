//! Why an identity is what it is, field by field.
