//! Requests as messages.

use super::StepError;
use crate::{
    plan::Stage,
    pods::{Asked, Plugins, PodRequest, SandboxRequest, Told, record},
    topology_manager::{Hint, Provider},
};
use oxalyst_proto::orm::v1::{DecisionAskedContainer, JoinStep, PluginVoice, SandboxStep, plugin_voice};
use oxalyst_units::{Bytes, MilliCpu};
use std::collections::BTreeSet;

const SANDBOX: &str = "sandbox";
const CONTAINER: &str = "container";

pub(super) fn encode_sandbox(request: &SandboxRequest) -> SandboxStep {
    SandboxStep {
        sandbox_id: request.sandbox_id.clone(),
        pod_uid: request.pod_uid.clone(),
        namespace: request.namespace.clone(),
        name: request.name.clone(),
        labels: request.labels.clone(),
        kept_labels: request.kept_labels.clone(),
        annotations: request.annotations.clone(),
        priority: request.priority,
        class: request.class.to_string(),
        milli_cpu: request.request.map(|milli| milli.0),
        source: request.request_source.to_string(),
        stage: match request.stage {
            Stage::Sandbox => SANDBOX,
            Stage::Container => CONTAINER,
        }
        .to_owned(),
        now_unix_ms: request.now_unix_ms,
        plugins_unasked: request.plugins_unasked,
    }
}

pub(super) fn decode_sandbox(step: &SandboxStep) -> Result<SandboxRequest, StepError> {
    Ok(SandboxRequest {
        sandbox_id: step.sandbox_id.clone(),
        pod_uid: step.pod_uid.clone(),
        namespace: step.namespace.clone(),
        name: step.name.clone(),
        labels: step.labels.clone(),
        kept_labels: step.kept_labels.clone(),
        annotations: step.annotations.clone(),
        priority: step.priority,
        class: step.class.parse()?,
        request: step.milli_cpu.map(MilliCpu),
        request_source: step.source.parse()?,
        stage: match step.stage.as_str() {
            SANDBOX => Stage::Sandbox,
            CONTAINER => Stage::Container,
            _ => return Err(StepError::Unknown),
        },
        now_unix_ms: step.now_unix_ms,
        plugins_unasked: step.plugins_unasked,
    })
}

pub(super) fn encode_pod(pod: &PodRequest) -> JoinStep {
    JoinStep {
        pod_uid: pod.uid.clone(),
        sandbox_id: pod.sandbox_id.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        qos_level: pod.qos.to_string(),
        class: pod.class.to_string(),
        enhancements: pod.wishes.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        node_agent: pod.node_agent,
        kept_labels: pod.kept_labels.clone(),
        milli_cpu: pod.told.request.map(|milli| milli.0),
        source: pod.told.source.to_string(),
        decided_by: pod.told.decided_by.to_string(),
        open: pod.told.open,
        flags: pod.flags.iter().map(ToString::to_string).collect(),
        containers: pod.containers.iter().map(encode_container).collect(),
        plugins: encode_plugins(&pod.plugins),
        now_unix_ms: pod.now_unix_ms,
    }
}

pub(super) fn decode_pod(step: &JoinStep) -> Result<PodRequest, StepError> {
    let container = |told: &DecisionAskedContainer| {
        Ok::<_, StepError>(Asked {
            name: told.name.clone(),
            role: told.role.parse()?,
            cpu: told.milli_cpu.map(MilliCpu),
            limit: told.limit_milli_cpu.map(MilliCpu),
            memory: told.memory_bytes.map(Bytes),
            huge_pages: told.huge_pages.iter().map(|(size, bytes)| (Bytes(*size), Bytes(*bytes))).collect(),
        })
    };
    Ok(PodRequest {
        uid: step.pod_uid.clone(),
        sandbox_id: step.sandbox_id.clone(),
        namespace: step.namespace.clone(),
        name: step.name.clone(),
        qos: step.qos_level.parse().map_err(|_| StepError::Level(step.qos_level.clone()))?,
        class: step.class.parse()?,
        wishes: step.enhancements.clone().into_iter().collect(),
        node_agent: step.node_agent,
        kept_labels: step.kept_labels.clone(),
        told: Told {
            request: step.milli_cpu.map(MilliCpu),
            source: step.source.parse()?,
            decided_by: step.decided_by.parse()?,
            open: step.open,
        },
        flags: step.flags.iter().map(|flag| flag.parse()).collect::<Result<_, _>>()?,
        containers: step.containers.iter().map(container).collect::<Result<_, _>>()?,
        plugins: decode_plugins(&step.plugins)?,
        now_unix_ms: step.now_unix_ms,
    })
}

pub(super) fn encode_container(asked: &Asked) -> DecisionAskedContainer {
    DecisionAskedContainer {
        name: asked.name.clone(),
        role: asked.role.to_string(),
        milli_cpu: asked.cpu.map(|milli| milli.0),
        limit_milli_cpu: asked.limit.map(|milli| milli.0),
        memory_bytes: asked.memory.map(|bytes| bytes.0),
        huge_pages: asked.huge_pages.iter().map(|(size, bytes)| (size.0, bytes.0)).collect(),
    }
}

pub(super) fn encode_plugins(plugins: &Plugins) -> Vec<PluginVoice> {
    let hint = |hint: &Hint| plugin_voice::Hint {
        nodes: hint.mask.as_ref().map(ToString::to_string),
        preferred: hint.preferred,
    };
    let hints = |provider: &Provider| {
        let of = |(resource, hints): (&String, &Option<Vec<Hint>>)| plugin_voice::Hints {
            resource: resource.clone(),
            listed: hints.is_some(),
            hints: hints.iter().flatten().map(hint).collect(),
        };
        provider.iter().map(of).collect()
    };
    let containers: BTreeSet<&String> = plugins.hints.keys().chain(plugins.given.keys()).collect();
    let voice = |container: &String| PluginVoice {
        container: container.clone(),
        hints: plugins.hints.get(container).map(hints).unwrap_or_default(),
        given: plugins.given.get(container).into_iter().flatten().map(record::plugin_entry).collect(),
    };
    containers.into_iter().map(voice).collect()
}

pub(super) fn decode_plugins(voices: &[PluginVoice]) -> Result<Plugins, StepError> {
    let hint = |hint: &plugin_voice::Hint| {
        let mask = hint.nodes.as_ref().map(|nodes| nodes.parse()).transpose()?;
        Ok::<_, StepError>(Hint { mask, preferred: hint.preferred })
    };
    let mut plugins = Plugins::default();
    for voice in voices {
        let mut provider = Provider::new();
        for told in &voice.hints {
            let hints: Vec<Hint> = told.hints.iter().map(hint).collect::<Result<_, _>>()?;
            provider.insert(told.resource.clone(), told.listed.then_some(hints));
        }
        if !provider.is_empty() {
            plugins.hints.insert(voice.container.clone(), provider);
        }
        let given: Vec<_> = voice.given.iter().cloned().map(record::given).collect::<Result<_, _>>()?;
        if !given.is_empty() {
            plugins.given.insert(voice.container.clone(), given);
        }
    }
    Ok(plugins)
}
