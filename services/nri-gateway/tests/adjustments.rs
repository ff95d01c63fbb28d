//! The adjustment table: both paths end in the same files, and the documentation is made of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;

use nri_gateway::adjustment::{
    Dialect, Field, Knob, Moment, Row, Runtime, Shape, TABLE, Target, Way, Wish, adjustment, update, writes,
};
use oxalyst_nri::api::LinuxResources;

/// A value of each property, and one name for those with named values.
const SAMPLES: [(&str, &str); 18] = [
    ("CpusetCpus", "0-2"),
    ("CpusetMems", "0"),
    ("CpuShares", "2048"),
    ("CpuQuota", "150000"),
    ("CpuPeriod", "50000"),
    ("CpuBurst", "20000"),
    ("CpuIdle", "1"),
    ("MemoryLimitInBytes", "8388608"),
    ("MemoryMinInBytes", "4096"),
    ("MemoryLowInBytes", "1048576"),
    ("MemoryHighInBytes", "4194304"),
    ("MemorySwapLimitInBytes", "16777216"),
    ("HugepageLimits/2MB", "2097152"),
    ("PidsLimit", "77"),
    ("Unified/memory.oom.group", "1"),
    ("OomScoreAdj", "300"),
    ("Env/A", "b"),
    ("Annotations/x", "y"),
];

/// What a runtime makes of resources: written from the OCI runtime specification, not from the table.
fn as_runc(resources: &LinuxResources, unified: bool, files: &mut BTreeMap<String, String>) {
    let mut put = |v1: &str, v2: &str, text: String| {
        files.insert(if unified { v2 } else { v1 }.to_owned(), text);
    };
    if let Some(cpu) = &resources.cpu {
        if !cpu.cpus.is_empty() {
            put("cpuset.cpus", "cpuset.cpus", cpu.cpus.clone());
        }
        if !cpu.mems.is_empty() {
            put("cpuset.mems", "cpuset.mems", cpu.mems.clone());
        }
        if let Some(shares) = &cpu.shares {
            let weight = 1 + (shares.value - 2) * 9999 / 262_142;
            let value = if unified { weight } else { shares.value };
            put("cpu.shares", "cpu.weight", value.to_string());
        }
        let max = files.get("cpu.max").cloned().unwrap_or("max 100000".to_owned());
        let (quota, period) = max.split_once(' ').unwrap();
        let quota = cpu.quota.as_ref().map_or(quota.to_owned(), |q| q.value.to_string());
        let period = cpu.period.as_ref().map_or(period.to_owned(), |p| p.value.to_string());
        if unified {
            if cpu.quota.is_some() || cpu.period.is_some() {
                files.insert("cpu.max".into(), format!("{quota} {period}"));
            }
        } else {
            if cpu.quota.is_some() {
                files.insert("cpu.cfs_quota_us".into(), quota);
            }
            if cpu.period.is_some() {
                files.insert("cpu.cfs_period_us".into(), period);
            }
        }
    }
    let mut put = |v1: &str, v2: &str, text: String| {
        files.insert(if unified { v2 } else { v1 }.to_owned(), text);
    };
    if let Some(memory) = &resources.memory {
        let limit = memory.limit.as_ref().map_or(0, |l| l.value);
        if memory.limit.is_some() {
            put("memory.limit_in_bytes", "memory.max", limit.to_string());
        }
        if let Some(low) = &memory.reservation {
            put("memory.soft_limit_in_bytes", "memory.low", low.value.to_string());
        }
        if let Some(total) = &memory.swap {
            let swap = if unified { total.value - limit } else { total.value };
            put("memory.memsw.limit_in_bytes", "memory.swap.max", swap.to_string());
        }
    }
    for huge in &resources.hugepage_limits {
        let (v1, v2) =
            (format!("hugetlb.{}.limit_in_bytes", huge.page_size), format!("hugetlb.{}.max", huge.page_size));
        put(&v1, &v2, huge.limit.to_string());
    }
    if let Some(pids) = &resources.pids {
        put("pids.max", "pids.max", pids.limit.to_string());
    }
    assert!(unified || resources.unified.is_empty(), "runc refuses unified on v1");
    files.extend(resources.unified.clone());
}

/// Writes directly; every file exists and says what a new container's says.
fn directly(wish: &Wish, unified: bool, files: &mut BTreeMap<String, String>) {
    let fresh = |file: &str| match file {
        "cpu.max" => "max 100000",
        "cpu.cfs_period_us" => "100000",
        "cpu.weight" => "5000",
        file if file.contains("usage") || file.contains("current") || file.contains("burst") => "0",
        _ => "-1",
    };
    for (row, value) in wish.rows() {
        if let (Some(Knob::Cgroup(_, file)), Shape::List) = (row.knob(unified), row.shape)
            && let nri_gateway::adjustment::Value::Text(list) = value
        {
            files.insert(file.to_owned(), list.clone());
        }
    }
    let before = files.clone();
    let now =
        |_: Target, file: &str| Some(before.get(file).cloned().unwrap_or_else(|| fresh(file).to_owned()));
    for write in writes(&wish.without_cpuset(), unified, &now).writes {
        files.insert(write.file, write.text);
    }
}

fn whole() -> Wish {
    let (wish, unusable) = Wish::read(SAMPLES);
    assert!(unusable.is_empty() && wish.rows().count() == TABLE.len(), "{unusable:?}");
    wish
}

#[test]
fn k8_every_path_and_runtime_ends_in_the_same_files() {
    // An idle cgroup has no weight, so that the two are not wished of one container.
    let wish = whole().only(|row| row.name != "CpuIdle");
    for unified in [false, true] {
        let mut bypass = BTreeMap::new();
        directly(&wish, unified, &mut bypass);
        for runtime in [Runtime::Containerd, Runtime::Crio] {
            let created = adjustment(&wish, Dialect { runtime, unified }).unwrap().linux.unwrap();
            let mut files = BTreeMap::new();
            as_runc(&created.resources.unwrap(), unified, &mut files);
            if let Some(score) = created.oom_score_adj {
                files.insert("oom_score_adj".into(), score.value.to_string());
            }
            // After the start: what the runtime could not be told.
            directly(&wish, unified, &mut files);
            assert_eq!(files, bypass, "created by {runtime:?}, unified {unified}");

            let updated = update("c", &wish, Dialect { runtime, unified }, true).unwrap().linux.unwrap();
            let mut files = BTreeMap::new();
            as_runc(&updated.resources.unwrap(), unified, &mut files);
            directly(&wish, unified, &mut files);
            assert_eq!(files, bypass, "updated by {runtime:?}, unified {unified}");
        }
    }
}

#[test]
fn k8_what_a_runtime_is_told_alone_is_what_bypass_writes() {
    for unified in [false, true] {
        for (name, value) in SAMPLES {
            let sample = if name == "MemorySwapLimitInBytes" {
                Wish::read([(name, value), ("MemoryLimitInBytes", "8388608")]).0
            } else {
                Wish::read([(name, value)]).0
            };
            let row = Row::named(name.split('/').next().unwrap()).unwrap();
            if matches!(row.field, Field::Env | Field::Annotations | Field::OomScoreAdj)
                || row.way(Moment::Update, Runtime::Crio, unified) != Way::Told
            {
                continue;
            }
            let (mut told, mut written) = (BTreeMap::new(), BTreeMap::new());
            let resources = update("c", &sample, Dialect { runtime: Runtime::Crio, unified }, true)
                .unwrap()
                .linux
                .unwrap()
                .resources;
            as_runc(&resources.unwrap(), unified, &mut told);
            directly(&sample, unified, &mut written);
            assert_eq!(told, written, "{name}, unified {unified}");
        }
    }
}

fn document() -> String {
    let mut text = String::from(
        "# What can be adjusted\n\nMade of the table in `services/nri-gateway/src/adjustment`. The path through NRI and bypass mode are both driven by it.\n\n\
         * **told**: the runtime is told, and the kernel's file is read afterwards.\n\
         * **written**: the runtime drops it, or NRI has no field for it: the file is written directly once the cgroup is there.\n\
         * **–**: impossible here; it is reported, never dropped silently.\n\n\
         A runtime that is neither containerd nor CRI-O is treated as containerd, which takes the least. Where v1 and v2 differ, both are named.\n\n\
         | allocation | value | NRI | cgroup v1 | cgroup v2 | create: containerd | create: CRI-O | update: containerd | update: CRI-O | bypass |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in &TABLE {
        let knob = |knob: Option<Knob>| match knob {
            Some(Knob::Cgroup(_, "*")) => "the file of that name".to_owned(),
            Some(Knob::Cgroup(_, file)) => format!("`{file}`"),
            Some(Knob::Process(file)) => format!("`/proc/PID/{file}`"),
            None => "–".to_owned(),
        };
        let word = |way: Way| match way {
            Way::Told => "told",
            Way::Written => "written",
            Way::Nowhere => "–",
        };
        let ways = [
            (Moment::Create, Runtime::Containerd),
            (Moment::Create, Runtime::Crio),
            (Moment::Update, Runtime::Containerd),
            (Moment::Update, Runtime::Crio),
            (Moment::Bypass, Runtime::Containerd),
        ]
        .map(|(moment, runtime)| {
            let (v1, v2) = (word(row.way(moment, runtime, false)), word(row.way(moment, runtime, true)));
            if v1 == v2 { v1.to_owned() } else { format!("v1: {v1}, v2: {v2}") }
        });
        let value = match row.shape {
            Shape::List => "list".to_owned(),
            Shape::Number { min, max: i64::MAX, unlimited } => {
                format!("from {min}{}", if unlimited { ", or max" } else { "" })
            }
            Shape::Number { min, max, .. } => format!("{min} to {max}"),
            Shape::Numbers | Shape::Texts => "by name".to_owned(),
        };
        let field = match row.field {
            Field::UnifiedKey(key) => format!("`unified[\"{key}\"]`"),
            field => format!("{field:?}"),
        };
        let named = if value == "by name" { "/NAME" } else { "" };
        text.push_str(&format!(
            "| `{}{named}` | {value} | {field} | {} | {} | {} |\n",
            row.name,
            knob(row.v1),
            knob(row.v2),
            ways.join(" | ")
        ));
    }
    text
}

#[test]
fn the_documented_table_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/services/nri-gateway-adjustments.md");
    let document = document();
    if std::env::var_os("OXALYST_WRITE_DOCS").is_some() {
        std::fs::write(&path, &document).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let how = "run this test with OXALYST_WRITE_DOCS=1 to write it anew";
    assert!(written == document, "{} is not what the code says: {how}", path.display());
}
