//! A machine with cgroup v2 alone, in software emulation: boots it with systemd as its first process and runs `scopes` in it, and
//! without and runs `adjustments`, and CRI-O. Takes minutes, so it is run by name: `make tiers TESTS=systemd`.
#![allow(missing_docs)]

use integration::crio::Crio;
use integration::machine::{Init, boots, boots_with};

#[test]
fn systemd_keeps_what_it_is_told() {
    boots(env!("CARGO_BIN_EXE_scopes"), Init::Systemd);
}

#[test]
fn containerd_1_7_does_on_cgroup_v2_what_the_table_of_adjustments_says() {
    boots(env!("CARGO_BIN_EXE_adjustments"), Init::Plain);
}

#[test]
fn crio_on_cgroup_v2_starts_a_dedicated_pod_on_its_cpus() {
    match Crio::find() {
        Ok(binaries) => {
            let all = ["crio", "copyimg", "pinns"].map(|name| binaries.join(name));
            boots_with(env!("CARGO_BIN_EXE_crio_unified"), Init::Plain, &all);
        }
        Err(reason) => println!("skipped: no CRI-O here: {reason}"),
    }
}
