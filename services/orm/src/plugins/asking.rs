//! Plugins are asked for one container: where they could give, and to give.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::join_all;
use oxalyst_planner::pods::PluginAllocation;
use oxalyst_planner::topology_manager::{Hint, Provider};
use oxalyst_proto::resourceplugin::v1alpha1::ResourceAllocationInfo;
use oxalyst_topology::NumaMask;
use prost::Message as _;
use tokio::time::Instant;

use super::answer::{check_given, usable_hints};
use super::asks::{hints, told, voice};
use super::{Ask, Plugin, PluginError, Plugins};
use crate::specs::PodSpec;

/// What the plugins say of one container, on a machine with these NUMA nodes. A plugin's own "no" is that nothing is possible.
///
/// # Errors
/// One of them cannot be heard.
pub(super) async fn say(
    plugins: &Plugins,
    nodes: &NumaMask,
    spec: &PodSpec,
    ask: &Ask,
    end: Instant,
) -> Result<Provider, PluginError> {
    let all = ask.resources.iter().map(async |(resource, amount)| {
        let plugin = plugins.get(resource)?;
        if !plugin.has_hints() {
            return Ok(None);
        }
        let request = ask.request((spec, &plugins.labels), resource, amount, None);
        match plugin.hints(request, end).await {
            Ok(response) => {
                let said = response.resource_hints.get(resource).map_or(&[][..], |said| &said.hints);
                let usable = usable_hints(said, nodes).map_err(|fault| PluginError::Answer {
                    plugin: resource.clone(),
                    call: "GetTopologyHints",
                    fault,
                })?;
                if usable.len() < said.len() {
                    tracing::warn!(
                        uid = spec.uid,
                        plugin = resource,
                        "hints of the plugin name NUMA nodes that this machine does not have: they are left out"
                    );
                }
                Ok(Some((voice(resource), hints(&usable))))
            }
            Err(e) if e.is_its_word() => {
                tracing::info!(uid = spec.uid, container = ask.container, "{e}");
                Ok(Some((voice(resource), Some(Vec::new()))))
            }
            Err(e) => Err(e),
        }
    });
    let said: Result<Vec<_>, PluginError> = join_all(all).await.into_iter().collect();
    Ok(said?.into_iter().flatten().collect())
}

/// Has the plugins give one container what it asks for. All of them are asked at once; who is asked is noted before in `gave`.
///
/// # Errors
/// One of them does not give.
pub(super) async fn give(
    plugins: &Plugins,
    spec: &PodSpec,
    ask: &Ask,
    by: &BTreeMap<String, Hint>,
    gave: &mut BTreeSet<String>,
    end: Instant,
) -> Result<Vec<PluginAllocation>, PluginError> {
    let mut asked: Vec<Arc<Plugin>> = Vec::new();
    for resource in ask.resources.keys() {
        asked.push(plugins.get(resource)?);
    }
    gave.extend(ask.resources.keys().cloned());
    let all = ask.resources.iter().zip(&asked).map(async |((resource, amount), plugin)| {
        let hint = by.get(&voice(resource)).filter(|_| plugin.has_hints());
        let request = ask.request((spec, &plugins.labels), resource, amount, hint.map(told));
        let response = plugin.allocate(request, end).await?;
        check_given(&response, resource, amount.quantity).map_err(|fault| PluginError::Answer {
            plugin: resource.clone(),
            call: "Allocate",
            fault,
        })?;
        let infos = response.allocation_result.unwrap_or_default().resource_allocation;
        let nodes = hint.and_then(|hint| hint.mask.clone()).unwrap_or_default();
        Ok(infos.into_iter().map(move |(given, info): (String, ResourceAllocationInfo)| PluginAllocation {
            resource: given,
            plugin: resource.clone(),
            nodes: nodes.clone(),
            info: info.encode_to_vec(),
        }))
    });
    let given: Result<Vec<_>, PluginError> = join_all(all).await.into_iter().collect();
    let mut given: Vec<_> = given?.into_iter().flatten().collect();
    given.sort_by(|a, b| (&a.resource, &a.plugin).cmp(&(&b.resource, &b.plugin)));
    Ok(given)
}

/// By which hint a plugin is to give to a container that has its place already: the best that its hints and that place have in
/// common. `home`: the NUMA nodes that the container is confined to; `None`: any. Only a hint that is `home`, or a part of it, is
/// preferred; where nothing is said to be possible the plugin decides by itself.
pub(super) fn by_place(provider: &Provider, home: Option<&NumaMask>) -> BTreeMap<String, Hint> {
    let choose = |hints: &Option<Vec<Hint>>| {
        let Some(hints) = hints else {
            return home.cloned().map_or(Hint::anywhere(true), |home| Hint::on(home, true));
        };
        let fits = |hint: &Hint| match (&hint.mask, home) {
            (Some(mask), Some(home)) => mask.iter().all(|node| home.iter().any(|own| own == node)),
            _ => true,
        };
        let size = |hint: &Hint| hint.mask.as_ref().map_or(0, NumaMask::len);
        let ids = |hint: &Hint| hint.mask.iter().flat_map(NumaMask::iter).collect::<Vec<_>>();
        let best = hints.iter().min_by_key(|hint| (!fits(hint), !hint.preferred, size(hint), ids(hint)));
        best.map_or(Hint::anywhere(false), |best| Hint {
            preferred: best.preferred && fits(best),
            ..best.clone()
        })
    };
    provider.iter().map(|(resource, hints)| (resource.clone(), choose(hints))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(nodes: &[u32], preferred: bool) -> Hint {
        Hint::on(nodes.iter().copied().collect(), preferred)
    }

    fn chosen(hints: Option<Vec<Hint>>, home: Option<&[u32]>) -> Hint {
        let home = home.map(|nodes| nodes.iter().copied().collect());
        by_place(&[("gpu".to_owned(), hints)].into(), home.as_ref())["gpu"].clone()
    }

    #[test]
    fn a_hint_where_the_container_is_goes_before_one_that_the_plugin_prefers() {
        let hints = vec![on(&[0], true), on(&[1], false), on(&[0, 1], false)];
        assert_eq!(chosen(Some(hints.clone()), Some(&[1])), on(&[1], false));
        assert_eq!(chosen(Some(hints.clone()), Some(&[0, 1])), on(&[0], true));
        assert_eq!(chosen(Some(hints.clone()), None), on(&[0], true));
        assert_eq!(chosen(Some(hints), Some(&[3])), on(&[0], false), "elsewhere is not preferred");
    }

    #[test]
    fn without_a_preference_it_is_where_the_container_is_and_without_room_anywhere() {
        assert_eq!(chosen(None, Some(&[1])), on(&[1], true));
        assert_eq!(chosen(None, None), Hint::anywhere(true));
        assert_eq!(chosen(Some(Vec::new()), Some(&[1])), Hint::anywhere(false));
    }
}
