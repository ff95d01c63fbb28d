//! What a container was created with, of what nothing can give it afterwards.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use oxalyst_nri::api;

use crate::adjustment::{Property, Wish};

/// A container's environment and annotations at its creation, as digests: nobody reads them here, and they may be secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Born(BTreeSet<u64>);

// === impl Born ===

impl Born {
    /// As the runtime tells it: before the plugins' adjustments while it is being created, with them afterwards.
    pub fn of(container: &api::Container) -> Self {
        let env = container.env.iter().filter_map(|entry| entry.split_once('='));
        let env = env.map(|(name, value)| digest(Property::Env, name, value));
        let annotations = container.annotations.iter();
        let annotations = annotations.map(|(name, value)| digest(Property::Annotations, name, value));
        Self(env.chain(annotations).collect())
    }

    /// With what its creation's answer gave it.
    #[must_use]
    pub fn with(mut self, given: &Wish) -> Self {
        for property in [Property::Env, Property::Annotations] {
            let named = given.named(property);
            self.0.extend(named.map(|(name, value)| digest(property, name, value)));
        }
        self
    }

    /// With what was known of it before.
    #[must_use]
    pub fn and(mut self, before: Self) -> Self {
        self.0.extend(before.0);
        self
    }

    /// What of a wish it was not created with.
    pub fn lacks(&self, wish: Wish) -> Wish {
        if self.0.is_empty() {
            return wish;
        }
        wish.without_named(|property, name, value| self.0.contains(&digest(property, name, value)))
    }
}

fn digest(property: Property, name: &str, value: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (property, name, value).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(told: &[(&str, &str)]) -> Wish {
        Wish::read(told.iter().copied()).0
    }

    #[test]
    fn what_it_was_created_with_is_not_lacking_and_anything_else_is() {
        let container = api::Container {
            env: vec!["A=1=2".into(), "odd".into()],
            annotations: [("x".to_owned(), "y".to_owned())].into(),
            ..Default::default()
        };
        let wished = wish(&[("Env/A", "1=2"), ("Env/B", "3"), ("Annotations/x", "y"), ("PidsLimit", "9")]);
        let born = Born::of(&container);
        assert_eq!(born.lacks(wished.clone()), wish(&[("Env/B", "3"), ("PidsLimit", "9")]));
        assert_eq!(born.lacks(wish(&[("Env/A", "2"), ("Annotations/A", "1=2")])).rows().count(), 2);
        let adjusted = born.with(&wish(&[("Env/B", "3")]));
        assert_eq!(adjusted.lacks(wished), wish(&[("PidsLimit", "9")]));
    }
}
