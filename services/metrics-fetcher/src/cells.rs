//! What is known of one subject: a cell for each row that its source can tell. What it can never tell is said once for all
//! subjects, for that is half of the rows of a container.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use crate::catalogue::{self, Metric, Scope};
use crate::rank::{tells, tells_kernel};
use crate::sample::{Absent, Cell};
use crate::store::Source;
use crate::trees::Trees;

/// Which rows of a scope are held, and where.
pub struct Layout {
    /// By place in the catalogue.
    places: Box<[Place]>,
    /// The rows that are held, in the catalogue's order.
    rows: Box<[&'static Metric]>,
}

enum Place {
    Held(usize),
    Never(Cell),
}

/// The cells of one subject.
#[derive(Clone, Debug)]
pub struct Cells {
    layout: &'static Layout,
    held: Box<[Cell]>,
}

// === impl Layout ===

impl Layout {
    /// All rows of a scope.
    pub fn full(scope: Scope) -> &'static Self {
        Self::find(scope, None, false)
    }

    /// The rows of a scope that a source tells on a machine of that version.
    pub fn of(scope: Scope, source: Source, unified: bool) -> &'static Self {
        Self::find(scope, Some(source), unified)
    }

    /// The rows of a scope that the kernel tells with such trees: on a hybrid all that either version tells.
    pub fn of_kernel(scope: Scope, trees: Trees) -> &'static Self {
        type All = BTreeMap<Scope, Layout>;
        static HYBRID: LazyLock<All> = LazyLock::new(|| {
            let tells = |metric: &Metric| tells_kernel(metric, None, true);
            Scope::ALL.into_iter().map(|scope| (scope, Layout::made(scope, tells))).collect()
        });
        match (HYBRID.get(&scope), trees) {
            (Some(layout), Trees::Hybrid(_)) => layout,
            _ => Self::of(scope, Source::Kernel, trees.is_unified()),
        }
    }

    /// The rows that are held, in the catalogue's order.
    pub fn rows(&self) -> &[&'static Metric] {
        &self.rows
    }

    fn find(scope: Scope, source: Option<Source>, unified: bool) -> &'static Self {
        type All = BTreeMap<(Scope, Option<Source>, bool), Layout>;
        static ALL: LazyLock<All> = LazyLock::new(|| {
            let layers = Source::LAYERS.into_iter().map(Some);
            let sources = [None, Some(Source::Kernel)].into_iter().chain(layers);
            let versions = sources.flat_map(|source| [(source, false), (source, true)]);
            let of_scope = |scope| {
                versions
                    .clone()
                    .map(move |(s, unified)| ((scope, s, unified), Layout::new(scope, s, unified)))
            };
            Scope::ALL.into_iter().flat_map(of_scope).collect()
        });
        static NONE: LazyLock<Layout> =
            LazyLock::new(|| Layout { places: Box::default(), rows: Box::default() });
        ALL.get(&(scope, source, unified)).unwrap_or(&NONE)
    }

    fn new(scope: Scope, source: Option<Source>, unified: bool) -> Self {
        Self::made(scope, |metric| source.map_or(Ok(()), |source| tells(metric, source, unified)))
    }

    fn made(scope: Scope, tells: impl Fn(&Metric) -> Result<(), &'static str>) -> Self {
        let (mut places, mut rows) = (Vec::new(), Vec::new());
        for metric in catalogue::of(scope) {
            places.push(match tells(metric) {
                Ok(()) => {
                    rows.push(metric);
                    Place::Held(rows.len() - 1)
                }
                Err(why) => Place::Never(Cell::absent(Absent::Never(Arc::new(why.to_owned())))),
            });
        }
        Self { places: places.into(), rows: rows.into() }
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} rows", self.rows.len(), self.places.len())
    }
}

// === impl Cells ===

impl Cells {
    /// Nothing was read yet.
    pub fn unknown(layout: &'static Layout) -> Self {
        Self { layout, held: layout.rows.iter().map(|_| Cell::absent(Absent::NotYet)).collect() }
    }

    /// The cell of a row, by its place in the catalogue; `None` if the scope has no such row.
    pub fn get(&self, place: usize) -> Option<&Cell> {
        match self.layout.places.get(place)? {
            Place::Held(at) => self.held.get(*at),
            Place::Never(cell) => Some(cell),
        }
    }

    /// The same, to change it; `None` also if the source never tells it.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut Cell> {
        match self.layout.places.get(place)? {
            Place::Held(at) => self.held.get_mut(*at),
            Place::Never(_) => None,
        }
    }

    /// All of them, in the catalogue's order.
    pub fn iter(&self) -> impl Iterator<Item = &Cell> {
        (0..self.layout.places.len()).filter_map(|place| self.get(place))
    }

    /// Those that the source can tell, in the order of [`Layout::rows`].
    pub fn held(&self) -> &[Cell] {
        &self.held
    }

    /// The same, to change them.
    pub fn held_mut(&mut self) -> &mut [Cell] {
        &mut self.held
    }

    /// Which are held.
    pub fn layout(&self) -> &'static Layout {
        self.layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_never_told_takes_no_room_and_says_why() {
        for (source, unified) in [(Source::Kernel, false), (Source::Kernel, true), (Source::Kubelet, false)] {
            let mut cells = Cells::unknown(Layout::of(Scope::Container, source, unified));
            assert!(cells.held().len() < catalogue::CONTAINER.len() * 3 / 4);
            for (place, metric) in catalogue::CONTAINER.iter().enumerate() {
                let told = tells(metric, source, unified);
                let never = |why: &str| Absent::Never(Arc::new(why.to_owned()));
                let expected = told.err().map_or(Absent::NotYet, never);
                assert_eq!(cells.get(place).unwrap().absent, Some(expected), "{}", metric.name);
                assert_eq!(cells.get_mut(place).is_some(), told.is_ok());
            }
            assert_eq!(cells.iter().count(), catalogue::CONTAINER.len());
        }
        assert_eq!(Cells::unknown(Layout::full(Scope::Node)).held().len(), catalogue::NODE.len());
    }

    #[test]
    fn what_proc_tells_is_the_same_beside_both_versions() {
        for scope in [Scope::Node, Scope::Numa, Scope::Cpu, Scope::Device, Scope::Network] {
            let names = |unified| {
                Layout::of(scope, Source::Kernel, unified).rows().iter().map(|m| m.name).collect::<Vec<_>>()
            };
            assert_eq!(names(false), names(true));
        }
    }
}
