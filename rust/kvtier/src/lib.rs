//! kvtier: the storage tier below GPU and host memory in KV-cache offloading of LLM engines.
//!
//! An engine keeps blocks of KV cache in rows of host memory. kvtier keeps them on storage, under an identity that says
//! which other engines may use them, and moves them to and from the rows without ever making the engine wait.
//!
//! ```text
//! engine ──▶ store, index ──▶ io, frame, layout, identity, buffer ──▶ error
//! ```
//!
//! | module | subject |
//! |---|---|
//! | [`identity`] | which facts make two blocks the same; canonical JSON, digests, namespaces (pure) |
//! | [`layout`] | a block's key and its relative path (pure) |
//! | [`frame`] | what a stored block looks like; checksums and trailers (pure) |
//! | [`buffer`] | the engine's rows and kvtier's scratch memory: the only raw pointers |
//! | [`io`] | how bytes move: a completion-based trait, and threads that implement it |
//! | [`store`] | where blocks live: a trait, and files, memory and a misbehaving store for tests |
//! | [`index`] | what is known to be here: residency, verdicts, probes (pure) |
//! | [`engine`] | jobs, queues, limits, deadlines, results |
//! | [`config`], [`metrics`], [`process`], [`error`] | options, counters, forks, errors |
//!
//! Start at [`engine::Engine::open`].
//!
//! # Rules
//! Each submitted job gives exactly one result, and success is per block. Once a result is out, its rows belong to the
//! engine again: nothing writes to them, and nothing read from them later is published. The caller's thread does no IO
//! and waits for nothing. Nothing on storage is deleted on suspicion.

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
mod recurring;
pub mod store;
mod sync;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("kvtier supports 64-bit targets only: row and file sizes are used as both u64 and usize");
