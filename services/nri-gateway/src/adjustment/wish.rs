//! What one container is to have.

use std::collections::BTreeMap;

use oxalyst_topology::CpuSet;

use super::{Property, Row, Shape};
use crate::placements::Cpuset;

/// The value of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A list.
    Text(String),
    /// A number; `None`: no limit.
    Number(Option<i64>),
    /// By name.
    Named(BTreeMap<String, String>),
}

/// What one container is to have of each property; what is not named is not touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish(BTreeMap<Property, Value>);

/// Why a part of an allocation cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} = {value:?} of an allocation is not understood: {fault}")]
pub struct Unusable {
    /// As it was named.
    pub name: String,
    /// As it was told.
    pub value: String,
    /// What is wrong.
    pub fault: &'static str,
}

// === impl Wish ===

impl Wish {
    /// Reads an allocation: property names of the table, those with named values as `Property/name`. What cannot be understood
    /// is told and left out; the rest stands.
    pub fn read<'a>(told: impl IntoIterator<Item = (&'a str, &'a str)>) -> (Self, Vec<Unusable>) {
        let (mut wish, mut unusable) = (Self::default(), Vec::new());
        for (name, text) in told {
            if let Err(fault) = wish.take(name, text) {
                unusable.push(Unusable { name: name.to_owned(), value: text.to_owned(), fault });
            }
        }
        (wish, unusable)
    }

    fn take(&mut self, name: &str, text: &str) -> Result<(), &'static str> {
        let (base, key) = match name.split_once('/') {
            Some((base, key)) => (base, Some(key)),
            None => (name, None),
        };
        let row = Row::named(base).ok_or("no such property")?;
        match (row.shape, key) {
            (Shape::List, None) => {
                let set: CpuSet = text.parse().map_err(|_| "not a list such as 0-3,8")?;
                if set.is_empty() {
                    return Err("an empty list would mean \"no change\"");
                }
                self.0.insert(row.property, Value::Text(set.to_string()));
            }
            (Shape::Number { min, max, unlimited }, None) => {
                let number = limit(text)?;
                match number {
                    None if !unlimited => return Err("it must have a limit"),
                    Some(n) if !(min..=max).contains(&n) => return Err("out of its range"),
                    _ => {}
                }
                self.0.insert(row.property, Value::Number(number));
            }
            (Shape::Numbers | Shape::Texts, Some(key)) => {
                if key.is_empty() || (row.property == Property::Hugepages && limit(text)?.is_none()) {
                    return Err("not a name with a number");
                }
                if row.property == Property::Unified && !is_file_of_a_controller(key) {
                    return Err("not a file of a controller");
                }
                let slot = self.0.entry(row.property).or_insert_with(|| Value::Named(BTreeMap::new()));
                if let Value::Named(named) = slot {
                    named.insert(key.to_owned(), text.to_owned());
                }
            }
            (_, Some(_)) => return Err("it has no named values"),
            (_, None) => return Err("it needs a name: Property/name"),
        }
        Ok(())
    }

    /// The CPUs and memory nodes alone. An empty part is no wish.
    pub fn of_cpuset(cpuset: &Cpuset) -> Self {
        let parts = [(Property::CpusetCpus, &cpuset.cpus), (Property::CpusetMems, &cpuset.mems)];
        let told = parts.into_iter().filter(|(_, list)| !list.is_empty());
        Self(told.map(|(property, list)| (property, Value::Text(list.clone()))).collect())
    }

    /// With a property set.
    #[must_use]
    pub fn with(mut self, property: Property, value: Value) -> Self {
        self.0.insert(property, value);
        self
    }

    /// With everything of `other`, which wins.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.0.extend(other.0.iter().map(|(p, v)| (*p, v.clone())));
        self
    }

    /// Only what `keep` keeps.
    #[must_use]
    pub fn only(&self, keep: impl Fn(&'static Row) -> bool) -> Self {
        let kept = self.0.iter().filter(|(p, _)| Row::of(**p).is_some_and(&keep));
        Self(kept.map(|(p, v)| (*p, v.clone())).collect())
    }

    /// Without CPUs and memory nodes.
    #[must_use]
    pub fn without_cpuset(&self) -> Self {
        self.only(|row| !matches!(row.property, Property::CpusetCpus | Property::CpusetMems))
    }

    /// Without the named values that `has` names; a property none of whose values is left is not wished any more.
    #[must_use]
    pub fn without_named(mut self, has: impl Fn(Property, &str, &str) -> bool) -> Self {
        self.0.retain(|property, value| match value {
            Value::Named(named) => {
                named.retain(|name, value| !has(*property, name, value));
                !named.is_empty()
            }
            Value::Text(_) | Value::Number(_) => true,
        });
        self
    }

    /// The named values of a property.
    pub fn named(&self, property: Property) -> impl Iterator<Item = (&str, &str)> {
        let named = match self.0.get(&property) {
            Some(Value::Named(named)) => Some(named),
            _ => None,
        };
        named.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether nothing is wished.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each property with its row.
    pub fn rows(&self) -> impl Iterator<Item = (&'static Row, &Value)> {
        self.0.iter().filter_map(|(property, value)| Some((Row::of(*property)?, value)))
    }

    /// A number; the outer `None`: not wished, the inner: unlimited.
    pub fn number(&self, property: Property) -> Option<Option<i64>> {
        match self.0.get(&property)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }
}

fn limit(text: &str) -> Result<Option<i64>, &'static str> {
    match text.trim() {
        "max" | "-1" => Ok(None),
        text => text.parse().map(Some).map_err(|_| "not a whole number"),
    }
}

/// `cgroup.*` moves processes and freezes them: no resource.
fn is_file_of_a_controller(key: &str) -> bool {
    let of = key.split_once('.').is_some_and(|(controller, _)| controller != "cgroup");
    of && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_is_read_and_what_is_wrong_is_named() {
        let (wish, unusable) = Wish::read([
            ("CpusetCpus", "0,1,2"),
            ("CpuQuota", "max"),
            ("HugepageLimits/2MB", "4194304"),
            ("Env/A", "b"),
            ("CpuShares", "1"),
            ("CpusetMems", ""),
            ("Unified/../../x", "1"),
            ("Unified/cgroup.procs", "1"),
            ("Rubbish", "1"),
            ("Env", "1"),
        ]);
        assert_eq!(wish.rows().count(), 4);
        assert_eq!(wish.number(Property::CpuQuota), Some(None));
        assert!(wish.rows().any(|(r, v)| r.name == "CpusetCpus" && *v == Value::Text("0-2".into())));
        let names: Vec<_> = unusable.iter().map(|u| u.name.as_str()).collect();
        assert_eq!(
            names,
            ["CpuShares", "CpusetMems", "Unified/../../x", "Unified/cgroup.procs", "Rubbish", "Env"]
        );
        assert!(unusable[0].to_string().contains("out of its range"));
    }
}
