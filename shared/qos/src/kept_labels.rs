//! Labels that are worth more than a look: kept with what a pod was given, and told to who gives it something.

use crate::Attributes;
use std::collections::BTreeSet;

/// Which labels of pods are kept. By default none is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptLabels(BTreeSet<String>);

// === impl KeptLabels ===

impl KeptLabels {
    /// Reads the setting `pod_label_kept_keys`: keys separated by commas.
    pub fn parse(keys: &str) -> Self {
        Self(keys.split(',').map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned).collect())
    }

    /// Those of a pod's labels that are kept with it.
    pub fn of(&self, labels: &Attributes) -> Attributes {
        let kept = self.0.iter().filter_map(|key| labels.get_key_value(key));
        kept.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Those that others are told: the kept ones, or all where no key is named.
    pub fn told(&self, labels: &Attributes) -> Attributes {
        if self.0.is_empty() { labels.clone() } else { self.of(labels) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_labels_are_kept_and_told_and_without_names_none_is_kept_and_all_are_told() {
        let labels: Attributes = [("a", "1"), ("b.io/c", "2"), ("d", "3")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let some: Attributes = labels.clone().into_iter().filter(|(key, _)| key != "a").collect();
        let named = KeptLabels::parse(" b.io/c, d,absent,");
        assert_eq!((named.of(&labels), named.told(&labels)), (some.clone(), some));
        let none = KeptLabels::parse("");
        assert_eq!((none.of(&labels), none.told(&labels)), (Attributes::new(), labels));
    }
}
