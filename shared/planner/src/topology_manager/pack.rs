//! Masks as machine words: the nodes that are named anywhere are numbered in ascending order, whatever gaps their ids have.

use super::nodes::{NODE_LIMIT, TooManyNodes};
use oxalyst_topology::NumaMask;

/// A hint with its mask as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    pub(super) mask: Option<u64>,
    pub(super) preferred: bool,
}

/// Which bit stands for which node. Keeps the order of masks as numbers.
pub(super) struct Numbering {
    ids: Vec<u32>,
    /// The ids are 0, 1, 2, …: a mask's own word is right already.
    plain: bool,
}

// === impl Numbering ===

impl Numbering {
    pub(super) fn new<'a>(masks: impl Iterator<Item = &'a NumaMask>) -> Result<Self, TooManyNodes> {
        let mut named = NumaMask::new();
        for mask in masks {
            named |= mask;
        }
        let ids: Vec<u32> = named.iter().collect();
        if ids.len() > NODE_LIMIT {
            return Err(TooManyNodes { nodes: ids.len() });
        }
        Ok(Self { plain: (0..).zip(&ids).all(|(bit, id)| bit == *id), ids })
    }

    /// Bits in use.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn pack(&self, mask: &NumaMask) -> u64 {
        if self.plain {
            return mask.words().first().copied().unwrap_or(0);
        }
        let bits = self.ids.iter().enumerate().filter(|(_, id)| mask.contains(**id));
        bits.fold(0, |packed, (bit, _)| packed | 1 << bit)
    }

    pub(super) fn unpack(&self, packed: u64) -> NumaMask {
        self.ids.iter().enumerate().filter(|(bit, _)| packed >> bit & 1 == 1).map(|(_, id)| *id).collect()
    }
}
