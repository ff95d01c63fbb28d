//! A machine of 2 sockets, 4 NUMA nodes and cgroup v2 alone, in software emulation: boots it, and runs `numa` in it. Takes
//! minutes, so it is run by name: `make tiers TESTS=four_numa`.
#![allow(missing_docs)]

use integration::machine::{Init, boots};

#[test]
fn the_mesh_on_four_numa_nodes() {
    boots(env!("CARGO_BIN_EXE_numa"), Init::Plain);
}
