//! One number out of many samples, with the age of the oldest and the count of those that are missing.

use std::collections::BTreeSet;

use oxalyst_proto::metrics::v1 as proto;
use proto::{Aggregation, Quality, Sample};

/// Values that cannot be added: one metric is told in two units. Only what is pushed can be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{metric} is told in {one:?} and in {other:?}: values of different units cannot be added")]
pub struct MixedUnits {
    metric: String,
    one: String,
    other: String,
}

/// Sums samples of one metric up. An average is by pod, not by container; of parts of the machine it is by part.
///
/// Values that are missing are left out and counted: a sum without them is a lower bound. Whoever is gone is left out
/// from the pass on that saw it go, though its last value is still shown. What is beyond the range of a double is no value.
///
/// # Errors
/// [`MixedUnits`].
pub fn aggregate<'a>(
    samples: impl IntoIterator<Item = &'a Sample>,
    by: Aggregation,
) -> Result<proto::AggregateReply, MixedUnits> {
    let mut reply = proto::AggregateReply::default();
    let mut counted = BTreeSet::new();
    let mut sum = 0.0;
    for sample in samples.into_iter().filter(|sample| !sample.removed) {
        if reply.unit.is_empty() {
            reply.unit.clone_from(&sample.unit);
        } else if !sample.unit.is_empty() && reply.unit != sample.unit {
            let (one, other) = (reply.unit, sample.unit.clone());
            return Err(MixedUnits { metric: sample.metric.clone(), one, other });
        }
        let Some(value) = sample.value else {
            reply.missing += 1;
            continue;
        };
        sum += value;
        let owner = if sample.pod_uid.is_empty() { &sample.container_id } else { &sample.pod_uid };
        // A pod counts once, whatever of its parts have a value.
        let part = if owner.is_empty() { sample.instance.as_str() } else { "" };
        counted.insert((owner.as_str(), part));
        reply.stale += u64::from(sample.quality() == Quality::Stale);
        reply.oldest_age_ms = reply.oldest_age_ms.max(sample.age_ms);
    }
    reply.counted = counted.len() as u64;
    #[allow(clippy::cast_precision_loss)] // a count of pods
    let pods = counted.len() as f64;
    reply.value = match by {
        _ if counted.is_empty() => None,
        Aggregation::Average => Some(sum / pods),
        Aggregation::Sum | Aggregation::Unspecified => Some(sum),
    }
    .filter(|value| value.is_finite());
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(pod: &str, container: &str, instance: &str, value: Option<f64>, age_ms: u64) -> Sample {
        let quality = if value.is_some() { Quality::Fresh } else { Quality::Missing };
        Sample {
            pod_uid: pod.into(),
            container_id: container.into(),
            instance: instance.into(),
            value,
            age_ms,
            quality: quality.into(),
            ..Sample::default()
        }
    }

    fn both<'a>(samples: impl IntoIterator<Item = &'a Sample> + Clone) -> (Option<f64>, Option<f64>) {
        let of = |by| aggregate(samples.clone(), by).unwrap().value;
        (of(Aggregation::Sum), of(Aggregation::Average))
    }

    #[test]
    fn t3_averages_are_by_pod_and_of_cores_by_core() {
        let one = Some(1.0);
        let pods = [
            sample("pod1", "a", "", one, 10),
            sample("pod1", "b", "", one, 4000),
            sample("pod2", "c", "", one, 20),
        ];
        assert_eq!(both(&pods), (Some(3.0), Some(1.5)));
        assert_eq!(aggregate(&pods, Aggregation::Sum).unwrap().oldest_age_ms, 4000, "as old as the oldest");
        let numa = |n: &str| {
            let values = if n == "0" { [one, one, one] } else { [one, None, one] };
            let [a, b, c] = values;
            [sample("pod1", "a", n, a, 0), sample("pod1", "b", n, b, 0), sample("pod2", "c", n, c, 0)]
        };
        assert_eq!(both(&numa("0")), (Some(3.0), Some(1.5)));
        assert_eq!(both(&numa("1")), (Some(2.0), Some(1.0)));
        assert_eq!(aggregate(&numa("1"), Aggregation::Sum).unwrap().missing, 1);
        let cores: Vec<Sample> = [one, one, Some(2.0), None]
            .into_iter()
            .enumerate()
            .map(|(n, v)| sample("", "", &n.to_string(), v, 0))
            .collect();
        assert_eq!(both(&cores), (Some(4.0), Some(4.0 / 3.0)));
        assert_eq!(aggregate(&cores, Aggregation::Average).unwrap().counted, 3);
    }

    #[test]
    fn m08_whoever_is_gone_is_in_no_sum_and_is_not_missing() {
        let gone = Sample { removed: true, ..sample("pod1", "a", "", Some(7.0), 9000) };
        let forgotten = Sample { removed: true, ..sample("pod3", "d", "", None, 0) };
        let all = [gone, forgotten, sample("pod2", "c", "", Some(1.0), 20)];
        let reply = aggregate(&all, Aggregation::Sum).unwrap();
        assert_eq!((reply.value, reply.counted, reply.missing, reply.oldest_age_ms), (Some(1.0), 1, 0, 20));
    }

    #[test]
    fn m10_nothing_at_all_is_no_number() {
        let reply = aggregate(&[sample("p", "c", "", None, 0)], Aggregation::Average).unwrap();
        assert_eq!((reply.value, reply.missing, reply.counted), (None, 1, 0));
    }

    #[test]
    fn m10_what_no_double_holds_is_no_number() {
        let huge = ["a", "b", "c"].map(|pod| sample(pod, "", "", Some(1.7e308), 0));
        for by in [Aggregation::Sum, Aggregation::Average] {
            let reply = aggregate(&huge, by).unwrap();
            assert_eq!((reply.value, reply.counted), (None, 3));
        }
    }

    #[test]
    fn values_of_different_units_are_not_added() {
        let of = |unit: &str| Sample {
            metric: "gpu/duty".into(),
            unit: unit.into(),
            ..sample(unit, "", "", Some(1.0), 0)
        };
        let refused = aggregate(&[of("cores"), of("bytes")], Aggregation::Sum).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "gpu/duty is told in \"cores\" and in \"bytes\": values of different units cannot be added"
        );
        assert_eq!(aggregate(&[of("cores"), of("cores")], Aggregation::Sum).unwrap().unit, "cores");
    }
}
