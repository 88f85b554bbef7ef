//! kvtier: the storage tier below GPU and host memory in KV-cache offloading.

pub mod buffer;
pub mod config;
pub mod engine;
pub mod error;
pub mod frame;
pub mod identity;
pub mod index;
pub mod io;
pub mod layout;
pub mod metrics;
pub mod process;
pub mod store;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("kvtier supports 64-bit targets only: row and file sizes are used as both u64 and usize");
