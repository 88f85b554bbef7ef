//! Telling the processor what will be read soon.

/// Bytes of a cache line on the machines where this does anything.
const LINE: usize = 64;

/// Asks for `bytes` to be brought into the cache. Changes nothing but the time that reading them takes.
pub(crate) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, without effect on memory; every x86_64 processor has the instruction, and `bytes` keeps the
        // address valid.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, LINE);
}
