//! A machine with cgroup v2 alone, in software emulation: boots it with systemd as its first process and runs `scopes` in it, and
//! without and runs `adjustments`. Takes minutes, so it is run by name: `make tiers TESTS=systemd`.
#![allow(missing_docs)]

use integration::machine::{Init, boots};

#[test]
fn systemd_keeps_what_it_is_told() {
    boots(env!("CARGO_BIN_EXE_scopes"), Init::Systemd);
}

#[test]
fn containerd_1_7_does_on_cgroup_v2_what_the_table_of_adjustments_says() {
    boots(env!("CARGO_BIN_EXE_adjustments"), Init::Plain);
}
