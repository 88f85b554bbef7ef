//! Storing: a free slot, one vectored write, an entry in the table.

use std::sync::Arc;
use std::time::SystemTime;

use super::format::{Entry, KeyName, SlotState};
use super::own::SlotTicket;
use super::pool::Waiter;
use super::{Packed, Route};
use crate::buffer::{IoMemory, RowLease};
use crate::config::Durability;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Completion, Direction, Transfer, Transferred};
use crate::layout::BlockKey;
use crate::store::{Done, Known, Location, Stored, check_source};

/// A block on its way into a slot.
struct Write {
    key: BlockKey,
    slot: SlotTicket,
    created: SystemTime,
    /// The row, where the transfer doesn't hold it: it was copied.
    row: Option<RowLease>,
    done: Done<Stored>,
}

/// A slot whose block is not complete.
struct Unfit(SlotTicket);

impl Drop for Unfit {
    fn drop(&mut self) {
        // The trailer may stand there, and vouch for bytes that are not the block's.
        self.0.wipe();
    }
}

impl Packed {
    pub(super) fn store(self: &Arc<Self>, key: BlockKey, row: RowLease, done: Done<Stored>) {
        match self.check_store(&key, &row) {
            Err(error) => return done.give(Err(self.about(&key, error))),
            Ok(Some(location)) => return done.give(Ok(Stored { location, bytes: 0 })),
            Ok(None) => {}
        }
        if let Some(slot) = self.pool().take_slot(self.namespace) {
            return self.write(slot, key, row, done);
        }
        let (this, watch) = (Arc::clone(self), row.watch());
        let then = move |slot: Result<SlotTicket>| {
            let (io, this) = (Arc::clone(&this.io), this);
            match slot {
                Ok(slot) => io.spawn_brief(Box::new(move || this.write(slot, key, row, done))),
                Err(error) => done.give(Err(this.about(&key, error))),
            }
        };
        self.pool().wait_for_slot(self.namespace, Waiter { watch, then: Box::new(then) });
    }

    /// Where the block is already, if it is.
    fn check_store(&self, key: &BlockKey, row: &RowLease) -> Result<Option<Location>> {
        if self.config.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the tier was opened read-only"));
        }
        check_source(row, &self.config.format)?;
        if !row.is_open() {
            return Err(Error::new(ErrorKind::Timeout, "the operation's time is over"));
        }
        Ok(self.location(key))
    }

    fn location(&self, key: &BlockKey) -> Option<Location> {
        match self.find(key) {
            Known::Here(location) => Some(location),
            Known::Absent | Known::Unknown => None,
        }
    }

    fn write(self: &Arc<Self>, slot: SlotTicket, key: BlockKey, row: RowLease, done: Done<Stored>) {
        let created = SystemTime::now();
        let (route, direct) = self.route(&row);
        let generation = slot.own.header.generation;
        let sealed = match route {
            Route::Row => self.sealed_row(key, row, created, generation).map(|memory| (memory, None)),
            Route::Scratch => self.sealed_copy(key, row, created, generation).map(|(memory, row)| (memory, Some(row))),
        };
        let (memory, row) = match sealed {
            Ok(sealed) => sealed,
            Err(error) => return done.give(Err(self.about(&key, error))),
        };
        let transfer = Transfer {
            file: Arc::clone(&slot.own.file.data),
            offset: slot.offset(),
            direction: Direction::Write,
            memory,
        };
        let write = Write { key, slot, created, row, done };
        let this = Arc::clone(self);
        let finish = move |ended| this.finish(write, ended);
        // Flushing blocks.
        let is_brief = self.config.durability == Durability::None;
        self.submit(direct, transfer, if is_brief { Completion::brief(finish) } else { Completion::new(finish) });
    }

    /// Everything after the transfer.
    fn finish(self: &Arc<Self>, write: Write, ended: Transferred) {
        let complete = self.complete(&write, &ended);
        // The row is not read any more; it goes back with the outcome.
        let Write { key, slot, created, done, .. } = write;
        drop(ended);
        match complete {
            Err(error) => {
                let unfit = Unfit(slot);
                self.io.spawn(Box::new(move || drop(unfit)));
                return done.give(Err(self.about(&key, error)));
            }
            // Stored by somebody else meanwhile: theirs stays, and the slot is free again.
            Ok(Some(location)) => return done.give(Ok(Stored { location, bytes: 0 })),
            Ok(None) => {}
        }
        let since_1970 = created.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let entry = Entry {
            state: SlotState::Block,
            name: KeyName::of(&key),
            payload_bytes: self.config.format.payload_bytes() as u32,
            generation: slot.own.header.generation,
            created_unix_ns: since_1970.as_nanos() as u64,
        };
        let (this, own, number) = (Arc::clone(self), Arc::clone(&slot.own), slot.slot);
        let then = move |written: Result<()>| {
            if written.is_err() {
                this.pool().note_failing(own.id());
            }
            let published = written.and_then(|()| this.pool().published(this.namespace, &own.header, number, &key));
            let bytes = this.config.format.payload_bytes() as u64;
            let location = super::catalogue::Spot { segment: own.id(), slot: number }.into();
            done.give(published.map(|()| Stored { location, bytes }).map_err(|e| this.about(&key, e)));
        };
        let durable = self.config.durability == Durability::Full;
        slot.publish(entry, durable, Some(&self.io), Box::new(then));
    }

    /// Whether the block lies complete in its slot, and may be published; where it is if it was stored by somebody else.
    fn complete(&self, write: &Write, ended: &Transferred) -> Result<Option<Location>> {
        if let Err(error) = &ended.result {
            let again = error.raw_os_error().map_or_else(|| error.kind().into(), std::io::Error::from_raw_os_error);
            return Err(Error::from_io("writing the block", again));
        }
        if ended.memory.left_bytes() > 0 {
            let (done, all) = (ended.memory.done_bytes(), ended.memory.total_bytes());
            return Err(Error::new(ErrorKind::Io, format!("only {done} of {all} bytes could be written")));
        }
        if self.config.durability != Durability::None {
            write.slot.own.file.flush().map_err(|e| Error::from_io("flushing the block", e.into()))?;
        }
        // Open still, so the engine had not reused the row when its last byte was read.
        if !write.row.as_ref().or(ended.memory.source_lease()).is_some_and(RowLease::is_open) {
            return Err(Error::new(ErrorKind::Timeout, "the operation was over before the block was complete"));
        }
        Ok(self.location(&write.key))
    }

    /// The row, followed by its tail.
    fn sealed_row(&self, key: BlockKey, row: RowLease, created: SystemTime, generation: u64) -> Result<IoMemory> {
        let format = &self.config.format;
        let access = row.enter()?;
        let mut tail = self.tails.take()?;
        format.seal_in_slot(key, access.segments(), created, generation, &mut tail[..format.tail_bytes()]);
        Ok(IoMemory::source(access.leave()?).followed_by(tail, format.tail_bytes()))
    }

    /// A copy of the row with its tail, and the row.
    fn sealed_copy(
        &self,
        key: BlockKey,
        row: RowLease,
        created: SystemTime,
        generation: u64,
    ) -> Result<(IoMemory, RowLease)> {
        let format = &self.config.format;
        let mut block = self.blocks.take()?;
        let (payload, tail) = block[..format.block_bytes()].split_at_mut(format.payload_bytes());
        let access = row.enter()?;
        access.copy_to(payload)?;
        let row = access.leave()?;
        format.seal_in_slot(key, [&*payload], created, generation, tail);
        Ok((IoMemory::scratch(block, format.block_bytes()), row))
    }
}
