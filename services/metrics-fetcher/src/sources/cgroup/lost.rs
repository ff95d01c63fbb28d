//! Threads that hang in a read, and what is known of the files of the subjects that cost them.
//!
//! A subject may cost two threads, all together four. Past either nothing more is tried of what is not known to answer, so that
//! the rest is read on. A file is known to answer once it was read after the last hang of its subject.

use std::sync::Arc;
use std::time::Duration;

use super::descriptors::{LONGEST_WAIT, Slot};
use super::errand::{Errand, Progress, Whom};
use crate::trees::Trees;

/// So many threads may hang at once; a pass that loses one more waits with it.
pub(super) const MOST_LOST: usize = 4;
/// So many of them in one subject.
const MOST_OF_ONE: usize = 2;

/// The threads, and what the present errand took with it.
#[derive(Debug, Default)]
pub(super) struct Lost {
    threads: Vec<Arc<Progress>>,
    /// Of the present errand, by place: what would be forgotten with its slots.
    carried: Vec<Option<Slot>>,
    wary: bool,
}

// === impl Lost ===

impl Lost {
    /// Another thread hangs.
    pub(super) fn add(&mut self, thread: &Arc<Progress>) {
        self.threads.push(Arc::clone(thread));
    }

    /// Before an errand begins. `new`: no file of the subject was read yet.
    pub(super) fn before(&mut self, errand: &mut Errand, new: bool) {
        self.threads.retain(|thread| !thread.has_come_back());
        let all = self.threads.len() >= MOST_LOST;
        if all && new {
            errand
                .slots
                .iter_mut()
                .filter(|slot| matches!(slot, Slot::Closed))
                .for_each(|s| *s = Slot::Untried);
        }
        let hangs = |slot: &&Slot| matches!(slot, Slot::Hung { thread, .. } if !thread.has_come_back());
        self.wary = all || errand.slots.iter().filter(hangs).count() >= MOST_OF_ONE;
        errand.wary = self.wary;
        self.carried.clear();
        self.carried.extend(errand.slots.iter().map(Slot::mark));
    }

    /// The slots of the present errand once its `thread` is given up, and what is said of the file that hangs.
    pub(super) fn slots(
        &mut self,
        whom: Whom,
        trees: Trees,
        (thread, after): (&Arc<Progress>, Duration),
        pass: u64,
    ) -> (Vec<Slot>, Arc<str>) {
        let hung = thread.file();
        let name = whom.files().get(hung).and_then(|file| whom.name_of(*file, trees)).unwrap_or_default();
        let why: Arc<str> =
            format!("{name}: a read took longer than {} ms and was given up", after.as_millis()).into();
        let carried = std::mem::take(&mut self.carried).into_iter().chain(std::iter::repeat_with(|| None));
        let slots = carried.take(whom.files().len()).enumerate().map(|(place, mark)| match mark {
            _ if place == hung => {
                Slot::Hung { why: Arc::clone(&why), thread: Arc::clone(thread), again: pass + LONGEST_WAIT }
            }
            Some(mark @ Slot::Hung { .. }) => mark,
            Some(mark) if self.wary || place > hung => mark,
            None if place > hung => Slot::Untried,
            // It was read a moment ago.
            _ => Slot::Closed,
        });
        (slots.collect(), why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errand(slots: Vec<Slot>) -> Errand {
        Errand::new(Whom::Container(0), Arc::default(), None, slots)
    }

    fn closed() -> Vec<Slot> {
        Whom::Container(0).files().iter().map(|_| Slot::Closed).collect()
    }

    fn hung(slots: &[Slot]) -> Vec<usize> {
        (0..slots.len()).filter(|place| matches!(slots[*place], Slot::Hung { .. })).collect()
    }

    #[test]
    fn m15_marks_of_one_subject_stay_and_after_the_second_nothing_unknown_is_tried() {
        let mut lost = Lost::default();
        let mut slots = closed();
        let mut threads = Vec::new();
        for (place, wary) in [(3, false), (5, true)] {
            let mut present = errand(slots);
            lost.before(&mut present, false);
            assert!(!present.wary);
            let thread = Arc::new(Progress::default());
            thread.begin(place);
            lost.add(&thread);
            slots = lost.slots(present.whom, Trees::V2, (&thread, Duration::from_secs(1)), 7).0;
            threads.push(thread);
            let mut next = errand(slots);
            lost.before(&mut next, false);
            assert_eq!(next.wary, wary);
            slots = next.slots;
        }
        assert_eq!(hung(&slots), [3, 5], "each file has its mark");
        assert!(matches!((&slots[4], &slots[6]), (Slot::Closed, Slot::Untried)));
        // One comes back: what was not tried may be tried again.
        threads[0].come_back();
        let mut next = errand(slots);
        lost.before(&mut next, false);
        assert!(!next.wary);
    }

    #[test]
    fn m15_with_four_threads_lost_who_is_new_is_not_tried_and_who_was_read_is() {
        let mut lost = Lost::default();
        let threads: Vec<_> = (0..MOST_LOST).map(|_| Arc::new(Progress::default())).collect();
        threads.iter().for_each(|thread| lost.add(thread));
        let (mut new, mut known) = (errand(closed()), errand(closed()));
        lost.before(&mut new, true);
        lost.before(&mut known, false);
        assert!(new.wary && new.slots.iter().all(|slot| slot.untried("a").is_some()));
        assert!(known.wary && known.slots.iter().all(|slot| slot.untried("a").is_none()));
        threads[2].come_back();
        lost.before(&mut new, false);
        assert!(!new.wary);
    }
}
