//! Loading: read a slot, verify it, and look twice before calling it bad.

use std::sync::Arc;

use super::catalogue::Spot;
use super::segment::SegmentFile;
use super::site::now_s;
use super::{Packed, Route};
use crate::buffer::{IoMemory, RowLease};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::Verify;
use crate::io::{Completion, Direction, Transfer, Transferred};
use crate::layout::BlockKey;
use crate::store::{Done, Loaded, check_target};

/// How many places that replaced each other are read before the load gives up.
const MOST_PLACES: usize = 4;

/// A load under way.
struct Load {
    packed: Arc<Packed>,
    key: BlockKey,
    /// The place that has failed already.
    suspect: Option<(Spot, u64)>,
    attempts: usize,
    done: Done<Loaded>,
}

/// Where a block is being read.
struct Place {
    spot: Spot,
    generation: u64,
    offset: u64,
    file: Arc<SegmentFile>,
    /// While it lives, this process doesn't reclaim the segment.
    _hold: Arc<()>,
}

/// How one attempt ended.
enum Outcome {
    Good,
    /// What lies there is not the block; the row can be filled again.
    Bad(RowLease, Error),
    /// Nothing is proven about the slot.
    Failed(Error),
}

impl Packed {
    pub(super) fn load(self: &Arc<Self>, key: BlockKey, row: RowLease, done: Done<Loaded>) {
        let load = Load { packed: Arc::clone(self), key, suspect: None, attempts: 0, done };
        match check_target(&row, &self.config.format) {
            Ok(()) => load.attempt(row),
            Err(error) => load.end(Err(error)),
        }
    }

    /// Where a block lies, held.
    fn place_of(&self, key: &BlockKey) -> Result<Place> {
        let missing = || Error::new(ErrorKind::Missing, "no block under that key");
        let (spot, generation, offset, hold, file) = {
            let state = self.pool().state.lock();
            let catalogue = &state.catalogue;
            let spot = catalogue.find(self.namespace, catalogue.name_of(key)).ok_or_else(missing)?;
            let segment = catalogue.segments.get(&spot.segment).ok_or_else(missing)?;
            let view = segment.view.as_ref().ok_or_else(missing)?;
            let offset = view.geometry.slot_offset(spot.slot);
            (spot, view.header.generation, offset, Arc::clone(&view.loading), segment.file.clone())
        };
        let file = match file {
            Some(file) => file,
            None => self.pool().file_of(spot.segment)?,
        };
        Ok(Place { spot, generation, offset, file, _hold: hold })
    }
}

impl Load {
    fn attempt(mut self, row: RowLease) {
        self.attempts += 1;
        match self.packed.place_of(&self.key) {
            Ok(place) => self.read(place, row),
            // Another process may have stored it just now.
            Err(error) if error.kind() == ErrorKind::Missing => {
                let io = Arc::clone(&self.packed.io);
                io.spawn(Box::new(move || {
                    self.packed.pool().follow();
                    match self.packed.place_of(&self.key) {
                        Ok(place) => self.read(place, row),
                        Err(error) => self.end(Err(error)),
                    }
                }));
            }
            Err(error) => self.end(Err(error)),
        }
    }

    fn read(self, place: Place, row: RowLease) {
        let packed = Arc::clone(&self.packed);
        // What proves a block bad is read into memory that nobody else can reach: a row that is changed while it is being
        // filled, by a mistake in the engine, must not cost a good block.
        let (route, direct) = packed.route(&row);
        let route = if self.suspect.is_some() { Route::Scratch } else { route };
        let (memory, row) = match self.memory(route, row) {
            Ok(memory) => memory,
            Err(error) => return self.end(Err(error)),
        };
        let file = Arc::clone(&place.file.data);
        let transfer = Transfer { file, offset: place.offset, direction: Direction::Read, memory };
        let finish = move |ended| {
            let outcome = match self.verify(&place, ended, row) {
                Ok(outcome) => outcome,
                Err(error) => Outcome::Failed(error),
            };
            self.judge(place, outcome);
        };
        packed.submit(direct, transfer, Completion::brief(finish));
    }

    /// What the transfer fills, and the row if it is filled later.
    fn memory(&self, route: Route, row: RowLease) -> Result<(IoMemory, Option<RowLease>)> {
        let format = &self.packed.config.format;
        match route {
            Route::Row => {
                let memory = IoMemory::target(row.enter()?)?;
                Ok((memory.followed_by(self.packed.tails.take()?, format.tail_bytes()), None))
            }
            Route::Scratch => {
                let block = self.packed.blocks.take()?;
                Ok((IoMemory::scratch(block, format.block_bytes()), Some(row)))
            }
        }
    }

    /// Verifies what was read, and fills the row if that was not the transfer's target.
    fn verify(&self, place: &Place, ended: Transferred, row: Option<RowLease>) -> Result<Outcome> {
        let config = &self.packed.config;
        let (format, verify) = (&config.format, self.packed.pool().scrub.verify(config.verify));
        ended.result.map_err(|e| Error::from_io("reading the block", e))?;
        let complete = format.check_length(ended.memory.done_bytes() as u64);
        let check = |payload: &mut dyn Iterator<Item = &[u8]>, tail: &[u8]| {
            complete.and_then(|()| format.verify_in_slot(self.key, payload, place.generation, tail, verify))
        };
        let (access, scratch) = ended.memory.into_parts();
        let scratch = scratch.as_deref().unwrap_or_default();
        match (access, row) {
            (Some(access), _) => {
                let good = check(&mut access.segments(), &scratch[..format.tail_bytes()]);
                let row = access.leave()?;
                Ok(good.map_or_else(|error| Outcome::Bad(row, error), |()| Outcome::Good))
            }
            (None, Some(row)) => {
                let (payload, tail) = scratch[..format.block_bytes()].split_at(format.payload_bytes());
                if let Err(error) = check(&mut std::iter::once(payload), tail) {
                    return Ok(Outcome::Bad(row, error));
                }
                let mut access = row.enter()?;
                access.copy_from(payload)?;
                access.leave()?;
                Ok(Outcome::Good)
            }
            (None, None) => Err(Error::new(ErrorKind::Internal, "a load without a row")),
        }
    }

    fn judge(self, place: Place, outcome: Outcome) {
        let packed = Arc::clone(&self.packed);
        let (pool, bytes) = (packed.pool(), packed.config.format.payload_bytes() as u64);
        match outcome {
            Outcome::Failed(error) => self.end(Err(error)),
            Outcome::Good => {
                // Without a checksum, only an unchanged generation says that nobody was writing here meanwhile.
                if packed.config.verify == Verify::Never
                    && pool.generation_of(place.spot.segment) != Some(place.generation)
                {
                    let message = "the block's segment was reclaimed while it was read";
                    self.end(Err(Error::new(ErrorKind::Missing, message)));
                    let io = Arc::clone(&packed.io);
                    return io.spawn(Box::new(move || packed.pool().refresh(place.spot.segment)));
                }
                pool.state.lock().catalogue.warm(place.spot, now_s());
                self.end(Ok(Loaded { bytes }));
            }
            // Finding out more takes reading and writing.
            Outcome::Bad(row, error) => packed.io.spawn(Box::new(move || self.doubt(place, row, error))),
        }
    }

    /// What lies there is not the block: it is somewhere else by now, or damaged.
    fn doubt(mut self, place: Place, row: RowLease, error: Error) {
        let packed = Arc::clone(&self.packed);
        let pool = packed.pool();
        let Place { spot, generation, .. } = place;
        drop(place);
        if pool.generation_of(spot.segment) != Some(generation) {
            // Reclaimed by another process.
            pool.refresh(spot.segment);
            pool.forget_if_old(spot, generation);
        } else if self.suspect == Some((spot, generation)) || error.kind() == ErrorKind::UnsupportedVersion {
            let is_proven = error.kind().is_proof_of_damage() || error.kind() == ErrorKind::Missing;
            pool.bury(spot, generation, is_proven && !packed.config.read_only);
            return self.end(Err(error));
        } else {
            self.suspect = Some((spot, generation));
        }
        if self.attempts > MOST_PLACES {
            let message = "the block's places replace each other faster than they can be read";
            return self.end(Err(Error::new(ErrorKind::Missing, message)));
        }
        self.attempt(row);
    }

    fn end(self, answer: Result<Loaded>) {
        let Self { packed, key, done, .. } = self;
        done.give(answer.map_err(|e| packed.about(&key, e)));
    }
}
