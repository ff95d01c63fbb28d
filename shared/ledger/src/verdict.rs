//! What the two witnesses say together: pure.
//!
//! Every sound state (sled's, each snapshot's) is a base; every sound journal record is a step from one state to the
//! next. The result is what the longest way reaches. Whether there was damage is a question of its own: in an undamaged ledger
//! all files are sound, the journals join without a gap, and sled lies on the newest journal's way.

use std::collections::BTreeMap;

use crate::contents::Contents;
use crate::journal::Scan;
use crate::mark::Said;
use crate::record::{Header, Record};
use crate::store::Found;
use crate::{Damage, Witness};

/// No ledger comes to more: a commit each microsecond takes 290,000 years. A file whose name says more is somebody else's, and must
/// not leave this one without generations to come.
const MOST: u64 = u64::MAX / 2;

/// Where no mark says how far the journal had come, at most so many change sets may be gone: more than a node ever sees.
const UNKNOWN: u64 = 1 << 32;

/// All that was read from a ledger's folder.
#[derive(Debug)]
pub(crate) struct Evidence {
    /// Journals by the generation in their names.
    pub(crate) journals: BTreeMap<u64, Scan>,
    /// Snapshots by the generation in their names; `None`: damaged.
    pub(crate) snapshots: BTreeMap<u64, Option<Contents>>,
    /// How far the newest journal had come at least: the mark beside the store, and the one in it.
    pub(crate) marks: [Said; 2],
    pub(crate) sled: Found,
}

/// The conclusion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) contents: Contents,
    pub(crate) damage: Vec<Damage>,
    /// Journal records that sled had not seen.
    pub(crate) replayed: u64,
    /// The newest journal ended within a record.
    pub(crate) torn: bool,
}

// === impl Evidence ===

impl Evidence {
    pub(crate) fn judge(&self) -> Verdict {
        let mut damage = self.flaws();
        let torn = self.journals.last_key_value().is_some_and(|(_, scan)| scan.torn);
        let steps = self.steps();
        let undamaged = self.newest_state(&steps, &mut damage);
        if let (true, Some(contents)) = (damage.is_empty(), undamaged) {
            let sled = match &self.sled {
                Found::Sound(sled) => sled.generation,
                _ => contents.generation,
            };
            let replayed = contents.generation - sled.min(contents.generation);
            return Verdict { contents, damage, replayed, torn };
        }
        Verdict { contents: self.furthest(&steps, &mut damage), damage, replayed: 0, torn }
    }

    /// Damage that a file shows by itself or beside the journal after it.
    fn flaws(&self) -> Vec<Damage> {
        let mut damage = Vec::new();
        let mut previous_end: Option<Header> = None;
        let newest = self.journals.last_key_value().map(|(generation, _)| *generation);
        for (generation, scan) in &self.journals {
            for (offset, what) in &scan.flaws {
                damage.push(Damage::new(Witness::Journal, format!("{what} at byte {offset} is broken")));
            }
            if scan.header.is_some_and(|h| h.generation != *generation) {
                damage.push(Damage::new(Witness::Journal, "its name and its header disagree".into()));
            }
            if scan.torn && Some(*generation) != newest {
                damage.push(Damage::new(Witness::Journal, format!("journal {generation} is cut short")));
            }
            if let (Some(end), Some(header)) = (previous_end, scan.header)
                && end != header
            {
                let gap = format!(
                    "the journal before ends at generation {}, the next starts from {}",
                    end.generation, header.generation
                );
                damage.push(Damage::new(Witness::Journal, gap));
            }
            if !is_chained(scan) {
                damage.push(Damage::new(
                    Witness::Journal,
                    format!("a record of journal {generation} is missing"),
                ));
            }
            previous_end = scan.end();
        }
        if newest.is_none() {
            damage.push(Damage::new(Witness::Journal, "it is missing".into()));
        }
        for (generation, snapshot) in &self.snapshots {
            if snapshot.as_ref().is_none_or(|s| s.generation != *generation) {
                damage.push(Damage::new(Witness::Snapshot, format!("snapshot {generation} is broken")));
            }
        }
        if let Found::Damaged(why) = &self.sled {
            damage.push(Damage::new(Witness::Sled, why.clone()));
        }
        damage.extend(self.flaws_of_marks());
        damage
    }

    /// A mark that says nothing, or less than what it is written before: sled, and a journal that starts anew.
    fn flaws_of_marks(&self) -> Vec<Damage> {
        let sled = match &self.sled {
            Found::Sound(sled) => sled.generation,
            _ => 0,
        };
        let least = self.journals.keys().copied().max().unwrap_or(0).max(sled);
        // The version before this one did not bring it up when it opened.
        let may_lag = self.marks.contains(&Said::Nothing);
        let flaw = |(place, said): (&str, &Said)| match said {
            Said::Flaw(why) => Some(format!("the one in {place} {why}")),
            Said::End(end) if end.generation < least && !may_lag => {
                Some(format!("the one in {place} is at generation {}, others at {least}", end.generation))
            }
            Said::End(_) | Said::Nothing => None,
        };
        let flaws = ["the lock file", "the store"].into_iter().zip(&self.marks).filter_map(flaw);
        flaws.map(|what| Damage::new(Witness::Mark, what)).collect()
    }

    fn ends(&self) -> impl Iterator<Item = Header> {
        self.marks.iter().filter_map(|said| match said {
            Said::End(end) => Some(*end),
            Said::Nothing | Said::Flaw(_) => None,
        })
    }

    fn marked(&self) -> Option<u64> {
        self.ends().map(|end| end.generation).max()
    }

    fn steps(&self) -> BTreeMap<(u64, u32), &Record> {
        let records = self.journals.values().flat_map(|scan| &scan.records);
        records.map(|r| ((r.generation, r.previous), r)).collect()
    }

    /// The newest snapshot and journal replayed; tells where sled or a snapshot is not on that way.
    fn newest_state(
        &self,
        steps: &BTreeMap<(u64, u32), &Record>,
        damage: &mut Vec<Damage>,
    ) -> Option<Contents> {
        let (start, _) = self.journals.last_key_value()?;
        let Some(Some(base)) = self.snapshots.get(start) else {
            if !self.snapshots.contains_key(start) {
                damage.push(Damage::new(Witness::Snapshot, format!("snapshot {start} is missing")));
            }
            return None;
        };
        let mut sled_seen = !matches!(self.sled, Found::Sound(_));
        let mut newer: Vec<&Contents> =
            self.snapshots.range(start..).filter_map(|(_, s)| s.as_ref()).collect();
        let mut contents = base.clone();
        let mut foreign = false;
        loop {
            newer.retain(|s| **s != contents);
            foreign |= self.ends().any(|end| end.generation == contents.generation && end != contents.end());
            if let Found::Sound(sled) = &self.sled
                && sled.generation == contents.generation
            {
                sled_seen = true;
                if *sled != contents {
                    let why =
                        format!("at generation {} it holds another state than the journal", sled.generation);
                    damage.push(Damage::new(Witness::Sled, why));
                }
            }
            let Some(record) = next(steps, &contents) else { break };
            contents.apply(record);
        }
        if let (false, Found::Sound(sled)) = (sled_seen, &self.sled) {
            damage.push(match sled.generation > contents.generation {
                true => Damage::new(
                    Witness::Journal,
                    format!("it ends at generation {}, sled is at {}", contents.generation, sled.generation),
                ),
                false => Damage::new(
                    Witness::Sled,
                    format!("it is at generation {}, the journal starts from {start}", sled.generation),
                ),
            });
        }
        for snapshot in newer {
            let why = format!("snapshot {} is not a state that the journal passed", snapshot.generation);
            damage.push(Damage::new(Witness::Journal, why));
        }
        if let Some(marked) = self.marked()
            && marked > contents.generation
            && damage.iter().all(|d| d.witness != Witness::Journal)
        {
            let why = format!("it ends at generation {}, it had come to {marked}", contents.generation);
            damage.push(Damage::new(Witness::Journal, why));
        }
        if foreign {
            damage.push(Damage::new(Witness::Mark, "it is that of another journal".into()));
        }
        Some(contents)
    }

    /// The newest state that any sound base and the records after it give.
    fn furthest(&self, steps: &BTreeMap<(u64, u32), &Record>, damage: &mut Vec<Damage>) -> Contents {
        let sled = match &self.sled {
            Found::Sound(contents) => Some(contents),
            _ => None,
        };
        let origin = Contents::default();
        // Of two ways to one generation the last counts: from the newest snapshot by the journal, which decides.
        let bases = [&origin].into_iter().chain(sled).chain(self.snapshots.values().flatten());
        let mut best = bases
            .map(|base| {
                let mut contents = base.clone();
                while let Some(record) = next(steps, &contents) {
                    contents.apply(record);
                }
                contents
            })
            .max_by_key(|contents| contents.generation)
            .unwrap_or_default();
        let seen = self.highest_generation();
        if best.generation < seen {
            let lost = format!("generations {} to {seen} cannot be had back", best.generation + 1);
            damage.push(Damage::new(Witness::Journal, lost));
        }
        // A generation that was told to others must never come to mean something else.
        let unread = self.journals.values().map(|s| s.unread).max().unwrap_or(0);
        let unmarked = if damage.iter().any(|d| d.witness == Witness::Mark) { UNKNOWN } else { 0 };
        let told = seen.saturating_add(unread).saturating_add(unmarked);
        if best.generation < told {
            best.pass(told);
        }
        best
    }

    fn highest_generation(&self) -> u64 {
        let records = self.journals.values().flat_map(|s| &s.records).map(|r| r.generation);
        // Names count too: they outlive the damage of what they name.
        let named = self.journals.keys().chain(self.snapshots.keys()).copied().filter(|named| *named <= MOST);
        records.chain(named).chain(self.marked()).max().unwrap_or(0)
    }
}

fn next<'a>(steps: &BTreeMap<(u64, u32), &'a Record>, contents: &Contents) -> Option<&'a Record> {
    steps.get(&(contents.generation.checked_add(1)?, contents.chain)).copied()
}

/// Whether each record follows the one before, the first one the header.
fn is_chained(scan: &Scan) -> bool {
    let Some(mut at) = scan.header else { return true };
    for record in &scan.records {
        // A gap behind a damaged record is told already.
        if scan.flaws.is_empty()
            && (at.generation.checked_add(1), at.chain) != (Some(record.generation), record.previous)
        {
            return false;
        }
        at = Header { generation: record.generation, chain: record.checksum };
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Change;

    /// States 0 to `n` and the records between them.
    fn history(n: u64) -> (Vec<Contents>, Vec<Record>) {
        let mut states = vec![Contents::default()];
        let mut records = Vec::new();
        for generation in 1..=n {
            let mut state = states.last().unwrap().clone();
            let put = Change::Put(format!("k{}", generation % 3), generation.to_le_bytes().to_vec());
            let (record, _) = Record::encode(generation, state.chain, vec![put]).unwrap();
            state.apply(&record);
            states.push(state);
            records.push(record);
        }
        (states, records)
    }

    fn scan(states: &[Contents], records: &[Record], start: usize, end: usize) -> Scan {
        let header = Header { generation: start as u64, chain: states[start].chain };
        let records = records[start..end].to_vec();
        Scan { header: Some(header), records, sound_len: 0, torn: false, flaws: Vec::new(), unread: 0 }
    }

    /// A ledger cut at 4 and at 8, now at 12, sled at `sled`.
    fn evidence(sled: usize) -> (Vec<Contents>, Evidence) {
        let (states, records) = history(12);
        let evidence = Evidence {
            journals: [(4, scan(&states, &records, 4, 8)), (8, scan(&states, &records, 8, 12))].into(),
            snapshots: [(4, Some(states[4].clone())), (8, Some(states[8].clone()))].into(),
            marks: [Said::End(states[12].end()); 2],
            sled: Found::Sound(states[sled].clone()),
        };
        (states, evidence)
    }

    #[test]
    fn a_sled_that_lags_within_the_journal_is_brought_up_without_damage() {
        for sled in 8..=12 {
            let (states, evidence) = evidence(sled);
            let verdict = evidence.judge();
            assert_eq!(verdict.damage, []);
            assert_eq!((verdict.contents, verdict.replayed), (states[12].clone(), 12 - sled as u64));
        }
    }

    #[test]
    fn a_sled_older_than_the_journals_start_is_damage_and_costs_nothing() {
        for sled in 0..8 {
            let (states, evidence) = evidence(sled);
            let verdict = evidence.judge();
            assert_eq!(verdict.damage.len(), 1, "{sled}");
            assert_eq!(verdict.contents, states[12]);
        }
    }

    #[test]
    fn an_older_journal_is_damage_and_sled_has_the_rest() {
        for end in 8..12 {
            let (states, mut evidence) = evidence(12);
            evidence.journals.get_mut(&8).unwrap().records.truncate(end - 8);
            let verdict = evidence.judge();
            assert_eq!(verdict.damage.len(), 1, "{end}");
            assert_eq!(verdict.contents, states[12]);
        }
    }

    #[test]
    fn a_lost_record_in_the_middle_is_bridged_by_sled() {
        let (states, mut evidence) = evidence(10);
        evidence.journals.get_mut(&8).unwrap().records.remove(1);
        let verdict = evidence.judge();
        assert!(!verdict.damage.is_empty());
        assert_eq!(verdict.contents, states[12]);
    }

    #[test]
    fn a_broken_snapshot_is_bridged_by_the_one_before() {
        let (states, mut evidence) = evidence(12);
        evidence.snapshots.insert(8, None);
        evidence.sled = Found::Damaged("gone".into());
        let verdict = evidence.judge();
        assert_eq!(verdict.damage.len(), 2);
        assert_eq!(verdict.contents, states[12]);
    }

    #[test]
    fn two_sound_states_of_one_generation_that_differ_are_damage() {
        let (states, mut evidence) = evidence(10);
        let Contents { generation, chain, mut entries, .. } = states[10].clone();
        entries.pop_first();
        evidence.sled = Found::Sound(Contents::new(generation, chain, entries));
        let verdict = evidence.judge();
        assert_eq!(verdict.damage.len(), 1);
        assert_eq!(verdict.contents, states[12]);
    }

    #[test]
    fn what_cannot_be_had_back_is_told_and_its_generations_are_not_used_again() {
        let (states, mut evidence) = evidence(9);
        evidence.journals.get_mut(&8).unwrap().records.remove(2);
        let verdict = evidence.judge();
        assert_eq!(verdict.contents.entries, states[10].entries);
        assert_eq!(verdict.contents.generation, 13);
        assert!(verdict.damage.iter().any(|d| d.detail.contains("11 to 12")), "{:?}", verdict.damage);
    }

    #[test]
    fn a_snapshot_beside_the_journals_way_is_damage() {
        let (states, mut evidence) = evidence(8);
        let newest = evidence.journals.get_mut(&8).unwrap();
        newest.records.truncate(2);
        evidence.snapshots.insert(12, Some(states[12].clone()));
        let verdict = evidence.judge();
        assert_eq!(verdict.damage.len(), 1);
        assert_eq!(verdict.contents, states[12]);
    }

    #[test]
    fn a_journal_that_ends_before_its_mark_is_damage_though_sled_lags() {
        let (states, mut evidence) = evidence(8);
        let newest = evidence.journals.get_mut(&8).unwrap();
        newest.records.truncate(2);
        newest.torn = true;
        let verdict = evidence.judge();
        assert!(verdict.damage.iter().any(|d| d.detail.contains("had come to 12")), "{:?}", verdict.damage);
        assert_eq!((verdict.contents.entries, verdict.contents.generation), (states[10].entries.clone(), 13));
    }

    #[test]
    fn a_mark_that_lags_behind_the_journal_alone_says_nothing() {
        for end in 9..=12 {
            for which in 0..2 {
                let (states, mut evidence) = evidence(9);
                evidence.marks[which] = Said::End(states[end].end());
                let verdict = evidence.judge();
                assert_eq!((verdict.contents, verdict.damage), (states[12].clone(), vec![]));
            }
        }
    }

    #[test]
    fn a_mark_that_is_gone_or_behind_sled_or_the_journals_start_is_damage_and_costs_nothing() {
        let old = |generation: usize| Said::End(history(12).0[generation].end());
        for (sled, said) in
            [(12, Said::Flaw("is missing")), (8, Said::Flaw("is broken")), (10, old(9)), (8, old(7))]
        {
            for which in 0..2 {
                let (states, mut evidence) = evidence(sled);
                evidence.marks[which] = said;
                let verdict = evidence.judge();
                assert_eq!(verdict.damage.iter().map(|d| d.witness).collect::<Vec<_>>(), [Witness::Mark]);
                assert_eq!(verdict.contents.entries, states[12].entries);
                // What may have been told and is gone is not known.
                assert!(verdict.contents.generation > 12 + UNKNOWN);
            }
        }
    }

    #[test]
    fn a_mark_of_another_journal_is_damage() {
        for which in 0..2 {
            let (states, mut evidence) = evidence(9);
            evidence.marks[which] = Said::End(Header { generation: 11, chain: 1 });
            let verdict = evidence.judge();
            assert_eq!(verdict.damage.iter().map(|d| d.witness).collect::<Vec<_>>(), [Witness::Mark]);
            assert_eq!(verdict.contents.entries, states[12].entries);
        }
    }

    #[test]
    fn either_mark_tells_that_a_journal_was_shortened_and_both_lost_are_damage() {
        for which in 0..2 {
            let (_, mut evidence) = evidence(8);
            evidence.journals.get_mut(&8).unwrap().records.truncate(3);
            evidence.marks[which] = Said::Flaw("is missing");
            let verdict = evidence.judge();
            assert!(verdict.damage.iter().any(|d| d.detail.contains("12 cannot be had back")), "{verdict:?}");
            evidence.marks = [Said::Flaw("is missing"); 2];
            let verdict = evidence.judge();
            assert_eq!(verdict.damage.len(), 2);
            assert!(verdict.contents.generation > 12);
        }
    }

    #[test]
    fn of_the_version_before_a_mark_may_lag_or_be_absent_and_still_tells_that_a_journal_was_shortened() {
        for within in [Said::Nothing, Said::End(history(12).0[3].end())] {
            let (states, mut evidence) = evidence(12);
            evidence.marks = [Said::Nothing, within];
            let verdict = evidence.judge();
            assert_eq!((verdict.contents, verdict.damage), (states[12].clone(), vec![]));
        }
        let (_, mut evidence) = evidence(8);
        evidence.marks[0] = Said::Nothing;
        evidence.journals.get_mut(&8).unwrap().records.truncate(3);
        assert!(!evidence.judge().damage.is_empty());
    }

    #[test]
    fn a_cut_that_stopped_after_its_snapshot_is_no_damage() {
        let (states, mut evidence) = evidence(12);
        evidence.snapshots.insert(11, Some(states[11].clone()));
        assert_eq!(evidence.judge().damage, []);
    }
}
