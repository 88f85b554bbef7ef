//! Blocks that this process keeps when it reclaims their segments, however seldom they are used.
//!
//! A pin is about a key: it holds until it is taken back, its time is over, or the namespace is reset or closed here, also
//! when the block has moved, or was lost and is stored anew. In memory only; other processes don't know of it.

use super::catalogue::{Catalogue, Name, NamespaceId};
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Map, Set};
use crate::layout::BlockKey;

/// The end of a pin that has none, in nanoseconds since 1970.
pub(super) const NEVER: u64 = u64::MAX;

/// A namespace's pins.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// After when each has no effect, in nanoseconds since 1970.
    until: Map<Name, u64>,
    /// No pin ends before.
    next_end: u64,
}

impl Pins {
    pub(super) fn contains(&self, name: Name) -> bool {
        !self.until.is_empty() && self.until.contains_key(&name)
    }

    fn set(&mut self, name: Name, until: u64) {
        self.next_end = if self.until.is_empty() { until } else { self.next_end.min(until) };
        self.until.insert(name, until);
    }

    /// Takes out those whose time is over.
    fn ended(&mut self, now: u64) -> Vec<Name> {
        if self.until.is_empty() || now < self.next_end {
            return Vec::new();
        }
        let ended: Vec<_> = self.until.iter().filter(|(_, until)| **until <= now).map(|(name, _)| *name).collect();
        for name in &ended {
            self.until.remove(name);
        }
        self.next_end = self.until.values().copied().min().unwrap_or(NEVER);
        ended
    }
}

impl Catalogue {
    /// Pins the blocks that are here until a moment, in nanoseconds since 1970; says for each whether it is.
    ///
    /// # Errors
    /// `Capacity` when all pins of this process together would take more than `limit` bytes; nothing is pinned then.
    pub(super) fn pin(
        &mut self,
        namespace: NamespaceId,
        keys: &[BlockKey],
        until: u64,
        now: u64,
        limit: u64,
    ) -> Result<Vec<bool>> {
        self.end_pins(now);
        if until <= now {
            return Ok(vec![false; keys.len()]);
        }
        let named = keys.iter().map(|key| self.name_of(key));
        let found: Vec<_> = named.map(|name| self.find(namespace, name).map(|_| name)).collect();
        let Some(known) = self.namespaces.get(namespace) else { return Ok(vec![false; keys.len()]) };
        let new: Set<_> = found.iter().flatten().filter(|name| !known.pins.contains(**name)).collect();
        let bytes = self.pinned_bytes().saturating_add(new.len() as u64 * known.geometry.slot_bytes);
        if bytes > limit {
            let message = format!(
                "pin: this process would have {bytes} bytes of pinned blocks, and half of the pool is {limit} bytes; nothing \
                 was pinned by this call: unpin others first, or give the pool a larger max_bytes"
            );
            return Err(Error::new(ErrorKind::Capacity, message));
        }
        for name in found.iter().flatten() {
            self.namespaces[namespace].pins.set(*name, until);
            self.mark(namespace, *name, true);
        }
        Ok(found.iter().map(Option::is_some).collect())
    }

    /// Takes pins back; keys without one are left alone.
    pub(super) fn unpin(&mut self, namespace: NamespaceId, keys: &[BlockKey]) {
        for key in keys {
            let name = self.name_of(key);
            let pins = self.namespaces.get_mut(namespace).map(|namespace| &mut namespace.pins);
            if pins.is_some_and(|pins| pins.until.remove(&name).is_some()) {
                self.mark(namespace, name, false);
            }
        }
    }

    /// Takes all pins of a namespace back.
    pub(super) fn unpin_all(&mut self, namespace: NamespaceId) {
        let Some(known) = self.namespaces.get_mut(namespace) else { return };
        let pins = std::mem::take(&mut known.pins);
        for name in pins.until.into_keys() {
            self.mark(namespace, name, false);
        }
    }

    /// Pins whose time is over have no effect from now on.
    pub(super) fn end_pins(&mut self, now: u64) {
        for namespace in 0..self.namespaces.len() {
            for name in self.namespaces[namespace].pins.ended(now) {
                self.mark(namespace, name, false);
            }
        }
    }

    fn pinned_bytes(&self) -> u64 {
        self.namespaces.iter().map(|known| known.pins.until.len() as u64 * known.geometry.slot_bytes).sum()
    }

    /// Notes at each place of a block whether it is pinned.
    fn mark(&mut self, namespace: NamespaceId, name: Name, is_pinned: bool) {
        for spot in self.places_of(namespace, name) {
            if let Some(view) = self.view_mut(spot.segment) {
                if is_pinned {
                    view.pinned.insert(spot.slot);
                } else {
                    view.pinned.remove(&spot.slot);
                }
            }
        }
    }
}
