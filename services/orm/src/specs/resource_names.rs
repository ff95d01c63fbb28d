//! Under which names CPUs, memory and what plugins give out are asked for.

use std::collections::BTreeMap;
use std::fmt;

use oxalyst_units::{Bytes, MilliCpu};

use super::Amounts;

/// The resource of CPUs.
const CPU: &str = "cpu";
/// The resource of memory.
const MEMORY: &str = "memory";
/// How names of resources end that are counted in thousandths of a CPU.
const MILLI: &str = "millicpu";

/// Names of resources, each with the resource that is meant: `cpu`, `memory`, or one that a plugin gives out. What a name stands for
/// stands for nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceNames(BTreeMap<String, String>);

/// What a container asks for of one resource, under the name that it asks by.
#[derive(Clone, Debug, PartialEq)]
pub struct Amount {
    /// The name that the spec has.
    pub name: String,
    /// In units of that name; CPUs in whole ones, memory in bytes.
    pub quantity: f64,
}

/// Something that is no map of names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourceNamesError {
    /// Not of the form `name=name`.
    #[error(
        "orm_resource_names_map has {0:?}: write requested-name=cpu, =memory or =the name of a plugin's resource, separated by commas"
    )]
    NoPair(String),
    /// The name of CPUs or of memory itself.
    #[error(
        "orm_resource_names_map gives {0:?} another meaning: it is what others stand for, write requested-name={0}"
    )]
    Itself(String),
    /// The same name twice.
    #[error("orm_resource_names_map names {0:?} twice")]
    Twice(String),
    /// Names that stand for each other, or one for itself.
    #[error(
        "orm_resource_names_map goes round in a circle: {0}: leave one of these out, and let names stand for cpu, memory or a \
         plugin's resource"
    )]
    Circle(String),
}

/// A container asks for one resource under two names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("asks for {resource} under two names, {first} and {second}: keep one of them")]
pub struct NamedTwice {
    resource: String,
    first: String,
    second: String,
}

// === impl Amount ===

impl Amount {
    /// Whether it is an amount of CPUs by a name that counts thousandths of one.
    pub(crate) fn counts_thousandths(&self) -> bool {
        self.name.ends_with(MILLI)
    }
}

// === impl ResourceNames ===

impl fmt::Display for ResourceNames {
    /// As [`ResourceNames::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<_> = self.0.iter().map(|(name, means)| format!("{name}={means}")).collect();
        f.write_str(&pairs.join(","))
    }
}

impl Default for ResourceNames {
    /// The names by which Katalyst's scheduler gives out reclaimed CPUs and memory.
    fn default() -> Self {
        let names = [("reclaimed_millicpu", CPU), ("reclaimed_memory", MEMORY)];
        Self(
            names
                .map(|(name, means)| (format!("resource.katalyst.kubewharf.io/{name}"), means.to_owned()))
                .into(),
        )
    }
}

impl ResourceNames {
    /// Whether a name stands for this resource.
    pub(crate) fn means(&self, resource: &str) -> bool {
        self.0.values().any(|means| means == resource)
    }

    /// Reads `requested-name=name` pairs, separated by commas; an empty text maps nothing. A name that stands for another one of
    /// them means what that one means.
    ///
    /// # Errors
    /// The first pair that cannot be understood.
    pub fn parse(text: &str) -> Result<Self, ResourceNamesError> {
        let mut names = BTreeMap::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let no_pair = || ResourceNamesError::NoPair(pair.to_owned());
            let (name, to) = pair.split_once('=').ok_or_else(no_pair)?;
            let (name, to) = (name.trim().to_owned(), to.trim());
            if name.is_empty() || to.is_empty() {
                return Err(no_pair());
            }
            if [CPU, MEMORY].contains(&name.as_str()) {
                return Err(ResourceNamesError::Itself(name));
            }
            if names.contains_key(&name) {
                return Err(ResourceNamesError::Twice(name));
            }
            names.insert(name, to.to_owned());
        }
        match circle(&names) {
            Some(names) => Err(ResourceNamesError::Circle(names)),
            None => Ok(Self(names.keys().map(|name| (name.clone(), end(&names, name))).collect())),
        }
    }

    /// CPUs that are asked for, under whatever name. Names that end in `millicpu` count thousandths, others CPUs.
    ///
    /// # Errors
    /// They are asked for under two names.
    pub fn cpu(&self, amounts: &Amounts) -> Result<Option<MilliCpu>, NamedTwice> {
        let plain = amounts.cpu.map(|cpu| (CPU, cpu));
        let milli = |name: &str, n: u64| if name.ends_with(MILLI) { n } else { n.saturating_mul(1000) };
        let mapped = self.mapped(amounts, CPU).map(|(name, n)| (name, MilliCpu(milli(name, n))));
        one(CPU, plain.into_iter().chain(mapped))
    }

    /// Memory that is asked for, under whatever name, in bytes.
    ///
    /// # Errors
    /// It is asked for under two names.
    pub fn memory(&self, amounts: &Amounts) -> Result<Option<Bytes>, NamedTwice> {
        let plain = amounts.memory.map(|bytes| (MEMORY, bytes));
        let mapped = self.mapped(amounts, MEMORY).map(|(name, n)| (name, Bytes(n)));
        one(MEMORY, plain.into_iter().chain(mapped))
    }

    /// All that is asked for, by the resource that is meant. What is zero is not asked for.
    ///
    /// # Errors
    /// One resource is asked for under two names.
    #[allow(clippy::cast_precision_loss, reason = "a plugin is told quantities as floating-point numbers")]
    pub fn all(&self, amounts: &Amounts) -> Result<BTreeMap<String, Amount>, NamedTwice> {
        let cpu = amounts.cpu.map(|cpu| (CPU.to_owned(), cpu.0 as f64 / 1000.0));
        let memory = amounts.memory.map(|bytes| (MEMORY.to_owned(), bytes.0 as f64));
        let extended = amounts.extended.iter().map(|(name, n)| (name.clone(), *n as f64));
        let mut all: BTreeMap<String, Amount> = BTreeMap::new();
        for (name, quantity) in cpu.into_iter().chain(memory).chain(extended) {
            let means = self.0.get(&name).unwrap_or(&name).clone();
            if let Some(first) = all.get(&means) {
                return Err(NamedTwice { resource: means, first: first.name.clone(), second: name });
            }
            all.insert(means, Amount { name, quantity });
        }
        all.retain(|_, amount| amount.quantity > 0.0);
        Ok(all)
    }

    fn mapped<'a>(&self, amounts: &'a Amounts, means: &'static str) -> impl Iterator<Item = (&'a str, u64)> {
        let meant = move |name: &String| self.0.get(name).is_some_and(|to| to == means);
        let names = amounts.extended.iter().filter(move |(name, _)| meant(name));
        names.map(|(name, n)| (name.as_str(), *n))
    }
}

fn one<'a, T>(
    resource: &str,
    mut asked: impl Iterator<Item = (&'a str, T)>,
) -> Result<Option<T>, NamedTwice> {
    match (asked.next(), asked.next()) {
        (Some((first, _)), Some((second, _))) => Err(NamedTwice {
            resource: resource.to_owned(),
            first: first.to_owned(),
            second: second.to_owned(),
        }),
        (first, _) => Ok(first.map(|(_, amount)| amount)),
    }
}

/// What a name means in the end, where there is no circle.
fn end(names: &BTreeMap<String, String>, name: &str) -> String {
    std::iter::successors(names.get(name), |to| names.get(*to))
        .last()
        .map_or_else(|| name.to_owned(), Clone::clone)
}

/// The first circle in which names stand for each other, in words: these mean nothing in the end.
fn circle(names: &BTreeMap<String, String>) -> Option<String> {
    names.keys().find_map(|start| {
        let mut way = vec![start];
        while let Some(next) = names.get(*way.last()?) {
            if next == start {
                let way: Vec<_> = way.into_iter().chain([next]).map(String::as_str).collect();
                return Some(way.join(" stands for "));
            }
            if way.contains(&next) {
                return None;
            }
            way.push(next);
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLICPU: &str = "resource.katalyst.kubewharf.io/reclaimed_millicpu";

    fn asks(extended: &[(&str, u64)]) -> Amounts {
        let extended = extended.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        Amounts { extended, ..Amounts::default() }
    }

    #[test]
    fn o1_two_thousand_reclaimed_millicpu_are_two_cpus() {
        let names = ResourceNames::parse(&format!("{MILLICPU}=cpu")).unwrap();
        assert_eq!(names.cpu(&asks(&[(MILLICPU, 2000)])), Ok(Some(MilliCpu(2000))));
        assert_eq!(ResourceNames::default().cpu(&asks(&[(MILLICPU, 2000)])), Ok(Some(MilliCpu(2000))));
    }

    #[test]
    fn o2_a_resource_under_two_names_is_a_fault_that_names_both() {
        let both = Amounts { cpu: Some(MilliCpu(1000)), ..asks(&[(MILLICPU, 2000)]) };
        let fault = ResourceNames::default().cpu(&both).unwrap_err().to_string();
        assert!(fault.contains("cpu") && fault.contains(MILLICPU), "{fault}");
    }

    #[test]
    fn a_name_that_is_not_mapped_means_nothing_here() {
        let none = ResourceNames::parse("").unwrap();
        let both = Amounts { cpu: Some(MilliCpu(1000)), ..asks(&[(MILLICPU, 2000)]) };
        assert_eq!(none.cpu(&both), Ok(Some(MilliCpu(1000))));
        assert_eq!(none.cpu(&asks(&[(MILLICPU, 2000)])), Ok(None));
    }

    #[test]
    fn a_name_in_whole_cpus_counts_whole_cpus_and_memory_counts_bytes() {
        let names = ResourceNames::parse("vendor.io/core = cpu, vendor.io/mem=memory").unwrap();
        let asked = asks(&[("vendor.io/core", 3), ("vendor.io/mem", 4096)]);
        assert_eq!(names.cpu(&asked), Ok(Some(MilliCpu(3000))));
        assert_eq!(names.memory(&asked), Ok(Some(Bytes(4096))));
    }

    #[test]
    fn o1_a_plugin_is_told_the_quantity_under_the_name_that_was_asked_by() {
        let all = ResourceNames::default().all(&asks(&[(MILLICPU, 2000), ("vendor.io/gpu", 0)])).unwrap();
        assert_eq!(all, [("cpu".to_owned(), Amount { name: MILLICPU.to_owned(), quantity: 2000.0 })].into());
    }

    #[test]
    fn o2_a_resource_of_a_plugin_under_two_names_is_a_fault() {
        let names = ResourceNames::parse("vendor.io/millig=vendor.io/g").unwrap();
        let fault = names.all(&asks(&[("vendor.io/g", 1), ("vendor.io/millig", 5)])).unwrap_err().to_string();
        assert!(fault.contains("vendor.io/g,") || fault.contains("vendor.io/g and"), "{fault}");
    }

    #[test]
    fn names_that_stand_for_each_other_are_refused() {
        for (text, way) in [
            ("a/x=a/x", "a/x stands for a/x"),
            ("a/x=a/y,a/y=a/x", "a/x stands for a/y stands for a/x"),
            ("a/w=a/x,a/x=a/y,a/y=a/z,a/z=a/x", "a/x stands for a/y stands for a/z stands for a/x"),
        ] {
            let fault = ResourceNames::parse(text).unwrap_err();
            assert_eq!(fault, ResourceNamesError::Circle(way.to_owned()), "{text}");
            assert!(fault.to_string().contains("leave one of these out"), "{fault}");
        }
    }

    #[test]
    fn names_in_a_row_mean_what_the_last_of_them_means() {
        let names = ResourceNames::parse("a/x=a/y,a/y=a/millicpu,a/millicpu=cpu,b/x=b/y,b/y=b/z").unwrap();
        assert_eq!(names.cpu(&asks(&[("a/x", 2)])), Ok(Some(MilliCpu(2000))));
        assert_eq!(names.cpu(&asks(&[("a/millicpu", 2)])), Ok(Some(MilliCpu(2))));
        let all = names.all(&asks(&[("a/y", 1), ("b/x", 3)])).unwrap();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["b/z", "cpu"]);
        assert!(names.means("b/z") && !names.means("b/y"));
        names.cpu(&asks(&[("a/x", 1), ("a/y", 1)])).unwrap_err();
    }

    #[test]
    fn what_is_written_is_read_back() {
        let names = ResourceNames::default();
        assert_eq!(ResourceNames::parse(&names.to_string()), Ok(names));
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for (text, named) in [
            ("cpu", "\"cpu\""),
            ("=cpu", "\"=cpu\""),
            ("a=", "\"a=\""),
            ("a=cpu,a=cpu", "twice"),
            ("cpu=memory", "\"cpu\""),
        ] {
            let error = ResourceNames::parse(text).unwrap_err().to_string();
            assert!(error.contains(named) && error.starts_with("orm_resource_names_map"), "{error}");
        }
    }
}
