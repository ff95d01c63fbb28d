//! The gRPC contracts of the mesh (`oxalyst.*.v1`) and of its peers (`third_party/`), as generated code.
//!
//! The `.proto` files beside this crate are the documentation of every message: shapes, units and ranges stand there.
#![allow(rustdoc::all, missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]

/// What every service tells about itself.
pub mod mesh {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("oxalyst.mesh.v1");
    }
}

/// Sandboxes and containers as the container runtime describes them.
pub mod runtime {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("oxalyst.runtime.v1");
    }
}

/// The allocator (service `orm`).
pub mod orm {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("oxalyst.orm.v1");
    }
}

impl orm::v1::PodPlacement {
    /// Every set of CPUs that is the pod's or one of its containers' own, each with its memory nodes; Linux list format. None
    /// while the pod is not settled.
    pub fn exclusive_sets(&self) -> impl Iterator<Item = (&str, &str)> {
        let whole = (self.exclusive && self.settled).then_some((self.cpus.as_str(), self.mems.as_str()));
        let single = self.containers.iter().filter(|own| own.exclusive && self.settled).map(|own| {
            (own.cpus.as_str(), if own.mems.is_empty() { self.mems.as_str() } else { own.mems.as_str() })
        });
        whole.into_iter().chain(single)
    }
}

/// The gateway (service `nri-gateway`).
pub mod gateway {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("oxalyst.gateway.v1");
    }
}

/// Pods and node facts (service `meta-server`).
pub mod meta {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("oxalyst.meta.v1");
    }
}

/// Measurements (service `metrics-fetcher`).
pub mod metrics {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("oxalyst.metrics.v1");
    }
}

/// Resource plugins (`resourceplugin`), between a resource manager and those who give out a node's resources.
pub mod resourceplugin {
    /// Version 1alpha1, the only one there is.
    pub mod v1alpha1 {
        tonic::include_proto!("resourceplugin.v1alpha1");
    }
}

/// How plugins introduce themselves in a watched folder (`pluginregistration`).
pub mod pluginregistration {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("pluginregistration");
    }
}

/// Node Resource Interface (`nri.pkg.api`), between the container runtime and its plugins.
pub mod nri {
    /// Version 1alpha1, the only one there is.
    pub mod v1alpha1 {
        tonic::include_proto!("nri.pkg.api.v1alpha1");
    }
}
