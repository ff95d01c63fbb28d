//! What a plugin answered, looked at before anything is made of it. Pure.

use oxalyst_proto::resourceplugin::v1alpha1 as wire;
use oxalyst_topology::NumaMask;

/// The longest name of a resource or a property.
const NAME: usize = 253;
/// The one negative result that means something in the properties of a container: no limit.
const UNLIMITED: &str = "-1";

/// The hints of which every NUMA node is one of `known`.
///
/// # Errors
/// There are hints, and none of them can be followed: what is wrong with the first one.
pub(super) fn usable_hints(
    hints: &[wire::TopologyHint],
    known: &NumaMask,
) -> Result<Vec<wire::TopologyHint>, String> {
    let is_known = |node: &u64| u32::try_from(*node).is_ok_and(|node| known.contains(node));
    let usable = |hint: &&wire::TopologyHint| hint.nodes.iter().all(is_known);
    let kept: Vec<_> = hints.iter().filter(usable).cloned().collect();
    match hints.first().filter(|_| kept.is_empty()) {
        None => Ok(kept),
        Some(first) => Err(format!(
            "its hint names NUMA nodes {:?}, the machine has {known}, and none of its hints can be followed",
            first.nodes
        )),
    }
}

/// Checks what is given where `asked` of `resource` were asked for: an amount of it has to be there, and nothing that could be no
/// amount, name or value.
///
/// # Errors
/// What is wrong, with the value.
pub(super) fn check_given(
    response: &wire::ResourceAllocationResponse,
    resource: &str,
    asked: f64,
) -> Result<(), String> {
    let given = response.allocation_result.as_ref().map(|result| &result.resource_allocation);
    for (name, info) in given.into_iter().flatten() {
        info_is_sound(name, info).map_err(|fault| format!("for {name:?} {fault}"))?;
    }
    match given.and_then(|given| given.get(resource)) {
        _ if asked <= 0.0 => Ok(()),
        None => Err(format!("it gives nothing of {resource}, of which {asked} are asked for")),
        Some(info) if info.allocated_quantity <= 0.0 => {
            Err(format!("it gives an amount of 0 of {resource}, of which {asked} are asked for"))
        }
        Some(_) => Ok(()),
    }
}

fn info_is_sound(resource: &str, info: &wire::ResourceAllocationInfo) -> Result<(), String> {
    let (amount, property, result) =
        (info.allocated_quantity, &info.oci_property_name, &info.allocation_result);
    if resource.is_empty() || resource.len() > NAME || resource.chars().any(char::is_control) {
        return Err("it gives something that has no name of a resource".to_owned());
    }
    if !amount.is_finite() || amount < 0.0 {
        return Err(format!("it gives {amount}, which is no amount"));
    }
    let spelled = |c: char| c.is_ascii_alphanumeric() || ['_', '-', '.'].contains(&c);
    if property.len() > NAME || !property.chars().all(spelled) || property.contains("..") {
        return Err(format!("it names {property:?}, which is no property of a container"));
    }
    if result.chars().any(char::is_control) {
        return Err(format!("it has the result {result:?}, which is more than one line"));
    }
    let is_negative = result.parse::<f64>().is_ok_and(|number| number < 0.0 || !number.is_finite());
    if !property.is_empty() && is_negative && result != UNLIMITED {
        return Err(format!("it sets {property} to {result}, which is no size"));
    }
    let is_variable =
        |name: &&String| name.is_empty() || name.contains('=') || name.contains(char::is_control);
    if let Some(name) = info.envs.keys().find(is_variable) {
        return Err(format!("it sets {name:?}, which is no name of a variable"));
    }
    match info.envs.iter().find(|(_, value)| value.contains('\0')) {
        Some((name, value)) => Err(format!("it sets the variable {name} to {value:?}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(change: impl FnOnce(&mut wire::ResourceAllocationInfo)) -> wire::ResourceAllocationInfo {
        let mut info = wire::ResourceAllocationInfo { allocated_quantity: 1.0, ..Default::default() };
        change(&mut info);
        info
    }

    fn answer(given: &[(&str, wire::ResourceAllocationInfo)]) -> wire::ResourceAllocationResponse {
        let given = given.iter().map(|(name, info)| ((*name).to_owned(), info.clone())).collect();
        wire::ResourceAllocationResponse {
            allocation_result: Some(wire::ResourceAllocation { resource_allocation: given }),
            ..Default::default()
        }
    }

    #[test]
    fn who_is_asked_for_something_has_to_give_an_amount_of_it() {
        let check = |given: &[(&str, wire::ResourceAllocationInfo)]| check_given(&answer(given), "gpu", 1.0);
        assert!(check(&[("gpu", info(|_| ()))]).is_ok());
        assert!(check(&[("cpu", info(|_| ()))]).unwrap_err().contains("nothing of gpu"));
        assert!(check(&[]).unwrap_err().contains("nothing of gpu"));
        assert!(
            check(&[("gpu", info(|info| info.allocated_quantity = 0.0))]).unwrap_err().contains("0 of gpu")
        );
        assert!(check_given(&wire::ResourceAllocationResponse::default(), "gpu", 1.0).is_err());
        assert!(check_given(&answer(&[]), "gpu", 0.0).is_ok(), "nothing is asked for");
    }

    #[test]
    fn what_could_be_no_amount_name_or_value_is_told_with_it() {
        type Change = fn(&mut wire::ResourceAllocationInfo);
        let wrong: [(Change, &str); 10] = [
            (|info| info.allocated_quantity = f64::NEG_INFINITY, "-inf"),
            (|info| info.allocated_quantity = f64::NAN, "NaN"),
            (|info| info.allocated_quantity = -5.0, "-5"),
            (|info| info.oci_property_name = "Unified/../../x".into(), "Unified/../../x"),
            (|info| info.oci_property_name = "A\nB".into(), r"A\nB"),
            (|info| info.allocation_result = "1\n2".into(), r"1\n2"),
            (
                |info| {
                    (info.oci_property_name, info.allocation_result) =
                        ("MemoryLimitInBytes".into(), "-5".into())
                },
                "-5",
            ),
            (
                |info| {
                    (info.oci_property_name, info.allocation_result) =
                        ("MemoryLimitInBytes".into(), "NaN".into())
                },
                "NaN",
            ),
            (|info| drop(info.envs.insert("A=B".into(), String::new())), "A=B"),
            (|info| drop(info.envs.insert("A".into(), "x\0".into())), "variable A"),
        ];
        for (change, told) in wrong {
            let fault = check_given(&answer(&[("gpu", info(change))]), "gpu", 1.0).unwrap_err();
            assert!(fault.contains(told), "{told}: {fault}");
            let company = answer(&[("gpu", info(|_| ())), ("nic", info(change))]);
            assert!(check_given(&company, "gpu", 1.0).is_err(), "what comes along is looked at too: {told}");
        }
        let unlimited: Change = |info| {
            (info.oci_property_name, info.allocation_result) = ("MemoryLimitInBytes".into(), "-1".into())
        };
        assert!(check_given(&answer(&[("gpu", info(unlimited))]), "gpu", 1.0).is_ok());
        assert!(check_given(&answer(&[("\n", info(|_| ())), ("gpu", info(|_| ()))]), "gpu", 1.0).is_err());
    }

    #[test]
    fn hints_elsewhere_than_on_this_machine_are_left_out_and_alone_are_a_fault() {
        let hint = |nodes: &[u64]| wire::TopologyHint { nodes: nodes.to_vec(), preferred: true };
        let known: NumaMask = [0, 1].into_iter().collect();
        let kept = usable_hints(&[hint(&[u64::MAX]), hint(&[0, 70]), hint(&[1]), hint(&[])], &known).unwrap();
        assert_eq!(kept, [hint(&[1]), hint(&[])]);
        assert!(usable_hints(&[hint(&[7]), hint(&[99])], &known).unwrap_err().contains("[7]"));
        assert_eq!(usable_hints(&[], &known), Ok(Vec::new()), "no preference");
    }
}
