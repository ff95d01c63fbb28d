//! Ids by their start: tables show thirteen characters of sixty-four.

use oxalyst_proto::metrics::v1::Sample;

/// Completes what is the start of one id only; what to say of those that several have, a line each. What nobody has stays.
pub(crate) fn complete(ids: &mut [String], there: &[Sample]) -> Vec<String> {
    let mut problems = Vec::new();
    for id in ids {
        let known = there.iter().flat_map(|s| [s.container_id.as_str(), s.pod_uid.as_str()]);
        let mut fitting: Vec<&str> =
            known.filter(|known| !id.is_empty() && known.starts_with(id.as_str())).collect();
        fitting.sort_unstable();
        fitting.dedup();
        match fitting.as_slice() {
            // A whole id may be the start of another.
            [first, ..] if first == id => {}
            [one] => (*one).clone_into(id),
            [] => {}
            several => {
                problems.push(format!("{} ids start with {id}: give more of the one you mean", several.len()))
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_one_id_stands_for_it_and_that_of_several_for_none() {
        let sample = |pod: &str, container: &str| Sample {
            pod_uid: pod.into(),
            container_id: container.into(),
            ..Sample::default()
        };
        let there =
            [sample("uid-1", "abc1"), sample("uid-1", "abc2"), sample("uid-10", "b"), sample("", "bcd")];
        let complete = |given: &str| {
            let mut ids = [given.to_owned()];
            let problems = super::complete(&mut ids, &there);
            let [id] = ids;
            (id, problems.len())
        };
        assert_eq!(complete("abc1"), ("abc1".into(), 0));
        assert_eq!(complete("bc"), ("bcd".into(), 0));
        assert_eq!(complete("b"), ("b".into(), 0), "whole, though another starts so");
        assert_eq!(complete("uid-1"), ("uid-1".into(), 0));
        assert_eq!(complete("ab"), ("ab".into(), 1));
        assert_eq!(complete("zz"), ("zz".into(), 0));
        assert_eq!(complete(""), (String::new(), 0));
    }
}
