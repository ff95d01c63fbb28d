use super::{ParseError, lines, number};

/// Memory of a cgroup and its descendants on one NUMA node, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumaMemory {
    /// The node.
    pub node: u32,
    /// Anonymous memory.
    pub anon: Option<u64>,
    /// Page cache.
    pub file: Option<u64>,
    /// Memory that cannot be reclaimed.
    pub unevictable: Option<u64>,
}

// === impl NumaMemory ===

impl NumaMemory {
    /// All three.
    pub fn total(&self) -> Option<u64> {
        Some(self.anon?.saturating_add(self.file?).saturating_add(self.unevictable?))
    }
}

/// Parses `memory.numa_stat` into `nodes`, which is cleared first and sorted by node after.
///
/// v1 counts pages: of its two sets of lines the hierarchical one is taken, as v2 has it. v2 counts bytes.
///
/// # Errors
/// [`ParseError`] for a known line with what is no "N0=number".
pub fn numa_stat(
    unified: bool,
    page: u64,
    bytes: &[u8],
    nodes: &mut Vec<NumaMemory>,
) -> Result<(), ParseError> {
    nodes.clear();
    for (line, text) in lines(bytes) {
        let mut words = text.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
        let Some(first) = words.next() else { continue };
        let key = match unified {
            true => first,
            false => {
                let name = first.split(|b| *b == b'=').next().unwrap_or_default();
                let Some(name) = name.strip_prefix(b"hierarchical_") else { continue };
                name
            }
        };
        let field: fn(&mut NumaMemory) -> &mut Option<u64> = match key {
            b"anon" => |n| &mut n.anon,
            b"file" => |n| &mut n.file,
            b"unevictable" => |n| &mut n.unevictable,
            _ => continue,
        };
        let unit = if unified { 1 } else { page };
        for word in words {
            let (node, value) = cell(word).ok_or_else(|| ParseError::new(line, "N0=number …", text))?;
            let place = match nodes.binary_search_by_key(&node, |n| n.node) {
                Ok(place) => place,
                Err(place) => {
                    nodes.insert(place, NumaMemory { node, ..NumaMemory::default() });
                    place
                }
            };
            if let Some(memory) = nodes.get_mut(place) {
                *field(memory) = Some(value.saturating_mul(unit));
            }
        }
    }
    Ok(())
}

/// "N12=345".
fn cell(word: &[u8]) -> Option<(u32, u64)> {
    let equals = word.iter().position(|b| *b == b'=')?;
    let (node, value) = (word.get(1..equals)?, word.get(equals + 1..)?);
    word.starts_with(b"N").then_some(())?;
    Some((u32::try_from(number(node)?).ok()?, number(value)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_tell_the_same_in_bytes() {
        let v1 = b"total=9 N0=9 N1=0\nfile=1 N0=1 N1=0\nanon=2 N0=2 N1=0\nunevictable=0 N0=0 N1=0\n\
            hierarchical_total=7 N0=3 N1=4\nhierarchical_file=3 N0=1 N1=2\nhierarchical_anon=4 N0=2 N1=2\n\
            hierarchical_unevictable=0 N0=0 N1=0\n";
        let v2 =
            b"anon N0=8192 N1=8192\nfile N0=4096 N1=8192\nkernel_stack N0=1 N1=1\nunevictable N0=0 N1=0\n";
        let (mut one, mut two) = (Vec::new(), Vec::new());
        numa_stat(false, 4096, v1, &mut one).unwrap();
        numa_stat(true, 4096, v2, &mut two).unwrap();
        assert_eq!(one, two);
        assert_eq!((one[0].total(), one[1].total()), (Some(12_288), Some(16_384)));
    }

    #[test]
    fn a_broken_node_is_an_error_with_its_line() {
        let mut nodes = Vec::new();
        assert_eq!(numa_stat(true, 1, b"anon N0=1\nfile N0\n", &mut nodes).unwrap_err().line, 2);
        assert!(numa_stat(true, 1, b"anon X0=1\n", &mut nodes).is_err());
    }
}
