//! What the index's tables know a key by.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use crate::layout::BlockKey;

/// A key in 128 bits: tables of these are a third of the size, and a key is hashed once for all of them. The seeds are
/// random, so equal tags of different keys are as likely as guessing a UUID. They would cost a store that is left out, or
/// a load that finds no block: storage knows blocks by their whole keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u64, u64);

impl Hash for Tag {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0);
    }
}

/// Makes the tags of one index.
#[derive(Debug, Default)]
pub(super) struct Tags(RandomState, RandomState);

impl Tags {
    pub(super) fn of(&self, key: &BlockKey) -> Tag {
        Tag(self.0.hash_one(key), self.1.hash_one(key))
    }
}

/// A tag is its own hash.
#[derive(Debug, Default)]
pub(super) struct TagHasher(u64);

impl Hasher for TagHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, half: u64) {
        self.0 = half;
    }

    fn write(&mut self, bytes: &[u8]) {
        debug_assert!(false, "{bytes:?} are no tag");
    }
}

pub(super) type TagState = BuildHasherDefault<TagHasher>;
pub(super) type TagMap<V> = HashMap<Tag, V, TagState>;
pub(super) type TagSet = HashSet<Tag, TagState>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_of_the_whole_key_and_of_its_index() {
        let key = |hash: &[u8], group| BlockKey::from_parts(hash, group).unwrap();
        let (tags, others) = (Tags::default(), Tags::default());
        let of_one = tags.of(&key(&[1; 32], 0));
        assert_eq!(tags.of(&key(&[1; 32], 0)), of_one);
        assert_ne!(tags.of(&key(&[1; 32], 1)), of_one);
        assert_ne!(tags.of(&key(&[1; 31], 0)), of_one);
        assert_ne!(others.of(&key(&[1; 32], 0)), of_one);
        assert_ne!(of_one.0, of_one.1, "each half has a seed of its own");
    }
}
