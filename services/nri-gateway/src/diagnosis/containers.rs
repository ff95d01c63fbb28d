//! What of the containers is not as it was decided: pure.

use std::collections::BTreeMap;

use oxalyst_proto::gateway::v1::Finding;

use super::findings::finding;
use crate::roster::Trouble;

/// Marks that an operator is told of, each with what can be done, the gravest first. One that is being created is as it should be.
const MARKS: [(&str, &str); 6] = [
    ("unpinned", "see whether the orm is ready: nobody has said where they run"),
    (
        "contended",
        "find who else writes cpusets (a kubelet with a CPU manager, systemd, a script) and turn it off",
    ),
    ("drift", "find who else writes cpusets, of the container or of a cgroup above it"),
    ("not-adjusted", "see the reasons; it is tried again at each comparison"),
    (
        "resize-refused",
        "resize it to what the node has, or create it anew: it has its new limits on the CPUs that it had before",
    ),
    ("answered-by-policy", "see whether the orm is ready: they started without it"),
];

/// Containers of one mark that are named.
const NAMED: usize = 4;

/// What is told of the containers; `None`: nobody could be asked.
pub(super) fn containers(told: Option<&[Trouble]>) -> Finding {
    let check = "containers";
    let Some(told) = told else {
        return finding(check, "unknown", "what runs could not be asked for", "ask again");
    };
    let mut by_mark: BTreeMap<usize, Vec<&Trouble>> = BTreeMap::new();
    for trouble in told {
        let place = |mark: &String| MARKS.iter().position(|(name, _)| name == mark);
        for place in trouble.marks.iter().filter_map(place) {
            by_mark.entry(place).or_default().push(trouble);
        }
    }
    let Some((gravest, _)) = by_mark.first_key_value() else {
        return finding(check, "ok", format!("{} containers, all as decided", told.len()), "");
    };
    let remedy = MARKS.get(*gravest).map(|(_, remedy)| *remedy).unwrap_or_default();
    let parts = by_mark.iter().filter_map(|(place, of)| Some(part(MARKS.get(*place)?.0, of)));
    finding(check, "warning", parts.collect::<Vec<_>>().join("; "), remedy)
}

fn part(mark: &str, of: &[&Trouble]) -> String {
    let named = of.iter().take(NAMED).map(|trouble| match trouble.reports.as_slice() {
        reports if mark == "not-adjusted" && !reports.is_empty() => {
            format!("{} ({})", trouble.container, reports.join("; "))
        }
        _ if mark == "resize-refused" && !trouble.resize.is_empty() => {
            format!("{} ({})", trouble.container, trouble.resize)
        }
        _ => trouble.container.clone(),
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let more = if of.len() > NAMED { ", …" } else { "" };
    format!("{} {mark}: {named}{more}", of.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(name: &str, marks: &[&str], reports: &[&str]) -> Trouble {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        let (marks, reports) = (owned(marks), owned(reports));
        Trouble {
            container: format!("shop/web/{name}"),
            marks,
            reports,
            resize: "insufficient: 2 left".into(),
        }
    }

    #[test]
    fn marked_containers_are_named_with_the_reasons_and_the_gravest_has_the_word() {
        let told = [
            trouble("a", &[], &[]),
            trouble("b", &["drift", "contended"], &[]),
            trouble("c", &["not-adjusted"], &["controller cpuset is not available"]),
            trouble("d", &["being-created"], &[]),
        ];
        let found = containers(Some(&told));
        assert_eq!(found.verdict, "warning");
        assert_eq!(
            found.detail,
            "1 contended: shop/web/b; 1 drift: shop/web/b; \
             1 not-adjusted: shop/web/c (controller cpuset is not available)"
        );
        assert!(found.remedy.contains("who else writes cpusets"), "{found:?}");
    }

    #[test]
    fn a_resize_that_was_refused_afterwards_is_told_with_the_reason() {
        let found = containers(Some(&[trouble("a", &["resize-refused"], &[])]));
        assert_eq!(found.detail, "1 resize-refused: shop/web/a (insufficient: 2 left)");
        assert!(found.verdict == "warning" && found.remedy.contains("resize it"), "{found:?}");
    }

    #[test]
    fn unmarked_ones_are_well_and_what_nobody_told_is_unknown() {
        let found = containers(Some(&[trouble("a", &["being-created"], &[])]));
        assert_eq!((found.verdict.as_str(), found.detail.as_str()), ("ok", "1 containers, all as decided"));
        assert_eq!(containers(None).verdict, "unknown");
    }

    #[test]
    fn many_of_one_mark_are_counted_and_some_of_them_named() {
        let told: Vec<_> = (0..9).map(|n| trouble(&n.to_string(), &["drift"], &[])).collect();
        let found = containers(Some(&told));
        assert!(found.detail.starts_with("9 drift: ") && found.detail.ends_with(", …"), "{found:?}");
    }
}
