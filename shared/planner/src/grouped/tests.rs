use super::*;
use proptest::prelude::*;

impl Alike for u8 {
    fn is_like(&self, other: &Self) -> bool {
        self % 3 == other % 3
    }

    fn amount(&self) -> u64 {
        u64::from(*self)
    }
}

/// What a map of the standard library would say.
fn check(map: &Grouped<u16, u8>, model: &BTreeMap<u16, u8>) {
    assert!(map.iter().map(|(key, value)| (key, &**value)).eq(model.iter()));
    assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
    assert!(map.chunks.iter().all(|chunk| !chunk.entries.is_empty() && chunk.entries.len() <= CHUNK));
    assert!(map.chunks.len() <= 1 + 4 * model.len() / CHUNK, "{} chunks", map.chunks.len());
    for kind in 0..3 {
        let groups = || map.groups().filter(|group| *group.example % 3 == kind);
        let alike: Vec<_> = model.iter().filter(|(_, value)| **value % 3 == kind).collect();
        assert_eq!(groups().map(|group| group.count).sum::<usize>(), alike.len());
        let amount: u128 = alike.iter().map(|(_, value)| u128::from(**value)).sum();
        assert_eq!(groups().map(|group| group.amount).sum::<u128>(), amount);
        assert!(map.of_kind(|value| value % 3 == kind).eq(alike));
    }
}

proptest! {
    #[test]
    fn it_says_what_an_ordinary_map_says_and_its_groups_what_its_values_say(
        steps in prop::collection::vec((0u8..10, 0u16..300, any::<u8>()), 0..600),
    ) {
        let (mut map, mut model) = (Grouped::default(), BTreeMap::new());
        let (mut before, mut model_before) = (map.clone(), model.clone());
        for (what, key, value) in steps {
            match what {
                0..5 => {
                    let was = map.insert(key, Arc::new(value)).map(|was| *was);
                    prop_assert_eq!(was, model.insert(key, value));
                }
                5..8 => prop_assert_eq!(map.remove(&key).map(|was| *was), model.remove(&key)),
                8 => {
                    let grown = |value: &u8| (value % 3 == 1).then(|| value.saturating_add(1));
                    map.update(grown, |value, now| *value = now);
                    model.values_mut().for_each(|value| *value = grown(value).unwrap_or(*value));
                }
                _ => (before, model_before) = (map.clone(), model.clone()),
            }
            prop_assert_eq!(map.get(&key).map(|value| **value), model.get(&key).copied());
        }
        check(&map, &model);
        check(&before, &model_before);
        prop_assert!(map.from(&150).map(|(key, _)| key).eq(model.range(150..).map(|(key, _)| key)));
        prop_assert_eq!(map == before, model == model_before);
        let keys: std::collections::BTreeSet<_> = model.keys().chain(model_before.keys()).collect();
        let differ = keys.into_iter().filter(|key| model.get(key) != model_before.get(key));
        let differ: BTreeMap<_, _> = differ.map(|key| (*key, model.get(key).copied())).collect();
        let changes = map.changes_since(&before);
        let changes: BTreeMap<_, _> = changes.into_iter().map(|(key, now)| (key, now.map(|now| *now))).collect();
        prop_assert_eq!(changes, differ);
    }
}

#[test]
fn a_clone_shares_all_but_what_is_changed() {
    let one: Grouped<u16, u8> = (0..1000).map(|key| (key, Arc::new(0))).collect();
    let mut other = one.clone();
    assert!(one.is_shared_with(&other));
    other.insert(500, Arc::new(1));
    assert!(!one.is_shared_with(&other));
    assert!(pairs(&one, &other).count() <= CHUNK, "what both share is not looked through");
}
