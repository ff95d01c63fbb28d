//! numeric: every resource keeps a hint of its own; the masks nest, and those of the aligned resources are equal.
//!
//! The specification folds over the product in its order and compares by a relation that is not transitive, so that the order
//! matters. The walk here keeps that order and leaves out only what cannot change the answer: hints without an equal partner in
//! an aligned resource, prefixes that do not nest, and subtrees that hold nothing better than the best so far.

use super::pack::Packed;
use std::borrow::Cow;

/// Hints looked at before the best so far must do. Without it lists of tens of thousands of masks for several resources that
/// are not aligned could keep the walk busy for minutes.
const WALK_LIMIT: usize = 1 << 25;

/// The chosen hint of each resource; `None` where no combination is possible. `aligned` names resources by index, in the order
/// in which they are aligned pairwise.
pub(super) fn best(resources: &[Vec<Packed>], aligned: &[usize]) -> Option<Vec<Packed>> {
    let mut levels: Vec<Level<'_>> = resources.iter().map(|hints| Level::new(hints)).collect();
    for (one, other) in aligned.iter().zip(aligned.iter().skip(1)) {
        join(&mut levels, *one, *other)?;
    }
    for index in aligned {
        levels.get_mut(*index)?.is_aligned = true;
    }
    for level in &mut levels {
        level.index();
    }
    let mut bounds = vec![Bound::default()];
    for level in levels.iter().rev() {
        let bound = bounds.last().copied().unwrap_or_default().before(level)?;
        bounds.push(bound);
    }
    bounds.reverse();
    let mut walk = Walk { levels: &levels, bounds, chosen: Vec::new(), best: None, looked_at: 0 };
    walk.descend(Reached { preferred: 0, widest: 0, aligned_preferred: aligned.is_empty() });
    walk.best.map(|best| best.hints)
}

/// One resource of the walk.
struct Level<'a> {
    hints: Cow<'a, [Packed]>,
    /// Resources before this one that it is aligned with.
    partners: Vec<usize>,
    is_aligned: bool,
    /// Of a resource with partners.
    places: Places,
}

/// Where in a list each mask is: a chain of places a bucket.
#[derive(Default)]
struct Places {
    /// The first place of each of 2^`bits` buckets.
    first: Vec<Option<usize>>,
    bits: u32,
    /// The place after each place.
    next: Vec<Option<usize>>,
}

/// What the resources from some level on can still contribute.
#[derive(Clone, Copy, Default)]
struct Bound {
    /// Preferred hints of resources that are not aligned, at the most.
    preferred: u32,
    /// The widest mask's size, at the least.
    widest: u32,
    /// Whether an aligned resource can still be preferred.
    aligned_preferred: bool,
}

/// What the hints chosen so far amount to.
#[derive(Clone, Copy)]
struct Reached {
    preferred: u32,
    widest: u32,
    aligned_preferred: bool,
}

struct Best {
    hints: Vec<Packed>,
    preferred: u32,
    widest: u32,
}

struct Walk<'a> {
    levels: &'a [Level<'a>],
    /// One a level, and one past the end.
    bounds: Vec<Bound>,
    chosen: Vec<Packed>,
    best: Option<Best>,
    looked_at: usize,
}

/// Leaves each of two aligned resources with the hints that the other can go with, and notes that they are partners. `None`
/// where nothing is left.
fn join(levels: &mut [Level<'_>], one: usize, other: usize) -> Option<()> {
    if one == other {
        return Some(());
    }
    let [a, b] = levels.get_disjoint_mut([one, other]).ok()?;
    (a.hints, b.hints) = (a.going_with(b), b.going_with(a));
    let (first, second) = (one.min(other), one.max(other));
    levels.get_mut(second)?.partners.push(first);
    Some(())
}

/// Whether two aligned resources may have these hints.
fn go_together(a: &Packed, b: &Packed) -> bool {
    match (a.mask, b.mask) {
        (Some(one), Some(other)) => one == other,
        (None, None) => a.preferred == b.preferred,
        (None, Some(_)) => a.preferred,
        (Some(_), None) => b.preferred,
    }
}

/// Whether one of two masks contains the other; equal size without being equal does not.
fn nest(a: &Packed, b: &Packed) -> bool {
    match (a.mask, b.mask) {
        (Some(a), Some(b)) => a & b == a || a & b == b,
        _ => true,
    }
}

fn width(hint: &Packed) -> u32 {
    hint.mask.map_or(0, u64::count_ones)
}

// === impl Level ===

impl<'a> Level<'a> {
    fn new(hints: &'a [Packed]) -> Self {
        Self { hints: hints.into(), partners: Vec::new(), is_aligned: false, places: Places::default() }
    }

    /// The hints that some hint of the other resource goes together with.
    fn going_with(&self, other: &Level<'_>) -> Cow<'a, [Packed]> {
        let places = Places::of(&other.hints);
        let loose: Vec<&Packed> = other.hints.iter().filter(|hint| hint.mask.is_none()).collect();
        let has_mask = loose.len() < other.hints.len();
        let has_partner = |hint: &&Packed| {
            let equal = hint.mask.is_some_and(|mask| {
                places
                    .of_bucket(mask)
                    .filter_map(|at| other.hints.get(at))
                    .any(|hint| hint.mask == Some(mask))
            });
            let any_mask = hint.mask.is_none() && hint.preferred && has_mask;
            equal || any_mask || loose.iter().any(|other| go_together(hint, other))
        };
        self.hints.iter().filter(has_partner).copied().collect()
    }

    fn index(&mut self) {
        if !self.partners.is_empty() {
            self.places = Places::of(&self.hints);
        }
    }

    /// The hints with this mask or with none, in their order.
    fn on(&self, mask: u64) -> Vec<&Packed> {
        let same = self.places.of_bucket(mask);
        let mut places: Vec<usize> = same.chain(self.places.without_mask()).collect();
        places.sort_unstable();
        places.dedup();
        places
            .into_iter()
            .filter_map(|at| self.hints.get(at))
            .filter(|hint| hint.mask.is_none_or(|other| other == mask))
            .collect()
    }
}

// === impl Places ===

impl Places {
    fn of(hints: &[Packed]) -> Self {
        let bits = hints.len().next_power_of_two().trailing_zeros().max(1);
        let mut places = Self { first: vec![None; 1 << bits], bits, next: vec![None; hints.len()] };
        for (at, hint) in hints.iter().enumerate().rev() {
            let bucket = places.bucket(hint.mask);
            let (Some(first), Some(next)) = (places.first.get_mut(bucket), places.next.get_mut(at)) else {
                continue;
            };
            *next = first.replace(at);
        }
        places
    }

    /// Hints without a mask are filed with the empty mask.
    fn bucket(&self, mask: Option<u64>) -> usize {
        // 2⁶⁴ divided by the golden ratio spreads neighbouring masks over the buckets.
        let spread = mask.unwrap_or(0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        spread.checked_shr(u64::BITS - self.bits).unwrap_or(0) as usize
    }

    /// Places that may hold this mask, ascending.
    fn of_bucket(&self, mask: u64) -> impl Iterator<Item = usize> {
        let first = self.first.get(self.bucket(Some(mask))).copied().flatten();
        std::iter::successors(first, |at| self.next.get(*at).copied().flatten())
    }

    /// Places that may hold no mask, ascending.
    fn without_mask(&self) -> impl Iterator<Item = usize> {
        self.of_bucket(0)
    }
}

// === impl Bound ===

impl Bound {
    /// The bound with one more level in front; `None` where that level has no hint.
    fn before(self, level: &Level<'_>) -> Option<Self> {
        let narrowest = level.hints.iter().map(width).min()?;
        let preferred = level.hints.iter().any(|hint| hint.preferred);
        Some(Self {
            preferred: self.preferred + u32::from(preferred && !level.is_aligned),
            widest: self.widest.max(narrowest),
            aligned_preferred: self.aligned_preferred || (preferred && level.is_aligned),
        })
    }
}

// === impl Walk ===

impl Walk<'_> {
    fn descend(&mut self, reached: Reached) {
        let depth = self.chosen.len();
        if self.is_pointless(depth, reached) {
            return;
        }
        let levels = self.levels;
        let Some(level) = levels.get(depth) else {
            let Reached { preferred, widest, .. } = reached;
            self.best = Some(Best { hints: self.chosen.clone(), preferred, widest });
            return;
        };
        // A partner with a mask leaves only hints with the same mask or none.
        let equal = level.partners.iter().filter_map(|at| self.chosen.get(*at)?.mask).next();
        match equal {
            Some(mask) => level.on(mask).into_iter().for_each(|hint| self.choose(level, hint, reached)),
            None => level.hints.iter().for_each(|hint| self.choose(level, hint, reached)),
        }
    }

    fn choose(&mut self, level: &Level<'_>, hint: &Packed, reached: Reached) {
        self.looked_at += 1;
        let partners = level.partners.iter().filter_map(|at| self.chosen.get(*at));
        let fits = || self.chosen.iter().all(|other| nest(hint, other));
        if !fits() || !partners.into_iter().all(|other| go_together(hint, other)) {
            return;
        }
        self.chosen.push(*hint);
        self.descend(Reached {
            preferred: reached.preferred + u32::from(hint.preferred && !level.is_aligned),
            widest: reached.widest.max(width(hint)),
            aligned_preferred: reached.aligned_preferred || (hint.preferred && level.is_aligned),
        });
        self.chosen.pop();
    }

    /// Whether nothing that starts with what is chosen can be valid and replace the best so far.
    fn is_pointless(&self, depth: usize, reached: Reached) -> bool {
        let bound = self.bounds.get(depth).copied().unwrap_or_default();
        let invalid = !reached.aligned_preferred && !bound.aligned_preferred;
        let better = |best: &Best| {
            reached.preferred + bound.preferred > best.preferred
                || reached.widest.max(bound.widest) < best.widest
        };
        invalid || self.looked_at > WALK_LIMIT || self.best.as_ref().is_some_and(|best| !better(best))
    }
}
