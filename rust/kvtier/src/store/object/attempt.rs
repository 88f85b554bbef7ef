//! Asking again: how often, after how long, and when not.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use object_store::path::Path;
use tokio::time::{sleep, timeout};

use super::Objects;
use super::failure::{Failure, Retry};
use crate::error::{Error, ErrorKind, Result};

/// Before the first repetition; each further one waits twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Objects {
    /// Makes a request about `path`, again while its failure may pass, tries are left and somebody still wants it (the
    /// caller drops this future otherwise). `request` gets the number of the try, from 0.
    ///
    /// # Errors
    /// The last try's failure, with what it is about.
    pub(super) async fn attempts<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        path: &Path,
        request: impl Fn(usize) -> F,
    ) -> Result<T, Failure> {
        let config = &self.config.object;
        let mut tries = 0;
        loop {
            let permit = self.requests.acquire().await;
            let outcome = timeout(config.request_timeout, request(tries)).await;
            drop(permit);
            let failure = match outcome {
                Ok(Ok(done)) => {
                    self.bucket.now();
                    return Ok(done);
                }
                Ok(Err(failure)) => failure,
                Err(_) => Failure::passing(Error::new(
                    ErrorKind::Timeout,
                    format!("a request took longer than request_timeout ({:?})", config.request_timeout),
                )),
            };
            let pause = match failure.retry {
                Retry::Later(after) if tries < config.retries => after.unwrap_or_else(|| pause_after(tries)),
                _ => {
                    let error = self.about(path, failure.error);
                    let error = if tries > 0 { error.with("tries", tries + 1) } else { error };
                    return Err(Failure { error, ..failure });
                }
            };
            tries += 1;
            log::debug!("{}, asking again in {pause:?}", failure.error);
            sleep(pause).await;
        }
    }
}

/// Half of it is chance, so that clients which failed together don't come back together.
fn pause_after(tries: usize) -> Duration {
    let most = FIRST_PAUSE.saturating_mul(1 << tries.min(16)).min(LONGEST_PAUSE);
    let chance = RandomState::new().hash_one(tries) as u32;
    most / 2 + (most / 2).mul_f64(f64::from(chance) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        for (tries, most) in [(0, 100), (1, 200), (3, 800), (10, 5000), (usize::MAX, 5000)] {
            let most = Duration::from_millis(most);
            for _ in 0..100 {
                let pause = pause_after(tries);
                assert!(most / 2 <= pause && pause <= most, "{tries}: {pause:?}");
            }
        }
    }
}
