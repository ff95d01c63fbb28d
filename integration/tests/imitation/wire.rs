//! What is on the wire, byte for byte, and what must not come from it.

use std::time::Duration;

use integration::imitation::{Imitation, RuntimeOptions, Setup};
use integration::runtime::{Runtime, poll_until, status_value};
use integration::scenarios::World;
use oxalyst_nri::api::Event;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use super::on_imitation;

/// The bits of the events that a gateway lives on, as the Go library numbers them: 1 << (event − 1).
const NEEDED: i32 = 0x001 | 0x002 | 0x004 // RunPodSandbox, StopPodSandbox, RemovePodSandbox
    | 0x008 | 0x010 | 0x020 | 0x040 // CreateContainer, PostCreateContainer, StartContainer, PostStartContainer
    | 0x080 | 0x200 | 0x400; // UpdateContainer, StopContainer, RemoveContainer

/// The mask holds exactly the events that are served: a runtime of NRI 0.6 would refuse any other, and send none that is
/// missing.
#[tokio::test]
async fn n16_the_event_mask_is_right_for_old_and_new_runtimes() {
    for (last_event, known) in [(Event::RemoveContainer, 0x7ff), (Event::ValidateContainerAdjustment, 0x3fff)]
    {
        let options = RuntimeOptions { last_event, ..RuntimeOptions::default() };
        on_imitation(Setup { options, ..Setup::default() }, async |world| {
            let plugin = world.runtime.observed(|o| o.registrations[0].clone());
            assert_eq!(plugin.mask & NEEDED, NEEDED, "{:#x}", plugin.mask);
            assert_eq!(plugin.mask & !known, 0, "{:#x}", plugin.mask);
            assert_eq!(plugin.index.len(), 2);
            world
        })
        .await;
    }
}

/// A runtime newer than the gateway sends an event that is not known yet and calls a method that is not: the one is passed over,
/// the other answered as not implemented, and the connection lives.
#[tokio::test]
async fn n20_the_unknown_is_answered_and_the_connection_lives() {
    on_imitation(Setup::default(), async |mut world| {
        world.runtime.speak_of_the_future().await.unwrap();
        world.run("web", "shared_cores", 100).await;
        world.runtime.observed(|o| assert!(o.ended.is_empty(), "{:?}", o.ended));
        world
    })
    .await;
}

/// A frame that claims 4 GiB: the gateway closes the connection, allocates nothing of it, and comes back.
#[tokio::test]
async fn n18_an_oversize_frame_ends_the_connection_and_nothing_else() {
    on_imitation(Setup::default(), async |mut world: World<Imitation>| {
        let gateway = world.mesh.pid("nri-gateway").unwrap();
        world.runtime.stop().await.unwrap();
        world.connected(false).await;
        let listener = UnixListener::bind(world.runtime.nri_socket()).unwrap();
        let limit = Duration::from_secs(30);
        let (mut socket, _) = tokio::time::timeout(limit, listener.accept()).await.unwrap().unwrap();

        socket.write_all(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]).await.unwrap();

        let mut rest = Vec::new();
        let closed = tokio::time::timeout(limit, socket.read_to_end(&mut rest)).await;
        // Closed with unread bytes is a reset, which is an end too.
        let _ = closed.expect("the gateway closes the connection");
        let peak = status_value(std::path::Path::new(&format!("/proc/{gateway}/status")), "VmPeak").unwrap();
        let kib: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
        assert!(kib < 4 << 20, "VmPeak {peak}");
        drop((socket, listener));
        world.runtime.start().await.unwrap();
        let back =
            poll_until(limit, async || if world.runtime.connected() == 1 { Ok(()) } else { Err("not back") });
        back.await.unwrap();
        assert_eq!(world.mesh.pid("nri-gateway"), Some(gateway));
        world
    })
    .await;
}
