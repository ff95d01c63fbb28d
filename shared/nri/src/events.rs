//! Which events a plugin asks for.

use crate::api::{ConfigureRequest, Event};

/// Events 1 to 11 (RunPodSandbox … RemoveContainer), known to every runtime that speaks NRI v1alpha1.
///
/// Bit = event number − 1. A runtime refuses the registration on a bit that it does not know.
pub const BASE_EVENTS: i32 = 0x7ff;

/// The bit of one event in the mask.
pub const fn bit(event: Event) -> i32 {
    match event as i32 {
        n @ 1..=31 => 1 << (n - 1),
        _ => 0,
    }
}

/// The base events, and `newer` where the runtime tells its NRI version and so is new enough to know them.
pub fn mask_for(configure: &ConfigureRequest, newer: &[Event]) -> i32 {
    let newer = if configure.nri_version.is_empty() { &[] } else { newer };
    newer.iter().fold(BASE_EVENTS, |mask, event| mask | bit(*event))
}

/// The lowest bit of `mask` that a runtime knowing the events up to `last` does not know, as an event number.
pub fn unknown_event(mask: i32, last: Event) -> Option<u32> {
    let known = u32::try_from(last as i32).ok().and_then(|n| 1u32.checked_shl(n)).map_or(u32::MAX, |b| b - 1);
    let unknown = mask.cast_unsigned() & !known;
    (unknown != 0).then(|| unknown.trailing_zeros() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_by_event_minus_one() {
        assert_eq!(bit(Event::RunPodSandbox), 0x001);
        assert_eq!(bit(Event::CreateContainer), 0x008);
        assert_eq!(bit(Event::RemoveContainer), 0x400);
        assert_eq!(bit(Event::Unknown), 0);
        let all = (1..=11).map(|n| bit(Event::try_from(n).unwrap())).fold(0, |a, b| a | b);
        assert_eq!(all, BASE_EVENTS);
    }

    #[test]
    fn newer_events_need_a_runtime_that_tells_its_version() {
        let old = ConfigureRequest::default();
        assert_eq!(mask_for(&old, &[Event::UpdatePodSandbox]), 0x7ff);
        let new = ConfigureRequest { nri_version: "0.12.0".into(), ..Default::default() };
        assert_eq!(mask_for(&new, &[Event::UpdatePodSandbox]), 0xfff);
    }

    #[test]
    fn an_old_runtime_names_the_event_it_does_not_know() {
        assert_eq!(unknown_event(0x7ff, Event::RemoveContainer), None);
        assert_eq!(unknown_event(0xfff, Event::RemoveContainer), Some(12));
    }
}
