//! Those who watch: how many there may be, what each has seen, and how what is new is cut into messages.
//!
//! A transport takes the whole of a message at once, however slow its reader is. So a message is made only when the transport
//! asks for one, holds a bounded number of samples, and is cut from a list that all watchers of the same question share.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use oxalyst_proto::metrics::v1 as proto;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Samples of one message at most: about 300 KiB.
pub const MOST_SAMPLES: usize = 1024;

/// Answers that are held to be shared, at most: who asks what nobody else asks shares with nobody.
const MOST_SHARED: usize = 4;

/// All watchers of a process. Clones share them.
#[derive(Clone, Debug)]
pub struct Watchers {
    room: Arc<Semaphore>,
    most: usize,
    shared: Arc<Mutex<Vec<Shared>>>,
}

/// An answer that several watchers cut their messages from; it lives for as long as it is the newest.
#[derive(Debug)]
struct Shared {
    request: proto::QueryRequest,
    publication: u64,
    answer: Arc<proto::QueryReply>,
}

/// There are as many watchers as there may be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {0} watchers, and no more may be: end one, ask with Query, or raise max_watchers")]
pub struct Full(pub usize);

/// One watcher.
#[derive(Debug)]
pub struct Watcher {
    told: Told,
    /// What it is amid, and how far. It holds no list: who does not read must not keep an old one.
    amid: Option<(u64, Weak<proto::QueryReply>)>,
    place: usize,
    left: usize,
    _room: OwnedSemaphorePermit,
}

/// What was delivered to one watcher: of each sample, by the hash of who it is, its time, quality and whether it
/// is gone, and the round it was seen in.
#[derive(Debug, Default)]
struct Told {
    seen: HashMap<u64, (State, u64)>,
    hasher: RandomState,
    round: u64,
}

/// What makes a sample another one: when it was true, its quality, and whether its subject is gone.
type State = (i64, i32, bool);

// === impl Watchers ===

impl Watchers {
    /// Room for `most`.
    pub fn new(most: usize) -> Self {
        Self { room: Arc::new(Semaphore::new(most)), most, shared: Arc::default() }
    }

    /// One more; it leaves when it is dropped.
    ///
    /// # Errors
    /// [`Full`].
    pub fn join(&self) -> Result<Watcher, Full> {
        let room = Arc::clone(&self.room).try_acquire_owned().map_err(|_| Full(self.most))?;
        Ok(Watcher { told: Told::default(), amid: None, place: 0, left: 0, _room: room })
    }

    /// The answer to `request` as of a `publication`: made once for all who ask the same.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn answer<E>(
        &self,
        request: &proto::QueryRequest,
        publication: u64,
        make: impl FnOnce() -> Result<proto::QueryReply, E>,
    ) -> Result<Arc<proto::QueryReply>, E> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        // Of older publications nobody asks any more.
        shared.retain(|s| s.publication == publication);
        if let Some(found) = shared.iter().find(|s| s.request == *request) {
            return Ok(Arc::clone(&found.answer));
        }
        let answer = Arc::new(make()?);
        if shared.len() >= MOST_SHARED {
            shared.remove(0);
        }
        shared.push(Shared { request: request.clone(), publication, answer: Arc::clone(&answer) });
        Ok(answer)
    }
}

// === impl Watcher ===

impl Watcher {
    /// The publication that it is amid, if that is still the newest of its question.
    pub fn amid(&self) -> Option<(u64, Arc<proto::QueryReply>)> {
        let (publication, answer) = self.amid.as_ref()?;
        Some((*publication, answer.upgrade()?)).filter(|_| self.left > 0)
    }

    /// The next message out of `answer`, which is that of a `publication`; `None` once nothing is left that it has not
    /// seen. A reader who is slower than publications goes on where he was, in the newest.
    pub fn next(&mut self, publication: u64, answer: &Arc<proto::QueryReply>) -> Option<proto::QueryReply> {
        let samples = &answer.samples;
        if self.amid.as_ref().is_none_or(|(before, _)| *before != publication) {
            self.amid = Some((publication, Arc::downgrade(answer)));
            if self.left == 0 {
                self.place = 0;
            }
            self.left = samples.len();
            self.told.round += 1;
        }
        let mut news = Vec::new();
        while self.left > 0 && news.len() < MOST_SAMPLES {
            if self.place >= samples.len() {
                self.place = 0;
            }
            news.extend(samples.get(self.place).filter(|sample| self.told.is_new(sample)).cloned());
            (self.place, self.left) = (self.place + 1, self.left - 1);
        }
        if self.left == 0 {
            self.told.forget();
        }
        (!news.is_empty()).then_some(proto::QueryReply { samples: news, now_unix_ms: answer.now_unix_ms })
    }
}

// === impl Told ===

impl Told {
    fn is_new(&mut self, s: &proto::Sample) -> bool {
        let key = self.hasher.hash_one((&s.metric, &s.container_id, &s.pod_uid, &s.cgroup, &s.instance));
        let state = (s.time_unix_ns, s.quality, s.removed);
        let before = self.seen.insert(key, (state, self.round));
        before.is_none_or(|(before, _)| before != state)
    }

    /// Whoever was in none of the lists since the last whole one is gone.
    fn forget(&mut self) {
        let round = self.round;
        self.seen.retain(|_, (_, seen)| *seen == round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(metric: &str, value: f64, time: i64) -> proto::Sample {
        proto::Sample {
            metric: metric.to_owned(),
            value: Some(value),
            time_unix_ns: time,
            ..proto::Sample::default()
        }
    }

    fn answer(samples: Vec<proto::Sample>) -> Arc<proto::QueryReply> {
        Arc::new(proto::QueryReply { samples, now_unix_ms: 1 })
    }

    #[test]
    fn t2_a_watcher_gets_what_changed_and_nothing_else() {
        let scopes = ["node", "numa", "cpu", "device", "container", "container-numa"];
        let values = [34.0, 56.0, 78.0, 91.0, 91.0, 75.0];
        let all = || scopes.iter().zip(values).map(|(s, v)| sample(s, v, 1)).collect::<Vec<_>>();
        let mut watcher = Watchers::new(1).join().unwrap();
        let mut news = |publication, samples| -> Vec<f64> {
            let reply = watcher.next(publication, &answer(samples));
            reply.map(|r| r.samples).unwrap_or_default().iter().map(|s| s.value.unwrap()).collect()
        };
        assert_eq!(news(1, all()), values);
        let mut changed = all();
        (changed[0], changed[3]) = (sample("node", 12.0, 2), sample("device", 22.0, 2));
        assert_eq!(news(2, changed.clone()), [12.0, 22.0], "six and two are eight");
        assert!(news(3, changed).is_empty());
    }

    #[test]
    fn that_the_subject_of_a_stale_value_is_gone_is_news() {
        let mut watcher = Watchers::new(1).join().unwrap();
        let stale = proto::Sample { quality: proto::Quality::Stale.into(), ..sample("a", 1.0, 1) };
        assert!(watcher.next(1, &answer(vec![stale.clone()])).is_some());
        let gone = proto::Sample { removed: true, ..stale };
        let told = watcher.next(2, &answer(vec![gone.clone()])).unwrap();
        assert!(told.samples[0].removed);
        assert!(watcher.next(3, &answer(vec![gone])).is_none());
    }

    #[test]
    fn messages_are_bounded_and_a_slow_reader_gets_all_of_them_in_turn() {
        let count = MOST_SAMPLES * 3;
        let list = |time| answer((0..count).map(|n| sample(&n.to_string(), 1.0, time)).collect());
        let mut watcher = Watchers::new(1).join().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        // Each time that he asks there is a newer list.
        for publication in 1..=3u32 {
            let list = list(publication.into());
            let reply = watcher.next(publication.into(), &list).unwrap();
            assert_eq!(reply.samples.len(), MOST_SAMPLES);
            assert!(reply.samples.iter().all(|s| s.time_unix_ns == i64::from(publication)), "the newest");
            seen.extend(reply.samples.into_iter().map(|s| s.metric));
            assert_eq!(Arc::strong_count(&list), 1, "who does not ask keeps nothing");
        }
        assert_eq!(seen.len(), count);
    }

    #[test]
    fn watchers_of_one_question_share_its_answer_and_there_is_a_cap() {
        let watchers = Watchers::new(2);
        let made = std::cell::Cell::new(0);
        let ask = |publication| {
            let make = || {
                made.set(made.get() + 1);
                Ok::<_, ()>(proto::QueryReply::default())
            };
            watchers.answer(&proto::QueryRequest::default(), publication, make).unwrap()
        };
        let first = Arc::downgrade(&ask(1));
        ask(1);
        assert_eq!((made.get(), first.strong_count()), (1, 1));
        ask(2);
        assert_eq!((made.get(), first.strong_count()), (2, 0));
        let (one, _two) = (watchers.join().unwrap(), watchers.join().unwrap());
        assert_eq!(watchers.join().unwrap_err(), Full(2));
        drop(one);
        assert!(watchers.join().is_ok());
    }
}
