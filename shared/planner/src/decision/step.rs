//! What is decided on.

use super::request;
use crate::{
    plan::UnknownWord,
    pods::{PluginsGave, PodRequest, Request, Resize, RunningSandbox, SandboxRequest},
};
use oxalyst_proto::orm::v1::{
    AdoptStep, DecisionStep, ElapseStep, GaveStep, PromoteStep, ReleaseStep, RemoveStep, ReplanStep,
    ResizeStep, RestartStep, TakeUpStep, adopt_step, decision_step::Step as Message,
};
use oxalyst_qos::Attributes;
use oxalyst_topology::ParseSetError;
use oxalyst_units::{Bytes, MilliCpu};

/// Something that happens, and that is planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A pod's sandbox starts, or one of its containers is created.
    Admit(SandboxRequest),
    /// The same for a pod whose spec is known.
    AdmitSpec(PodRequest),
    /// The spec of a pod that is held becomes known.
    Refine(PodRequest),
    /// A sandbox ends.
    Release {
        /// Pod uid.
        uid: String,
        /// The sandbox.
        sandbox_id: String,
    },
    /// Pods that run are taken in.
    Adopt(Vec<RunningSandbox>),
    /// The machine or the rules are others than before.
    Replan,
    /// Dedicated pods that were left without a set get one where there is room now.
    Promote,
    /// Something about a whole pod.
    Whole(Request),
    /// Plugins gave something to a pod that has its place.
    Gave(PluginsGave),
}

/// A step that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// Nothing is there, or something that a later version has.
    #[error("the step is none that this version knows")]
    Unknown,
    /// A word from outside its closed set.
    #[error("the step: {0}")]
    Word(#[from] UnknownWord),
    /// A QoS level that there is not.
    #[error("the step: {0:?} is no QoS level")]
    Level(String),
    /// A set that is not in list format.
    #[error("the step: {0}")]
    Set(#[from] ParseSetError),
}

/// Labels and annotations that decide something. All others are nobody's business but the pod's: they are not kept.
const KEYS: [&str; 5] = [
    "katalyst.kubewharf.io/",
    "kubernetes.io/config.",
    "controller-revision-hash",
    "pod-template-generation",
    "app.kubernetes.io/part-of",
];

fn relevant(attributes: &Attributes) -> Attributes {
    let known = attributes.iter().filter(|(key, _)| KEYS.iter().any(|known| key.starts_with(known)));
    known.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn encode_resize(resize: &Resize) -> ResizeStep {
    ResizeStep {
        pod_uid: resize.uid.clone(),
        container: resize.container.clone(),
        milli_cpu: resize.cpu.map(|milli| milli.0),
        limit_milli_cpu: resize.limit.map(|milli| milli.0),
        memory_bytes: resize.memory.map(|bytes| bytes.0),
    }
}

fn decode_resize(step: &ResizeStep) -> Resize {
    Resize {
        uid: step.pod_uid.clone(),
        container: step.container.clone(),
        cpu: step.milli_cpu.map(MilliCpu),
        limit: step.limit_milli_cpu.map(MilliCpu),
        memory: step.memory_bytes.map(Bytes),
    }
}

// === impl Step ===

impl Step {
    /// What it is, in one word.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Admit(_) | Self::AdmitSpec(_) | Self::Whole(Request::Admit(_)) => "admit",
            Self::Refine(_) => "refine",
            Self::Release { .. } => "release",
            Self::Adopt(_) => "adopt",
            Self::Replan => "replan",
            Self::Promote => "promote",
            Self::Whole(Request::Remove { .. }) => "remove",
            Self::Whole(Request::Resize(_)) | Self::Gave(PluginsGave { resize: Some(_), .. }) => "resize",
            Self::Gave(_) => "plugins",
            Self::Whole(Request::RestartContainer { .. }) => "restart",
            Self::Whole(Request::Elapse { .. }) => "elapse",
            Self::Whole(Request::TakeUp { .. }) => "take-up",
        }
    }

    /// The pod that it is about, if it is about one.
    pub fn pod_uid(&self) -> Option<&str> {
        match self {
            Self::Admit(request) => Some(&request.pod_uid),
            Self::Release { uid, .. }
            | Self::Whole(Request::Remove { uid } | Request::RestartContainer { uid, .. }) => Some(uid),
            Self::AdmitSpec(pod) | Self::Refine(pod) | Self::Whole(Request::Admit(pod)) => Some(&pod.uid),
            Self::Whole(Request::Resize(resize)) => Some(&resize.uid),
            Self::Gave(gave) => Some(&gave.uid),
            Self::Adopt(_)
            | Self::Replan
            | Self::Promote
            | Self::Whole(Request::Elapse { .. } | Request::TakeUp { .. }) => None,
        }
    }

    /// The same step without labels and annotations that decide nothing.
    #[must_use]
    pub fn pared(mut self) -> Self {
        let pare = |request: &mut SandboxRequest| {
            request.labels = relevant(&request.labels);
            request.annotations = relevant(&request.annotations);
        };
        match &mut self {
            Self::Admit(request) => pare(request),
            Self::Adopt(running) => running.iter_mut().for_each(|running| pare(&mut running.request)),
            _ => {}
        }
        self
    }

    /// The step as a message.
    pub fn encode(&self) -> DecisionStep {
        let running = |running: &RunningSandbox| adopt_step::Running {
            pod: Some(request::encode_sandbox(&running.request)),
            cpus: running.cpus.as_ref().map(ToString::to_string),
        };
        let step = match self {
            Self::Admit(request) => Message::Admit(request::encode_sandbox(request)),
            Self::Release { uid, sandbox_id } => {
                Message::Release(ReleaseStep { pod_uid: uid.clone(), sandbox_id: sandbox_id.clone() })
            }
            Self::Adopt(all) => Message::Adopt(AdoptStep { running: all.iter().map(running).collect() }),
            Self::Replan => Message::Replan(ReplanStep {}),
            Self::Promote => Message::Promote(PromoteStep {}),
            Self::AdmitSpec(pod) => Message::AdmitSpec(request::encode_pod(pod)),
            Self::Refine(pod) => Message::Refine(request::encode_pod(pod)),
            Self::Whole(Request::Admit(pod)) => Message::Join(request::encode_pod(pod)),
            Self::Whole(Request::Remove { uid }) => Message::Remove(RemoveStep { pod_uid: uid.clone() }),
            Self::Whole(Request::Resize(resize)) => Message::Resize(encode_resize(resize)),
            Self::Gave(gave) => Message::Gave(GaveStep {
                pod_uid: gave.uid.clone(),
                plugins: request::encode_plugins(&gave.plugins),
                whole: gave.whole,
                resize: gave.resize.as_ref().map(encode_resize),
            }),
            Self::Whole(Request::RestartContainer { uid, container }) => {
                Message::Restart(RestartStep { pod_uid: uid.clone(), container: container.clone() })
            }
            Self::Whole(Request::Elapse { now_unix_ms }) => {
                Message::Elapse(ElapseStep { now_unix_ms: *now_unix_ms })
            }
            Self::Whole(Request::TakeUp { reserved }) => {
                Message::TakeUp(TakeUpStep { reserved: reserved.as_ref().map(ToString::to_string) })
            }
        };
        DecisionStep { step: Some(step) }
    }

    /// The step of a message.
    ///
    /// # Errors
    /// It is damaged, or written by a later version.
    pub fn decode(message: &DecisionStep) -> Result<Self, StepError> {
        let running = |running: &adopt_step::Running| {
            let pod = running.pod.as_ref().ok_or(StepError::Unknown)?;
            Ok::<_, StepError>(RunningSandbox {
                request: request::decode_sandbox(pod)?,
                cpus: running.cpus.as_ref().map(|cpus| cpus.parse()).transpose()?,
            })
        };
        Ok(match message.step.as_ref().ok_or(StepError::Unknown)? {
            Message::Admit(sandbox) => Self::Admit(request::decode_sandbox(sandbox)?),
            Message::Release(step) => {
                Self::Release { uid: step.pod_uid.clone(), sandbox_id: step.sandbox_id.clone() }
            }
            Message::Adopt(step) => Self::Adopt(step.running.iter().map(running).collect::<Result<_, _>>()?),
            Message::Replan(_) => Self::Replan,
            Message::Promote(_) => Self::Promote,
            Message::AdmitSpec(step) => Self::AdmitSpec(request::decode_pod(step)?),
            Message::Refine(step) => Self::Refine(request::decode_pod(step)?),
            Message::Join(step) => Self::Whole(Request::Admit(request::decode_pod(step)?)),
            Message::Remove(step) => Self::Whole(Request::Remove { uid: step.pod_uid.clone() }),
            Message::Resize(step) => Self::Whole(Request::Resize(decode_resize(step))),
            Message::Gave(step) => Self::Gave(PluginsGave {
                uid: step.pod_uid.clone(),
                plugins: request::decode_plugins(&step.plugins)?,
                whole: step.whole,
                resize: step.resize.as_ref().map(decode_resize),
            }),
            Message::Restart(step) => Self::Whole(Request::RestartContainer {
                uid: step.pod_uid.clone(),
                container: step.container.clone(),
            }),
            Message::Elapse(step) => Self::Whole(Request::Elapse { now_unix_ms: step.now_unix_ms }),
            Message::TakeUp(step) => Self::Whole(Request::TakeUp {
                reserved: step.reserved.as_ref().map(|cpus| cpus.parse()).transpose()?,
            }),
        })
    }
}
