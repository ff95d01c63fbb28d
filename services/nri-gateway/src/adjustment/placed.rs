//! From a placement to what one of its containers is to have.

use oxalyst_proto::orm::v1::PodPlacement;

use super::{Property, Unusable, Value, Wish};

/// What a placement asks for one of its containers beside CPUs and memory nodes, and what of it cannot be understood. `idle`
/// marks reclaimed containers as idle to the scheduler of the kernel.
pub fn others(pod: &PodPlacement, container: &str, idle: bool) -> (Wish, Vec<Unusable>) {
    let own = pod.properties.iter().find(|own| own.container == container).map(|own| &own.oci_properties);
    let told = own.or(Some(&pod.oci_properties).filter(|_| pod.properties.is_empty()));
    let told = told.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_str()));
    let (wish, unusable) = Wish::read(told);
    let wish = wish.without_cpuset();
    match idle && pod.qos_level == "reclaimed_cores" {
        true => (wish.with(Property::CpuIdle, Value::Number(Some(1))), unusable),
        false => (wish, unusable),
    }
}

#[cfg(test)]
mod tests {
    use oxalyst_proto::orm::v1::ContainerProperties;

    use super::*;

    #[test]
    fn reclaimed_pods_alone_become_idle_and_the_placements_cpus_are_the_orms() {
        let properties = [("CpusetCpus", "7"), ("PidsLimit", "9"), ("Nonsense", "1")];
        let pod = |level: &str| PodPlacement {
            qos_level: level.into(),
            oci_properties: properties.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            ..PodPlacement::default()
        };
        let (wish, unusable) = others(&pod("reclaimed_cores"), "main", true);
        assert_eq!(wish.number(Property::CpuIdle), Some(Some(1)));
        assert_eq!((wish.rows().count(), unusable.len()), (2, 1));
        assert_eq!(others(&pod("shared_cores"), "main", true).0.number(Property::CpuIdle), None);
        assert_eq!(others(&pod("reclaimed_cores"), "main", false).0.number(Property::CpuIdle), None);
    }

    #[test]
    fn what_is_told_container_by_container_is_that_containers_alone() {
        let pids = |n: &str| [("PidsLimit".to_owned(), n.to_owned())].into();
        let own = |container: &str, n: &str| ContainerProperties {
            container: container.into(),
            oci_properties: pids(n),
        };
        let pod = PodPlacement {
            properties: vec![own("init", "7"), own("app", "9")],
            oci_properties: pids("1"),
            ..PodPlacement::default()
        };
        let limit = |pod: &PodPlacement, name| others(pod, name, false).0.number(Property::Pids);
        assert_eq!([limit(&pod, "init"), limit(&pod, "app")], [Some(Some(7)), Some(Some(9))]);
        assert_eq!(limit(&pod, "beside"), None, "what counts for others does not count for it");
        let older = PodPlacement { properties: Vec::new(), ..pod };
        assert_eq!(limit(&older, "beside"), Some(Some(1)));
    }
}
