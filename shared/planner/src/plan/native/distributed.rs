//! Distributed (KEP-2902): equal shares on as few NUMA nodes as can hold the request, so chosen that what stays free is balanced.

use super::packed;
use crate::plan::NotEnoughCpus;
use oxalyst_topology::{CpuSet, Machine};

/// Choices of nodes that are looked at for all sizes together, and those that are weighed of a size. Machines with more than 12 NUMA
/// nodes can have more of them; then the best of the first so many is taken, or if none of these gives equal shares, a packed one.
const CHOICE_LIMIT: usize = 1 << 17;

pub(super) fn take(
    machine: &Machine,
    available: &CpuSet,
    need: usize,
    group: usize,
) -> Result<CpuSet, NotEnoughCpus> {
    let free = available & machine.online();
    if need > free.len() {
        return Err(NotEnoughCpus { need, available: free.len() });
    }
    // What cannot be handed out in groups cannot be shared out equally.
    if need == 0 || !need.is_multiple_of(group) {
        return packed::take(machine, &free, need);
    }
    let spread = Spread::new(machine, &free, need, group);
    let mut looked_at = 0;
    let choice = spread.node_counts().find_map(|count| spread.best(count, &mut looked_at));
    match choice {
        Some(choice) => spread.take(machine, free, &choice),
        None => packed::take(machine, &free, need),
    }
}

/// What is to be shared out, and over what.
struct Spread {
    /// Nodes with free CPUs, where least is free first, and their free CPUs.
    nodes: Vec<(u32, CpuSet)>,
    /// Groups that an average node of the machine has, rounded up.
    groups_a_node: usize,
    need: usize,
    group: usize,
}

/// Places in [`Spread::nodes`].
struct Choice {
    /// Nodes that give an equal share each.
    nodes: Vec<usize>,
    /// Those of them that give the rest, a group each in turn.
    rest: Vec<usize>,
}

// === impl Spread ===

impl Spread {
    fn new(machine: &Machine, free: &CpuSet, need: usize, group: usize) -> Self {
        let nodes = packed::node_order(machine, free)
            .into_iter()
            .filter_map(|id| Some((id, &machine.node(id)?.cpus & free)))
            .collect();
        let with_cpus = machine.nodes().iter().filter(|node| !node.cpus.is_empty()).count();
        let groups_a_node = machine.online().len().div_ceil(group).div_ceil(with_cpus.max(1)).max(1);
        Self { nodes, groups_a_node, need, group }
    }

    /// From as few nodes as could hold the request by capacity to as many as there are, or as it has groups.
    fn node_counts(&self) -> impl Iterator<Item = usize> {
        let groups = self.need.div_ceil(self.group);
        groups.div_ceil(self.groups_a_node)..=groups.min(self.nodes.len())
    }

    /// The share of each of so many nodes, in whole groups.
    fn share(&self, nodes: usize) -> usize {
        self.need / nodes.max(1) / self.group * self.group
    }

    /// The choice of so many nodes that leaves the free CPUs of all nodes most equal; the first one of equals.
    fn best(&self, count: usize, looked_at: &mut usize) -> Option<Choice> {
        let mut best: Option<(u64, Choice)> = None;
        let mut seen = 0;
        // Nodes that cannot give their share are in no choice, and those with least free stand first.
        let gives = self.nodes.iter().position(|(_, cpus)| cpus.len() >= self.share(count))?;
        each_combination(self.nodes.len() - gives, count, &mut |nodes| {
            *looked_at += 1;
            if *looked_at > CHOICE_LIMIT {
                return false;
            }
            let nodes: Vec<usize> = nodes.iter().map(|at| gives + at).collect();
            let nodes = nodes.as_slice();
            let Some(free) = self.after_shares(nodes) else { return true };
            let rest = self.need - self.share(count) * count;
            if rest == 0 {
                seen += 1;
                keep_better(&mut best, deviation(&free), nodes, &[]);
            }
            let givers: Vec<usize> =
                nodes.iter().copied().filter(|at| get(&free, *at) >= self.group).collect();
            each_subset(givers.len(), rest / self.group, &mut |subset| {
                seen += 1;
                let subset: Vec<usize> = subset.iter().filter_map(|at| givers.get(*at)).copied().collect();
                if let Some(free) = self.after_rest(free.clone(), &subset, rest) {
                    keep_better(&mut best, deviation(&free), nodes, &subset);
                }
                seen < CHOICE_LIMIT
            });
            // Nothing beats perfect balance.
            seen < CHOICE_LIMIT && best.as_ref().is_none_or(|(deviation, _)| *deviation > 0)
        });
        best.map(|(_, choice)| choice)
    }

    /// What every node has left once these have given their shares; `None` if they cannot give them and the rest in groups.
    fn after_shares(&self, nodes: &[usize]) -> Option<Vec<usize>> {
        let mut free: Vec<usize> = self.nodes.iter().map(|(_, cpus)| cpus.len()).collect();
        let in_groups: usize = nodes.iter().map(|at| get(&free, *at) / self.group * self.group).sum();
        if in_groups < self.need {
            return None;
        }
        for at in nodes {
            let node = free.get_mut(*at)?;
            *node = node.checked_sub(self.share(nodes.len()))?;
        }
        Some(free)
    }

    /// What every node has left once these have given the rest; `None` if they cannot.
    fn after_rest(&self, mut free: Vec<usize>, subset: &[usize], mut rest: usize) -> Option<Vec<usize>> {
        while rest > 0 {
            let before = rest;
            for at in subset {
                let node = free.get_mut(*at)?;
                if rest > 0 && *node >= self.group {
                    *node -= self.group;
                    rest -= self.group;
                }
            }
            if rest == before {
                return None;
            }
        }
        Some(free)
    }

    fn take(&self, machine: &Machine, mut free: CpuSet, choice: &Choice) -> Result<CpuSet, NotEnoughCpus> {
        let mut taken = CpuSet::new();
        let mut take = |free: &mut CpuSet, at: usize, need: usize| {
            let Some((_, cpus)) = self.nodes.get(at) else { return Ok(0) };
            let cpus = &*free & cpus;
            if cpus.len() < need {
                return Ok(0);
            }
            let cpus = packed::take(machine, &cpus, need)?;
            *free -= &cpus;
            taken |= &cpus;
            Ok(cpus.len())
        };
        let mut rest = self.need;
        for at in &choice.nodes {
            rest -= take(&mut free, *at, self.share(choice.nodes.len()))?;
        }
        while rest > 0 {
            let before = rest;
            for at in &choice.rest {
                if rest > 0 {
                    rest -= take(&mut free, *at, self.group)?;
                }
            }
            if rest == before {
                break;
            }
        }
        // Never the case for a choice of `best`, which has counted them.
        let rest = packed::take(machine, &free, rest)?;
        Ok(taken | &rest)
    }
}

fn keep_better(best: &mut Option<(u64, Choice)>, deviation: u64, nodes: &[usize], rest: &[usize]) {
    if best.as_ref().is_none_or(|(least, _)| deviation < *least) {
        *best = Some((deviation, Choice { nodes: nodes.to_vec(), rest: rest.to_vec() }));
    }
}

/// The standard deviation in thousandths, rounded: finer differences do not count.
fn deviation(values: &[usize]) -> u64 {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<usize>() as f64 / count;
    let squares: f64 = values.iter().map(|value| (*value as f64 - mean).powi(2)).sum();
    ((squares / count).sqrt() * 1000.0).round() as u64
}

fn get(values: &[usize], at: usize) -> usize {
    values.get(at).copied().unwrap_or(0)
}

/// Each choice of `count` of the numbers below `of`, ascending within and among themselves, until `visit` says false.
fn each_combination(of: usize, count: usize, visit: &mut dyn FnMut(&[usize]) -> bool) {
    if count > of {
        return;
    }
    let mut chosen: Vec<usize> = (0..count).collect();
    loop {
        if !visit(&chosen) {
            return;
        }
        // The last number that can still grow, and all after it right behind it.
        let Some(grows) = (0..count).rev().find(|at| get(&chosen, *at) < of - count + at) else { return };
        let from = get(&chosen, grows) + 1;
        for (number, at) in (from..).zip(chosen.iter_mut().skip(grows)) {
            *at = number;
        }
    }
}

/// The ways in which so many groups can come from the numbers below `of`, until `visit` says false: one group from each first, in
/// the order of the last of them, then from ever fewer, several times in turn. The reference tries all of them first and leaves out
/// more and more; those that it leaves out without a difference are not repeated here.
fn each_subset(of: usize, groups: usize, visit: &mut dyn FnMut(&[usize]) -> bool) {
    let Some(before) = groups.checked_sub(1) else { return };
    let mut goes_on = true;
    for last in before..of {
        each_combination(last, before, &mut |others| {
            let subset: Vec<usize> = others.iter().copied().chain([last]).collect();
            goes_on = visit(&subset);
            goes_on
        });
        if !goes_on {
            return;
        }
    }
    for size in (1..groups.min(of + 1)).rev() {
        each_combination(of, size, &mut |subset| {
            goes_on = visit(subset);
            goes_on
        });
        if !goes_on {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of trying every subset, the larger first, of which the first so many give one group each.
    fn by_trying_all(of: usize, groups: usize) -> Vec<Vec<usize>> {
        let mut seen = Vec::new();
        for size in (1..=of).rev() {
            each_combination(of, size, &mut |subset| {
                let gives: Vec<usize> = subset.iter().copied().take(groups).collect();
                if !seen.contains(&gives) {
                    seen.push(gives);
                }
                true
            });
        }
        seen
    }

    #[test]
    fn more_givers_come_first_and_among_them_the_lower_last() {
        for of in 0..7 {
            for groups in 1..7 {
                let mut seen = Vec::new();
                each_subset(of, groups, &mut |subset| {
                    seen.push(subset.to_vec());
                    true
                });
                assert_eq!(seen, by_trying_all(of, groups), "{groups} of {of}");
            }
        }
    }

    #[test]
    fn combinations_ascend() {
        let mut seen = Vec::new();
        each_combination(4, 2, &mut |chosen| {
            seen.push(chosen.to_vec());
            true
        });
        assert_eq!(seen, [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
    }

    #[test]
    fn nothing_of_something_is_one_combination_and_too_many_are_none() {
        let mut count = 0;
        each_combination(3, 0, &mut |_| {
            count += 1;
            true
        });
        each_combination(1, 2, &mut |_| {
            count += 10;
            true
        });
        assert_eq!(count, 1);
    }

    #[test]
    fn deviation_is_in_thousandths() {
        assert_eq!((deviation(&[4, 4, 4]), deviation(&[1, 2]), deviation(&[1, 1, 2])), (0, 500, 471));
    }
}
