//! A decision for people.

use super::way;
use oxalyst_proto::orm::v1::{
    Decision, DecisionAsked, DecisionBasis, DecisionContainer, DecisionEntry, DecisionFree, DecisionMerge,
    DecisionPod, DecisionResource,
};
use oxalyst_units::{Bytes, MilliCpu};
use std::{
    collections::BTreeMap,
    fmt::{self, Write},
};

/// Writes down one page.
struct Page<'t, F> {
    text: String,
    time: &'t F,
}

/// The decision in one line: what became of which pod.
pub fn line(decision: &Decision) -> String {
    let who = match (decision.name.is_empty(), decision.pod_uid.is_empty()) {
        (false, _) => format!("pod {}/{} (uid {})", decision.namespace, decision.name, decision.pod_uid),
        (true, false) => format!("pod with uid {}", decision.pod_uid),
        (true, true) => "the node".to_owned(),
    };
    let text = match &decision.refused {
        Some(refused) => format!("{who}: {} refused ({})", decision.kind, refused.reason),
        None => format!("{who}: {} {}", decision.kind, decision.outcome),
    };
    text.replace(char::is_control, " ")
}

/// A readable page. `time` writes milliseconds since the Unix epoch as a time of day.
pub fn page<F: Fn(i64) -> String>(entry: &DecisionEntry, time: &F) -> String {
    let mut page = Page { text: String::new(), time };
    // Writing to a string does not fail.
    let _ = page.write(entry);
    page.text
}

// === impl Page ===

impl<F: Fn(i64) -> String> Page<'_, F> {
    fn write(&mut self, entry: &DecisionEntry) -> fmt::Result {
        let decision = entry.decision.clone().unwrap_or_default();
        writeln!(self.text, "{}", line(&decision))?;
        if let Some(refused) = &decision.refused {
            self.row("because", &refused.message)?;
            self.row("rule", &format!("{}: {}", refused.rule, way::refusing(&refused.rule)))?;
        }
        self.when(entry)?;
        if let Some(asked) = &decision.asked {
            self.row("asked", &asked_in_words(asked))?;
            for container in asked.containers.iter().filter(|_| asked.containers.len() > 1) {
                let huge = huge_pages(container.huge_pages.iter().map(|(size, bytes)| (*size, *bytes)));
                let amounts = amounts(container.milli_cpu, container.memory_bytes) + &huge;
                self.row("", &format!("container {} ({}): {amounts}", container.name, container.role))?;
            }
        }
        if let Some(basis) = &decision.basis {
            self.basis(basis)?;
        }
        for (index, free) in decision.free.iter().enumerate() {
            self.row(if index == 0 { "free" } else { "" }, &free_in_words(free))?;
        }
        for merge in decision.merges.iter().filter(|merge| told_apart(&decision, merge).is_none()) {
            self.merge(merge)?;
        }
        if decision.kind == "plugins" {
            self.row(
                "late",
                "plugins were asked after its CPUs had been decided: their hints can move none of them",
            )?;
        }
        self.got(&decision.chosen, &decision.placed_by)?;
        for pod in &decision.pods {
            self.pod(pod, &decision.merges)?;
        }
        if decision.pods_more > 0 {
            self.row("", &format!("and {} more pods", decision.pods_more))?;
        }
        self.others(&decision)?;
        if !decision.flags.is_empty() {
            self.row("flags", &decision.flags.join(", "))?;
        }
        self.remarks(&decision.remarks)
    }

    /// Names and annotations are foreign text, which must not move anybody's cursor.
    fn row(&mut self, head: &str, text: &str) -> fmt::Result {
        let text = text.replace(char::is_control, " ");
        writeln!(self.text, "  {head:<9} {text}")
    }

    fn when(&mut self, entry: &DecisionEntry) -> fmt::Result {
        let Some(envelope) = &entry.envelope else { return Ok(()) };
        let mut text =
            format!("{}, took {}", (self.time)(envelope.time_unix_ms), micros(envelope.duration_us));
        if !envelope.trace_id.is_empty() {
            write!(text, ", trace {}", envelope.trace_id)?;
        }
        if entry.times > 1 {
            write!(text, "; {} times, last {}", entry.times, (self.time)(entry.last_unix_ms))?;
        }
        self.row("when", &text)
    }

    fn basis(&mut self, basis: &DecisionBasis) -> fmt::Result {
        let DecisionBasis { generation, pods, cpu_policy, topology_policy, topology_scope, .. } = basis;
        self.row(
            "on",
            &format!(
                "generation {generation} with {pods} pods; CPU policy {cpu_policy}, topology policy {topology_policy} by \
                 {topology_scope}"
            ),
        )?;
        let DecisionBasis { state, machine, rules, .. } = basis;
        self.row("", &format!("state {state}, machine {machine}, rules {rules}"))
    }

    fn got(&mut self, chosen: &[DecisionContainer], placed_by: &str) -> fmt::Result {
        for (index, own) in chosen.iter().enumerate() {
            self.row(if index == 0 { "got" } else { "" }, &chosen_in_words(own))?;
        }
        if placed_by.is_empty() {
            return Ok(());
        }
        self.row("rule", &format!("{placed_by}: {}", way::in_words(placed_by)))
    }

    /// One of several.
    fn pod(&mut self, pod: &DecisionPod, merges: &[DecisionMerge]) -> fmt::Result {
        self.row("pod", &format!("{}/{} (uid {})", pod.namespace, pod.name, pod.pod_uid))?;
        if let Some(asked) = &pod.asked {
            self.row("asked", &asked_in_words(asked))?;
        }
        for merge in merges.iter().filter(|merge| merge.pod_uid == pod.pod_uid) {
            self.merge(merge)?;
        }
        self.got(&pod.chosen, &pod.placed_by)?;
        if !pod.flags.is_empty() {
            self.row("flags", &pod.flags.join(", "))?;
        }
        self.remarks(&pod.remarks)
    }

    fn remarks(&mut self, remarks: &[String]) -> fmt::Result {
        remarks.iter().try_for_each(|remark| self.row("", remark))
    }

    fn merge(&mut self, merge: &DecisionMerge) -> fmt::Result {
        let whom = match merge.container.as_str() {
            "" | "*" => "the pod".to_owned(),
            name => format!("container {name}"),
        };
        let verdict = match merge.admitted {
            Some(true) if merge.resources.is_empty() => "nothing to be aligned",
            Some(true) => "aligned",
            Some(false) => "not aligned: refused",
            None if merge.resources.iter().any(is_lacking) => "nowhere to be had",
            None => "not merged",
        };
        self.row("weighed", &format!("for {whom}: {verdict}"))?;
        for resource in &merge.resources {
            self.resource(resource)?;
        }
        Ok(())
    }

    fn resource(&mut self, told: &DecisionResource) -> fmt::Result {
        let came_out = match (&told.chosen, told.chosen_preferred) {
            (Some(nodes), true) => format!("NUMA nodes {nodes}, preferred"),
            (Some(nodes), false) => format!("NUMA nodes {nodes}, not preferred"),
            (None, _) if is_lacking(told) => "no NUMA nodes would do".to_owned(),
            (None, _) => "no NUMA nodes in particular".to_owned(),
        };
        let all = if told.indifferent { " (any would do)" } else { "" };
        self.row("", &format!("{}: {came_out}{all}", told.resource))?;
        for candidate in &told.candidates {
            let memory = candidate.free_memory_bytes.map(|bytes| format!(", {}", bytes_in_words(bytes)));
            let text = format!(
                "nodes {:<8} {:<13} {} free{}: {}",
                candidate.nodes,
                if candidate.preferred { "preferred" } else { "not preferred" },
                cpus(candidate.free_cpus),
                memory.unwrap_or_default(),
                verdict_in_words(&candidate.verdict)
            );
            self.row("", &format!("  {text}"))?;
        }
        for (verdict, count) in &told.left_out {
            self.row("", &format!("  {count} more: {}", verdict_in_words(verdict)))?;
        }
        Ok(())
    }

    fn others(&mut self, decision: &Decision) -> fmt::Result {
        let or_none = |cpus: &str| if cpus.is_empty() { "none".to_owned() } else { cpus.to_owned() };
        for (index, pool) in decision.pools.iter().enumerate() {
            let text = format!("{}: CPUs {} -> {}", pool.name, or_none(&pool.before), or_none(&pool.after));
            self.row(if index == 0 { "pools" } else { "" }, &text)?;
        }
        for (index, other) in decision.affected.iter().enumerate() {
            let (before, after) = (or_none(&other.cpus_before), or_none(&other.cpus_after));
            let text = format!("{}/{}: CPUs {before} -> {after}", other.namespace, other.name);
            self.row(if index == 0 { "others" } else { "" }, &text)?;
        }
        if decision.affected_more > 0 {
            self.row("", &format!("and {} more pods", decision.affected_more))?;
        }
        Ok(())
    }
}

/// The pod, of several, that the merge is told with.
fn told_apart<'d>(decision: &'d Decision, merge: &DecisionMerge) -> Option<&'d DecisionPod> {
    decision.pods.iter().find(|pod| !merge.pod_uid.is_empty() && pod.pod_uid == merge.pod_uid)
}

/// Whether hints for the resource could not be had.
fn is_lacking(told: &DecisionResource) -> bool {
    let lacks = |verdict: &str| matches!(verdict, "no-room" | "bound-pods" | "neighbour" | "shared-pods");
    told.chosen.is_none() && told.candidates.first().is_some_and(|first| lacks(&first.verdict))
}

fn asked_in_words(asked: &DecisionAsked) -> String {
    let each = asked.containers.iter().filter_map(|own| own.memory_bytes);
    let memory = each.fold(0, u64::saturating_add);
    let mut text = format!("{}, {}", asked.qos_level, asked.class);
    let cpu = match (&asked.containers[..], asked.milli_cpu) {
        ([only], None) => only.milli_cpu,
        (_, total) => total,
    };
    let _ = write!(text, ", {}", amounts(cpu, Some(memory).filter(|bytes| *bytes > 0)));
    let mut pages: BTreeMap<u64, u64> = BTreeMap::new();
    for (size, bytes) in asked.containers.iter().flat_map(|own| &own.huge_pages) {
        let sum = pages.entry(*size).or_default();
        *sum = sum.saturating_add(*bytes);
    }
    text += &huge_pages(pages.into_iter());
    let _ = match asked.source.as_str() {
        "none" => write!(text, " (nobody told a request)"),
        source => write!(text, " (told by {source})"),
    };
    if asked.node_agent {
        text += ", a node agent";
    }
    for (key, value) in &asked.enhancements {
        let _ = write!(text, ", {key}={value}");
    }
    text
}

fn amounts(milli: Option<u64>, bytes: Option<u64>) -> String {
    let cpu = milli.filter(|milli| *milli > 0).map_or("no CPU".to_owned(), |milli| match milli {
        1000 => "1 CPU".to_owned(),
        milli => format!("{} CPUs", MilliCpu(milli)),
    });
    match bytes {
        Some(bytes) => format!("{cpu}, {} of memory", bytes_in_words(bytes)),
        None => cpu,
    }
}

/// Each size with the bytes of it, by the name that Kubernetes gives it.
fn huge_pages(pages: impl Iterator<Item = (u64, u64)>) -> String {
    pages.map(|(size, bytes)| format!(", {} of hugepages-{}", bytes_in_words(bytes), Bytes(size))).collect()
}

fn free_in_words(free: &DecisionFree) -> String {
    let set = if free.cpus == 0 { String::new() } else { format!(" ({})", free.cpuset) };
    let memory = free.memory_bytes.map(|bytes| format!(", {} of memory", bytes_in_words(bytes)));
    let huge = huge_pages(free.huge_pages.iter().map(|(size, bytes)| (*size, *bytes)));
    format!("NUMA node {}: {}{set}{}{huge}", free.node, cpus(free.cpus.into()), memory.unwrap_or_default())
}

fn chosen_in_words(own: &DecisionContainer) -> String {
    let whom =
        if own.name == "*" { "all containers".to_owned() } else { format!("{} ({})", own.name, own.role) };
    let how = match (own.exclusive, own.pool.as_str()) {
        (true, _) => "its own".to_owned(),
        (false, "") => "all that are not exclusive".to_owned(),
        (false, pool) => format!("pool {pool}"),
    };
    format!("{whom}: CPUs {} ({how}), memory of NUMA nodes {}", own.cpus, own.mems)
}

fn cpus(count: u64) -> String {
    format!("{count} CPU{}", if count == 1 { "" } else { "s" })
}

/// Exact where a binary unit is, else in mebibytes.
fn bytes_in_words(bytes: u64) -> String {
    if bytes.trailing_zeros() >= 20 || bytes < 1 << 20 {
        Bytes(bytes).to_string()
    } else {
        format!("{}Mi", bytes >> 20)
    }
}

fn micros(duration: u64) -> String {
    if duration < 1000 {
        format!("{duration} µs")
    } else {
        format!("{}.{} ms", duration / 1000, duration % 1000 / 100)
    }
}

fn verdict_in_words(verdict: &str) -> &str {
    match verdict {
        "chosen" => "chosen",
        "holds-chosen" => "holds those that came out",
        "not-preferred" => "not preferred",
        "not-shared" => "another resource cannot have them, or not as gladly",
        "wider" => "more nodes than needed",
        "narrower" => "fewer nodes than needed",
        "farther" => "farther apart",
        "later" => "as good, but later in order",
        "no-room" => "no room",
        "bound-pods" => "bound pods are there, which keep it off",
        "neighbour" => "a neighbour there and it exclude each other (numa_share)",
        "shared-pods" => "shared pods that are not bound need it",
        other => other,
    }
}
