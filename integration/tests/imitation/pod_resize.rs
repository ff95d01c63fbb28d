//! A pod as a whole is to have other resources: an event that newer runtimes know.

use integration::imitation::{EventStyle, RuntimeOptions, Setup};
use oxalyst_nri::api::Event;

use super::on_imitation;

/// The bits up to the event's own.
fn mask_up_to(event: Event) -> i32 {
    (1 << event as i32) - 1
}

/// Whatever the last event is that a runtime knows, that and all before it are asked for, and none beyond: it would refuse the
/// plugin. One that knows some of the newer ones and not all is asked again with one less.
#[tokio::test]
async fn n16_what_the_runtime_knows_is_asked_for_and_a_pods_resize_is_answered() {
    for last_event in [
        Event::RemoveContainer,
        Event::UpdatePodSandbox,
        Event::PostUpdatePodSandbox,
        Event::ValidateContainerAdjustment,
    ] {
        let options = RuntimeOptions { last_event, style: EventStyle::OwnCalls, ..RuntimeOptions::default() };
        on_imitation(Setup { options, ..Setup::default() }, async |mut world| {
            let mask = world.runtime.observed(|o| o.registrations[0].mask);
            assert_eq!(mask, mask_up_to(last_event), "{last_event:?}");
            let shared = world.run("web", "shared_cores", 200).await;
            let cpus = world.allowed(&shared.container).await;

            world.runtime.resize_pod(&shared.sandbox, 400).await.unwrap();

            assert_eq!(world.allowed(&shared.container).await, cpus);
            let asked = |event: Event| {
                world.runtime.observed(|o| o.calls.iter().filter(|c| c.event == event).count())
            };
            let (before, after) = (asked(Event::UpdatePodSandbox), asked(Event::PostUpdatePodSandbox));
            let due = |event: Event| usize::from(last_event as i32 >= event as i32);
            assert_eq!(
                (before, after),
                (due(Event::UpdatePodSandbox), due(Event::PostUpdatePodSandbox)),
                "{last_event:?}"
            );
            world.runtime.observed(|o| {
                let failed: Vec<_> = o.calls.iter().filter(|call| call.error.is_some()).collect();
                assert!(failed.is_empty(), "{failed:?}");
            });
            world
        })
        .await;
    }
}
