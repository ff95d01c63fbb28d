//! The containers of one pod, in a map of all.

use super::ContainerId;
use crate::grouped::Grouped;
use std::sync::Arc;

impl<C> Grouped<ContainerId, C> {
    /// The containers of a pod, ascending by name.
    pub(crate) fn of_pod<'p>(
        &self,
        pod: &'p str,
    ) -> impl Iterator<Item = (&ContainerId, &C)> + use<'_, 'p, C> {
        let from = ContainerId::new(pod, "");
        self.from(&from).take_while(move |(id, _)| &*id.pod == pod).map(|(id, container)| (id, &**container))
    }

    /// Changes the containers of a pod for which this is true.
    pub(crate) fn change_of_pod(
        &mut self,
        pod: &str,
        which: impl Fn(&ContainerId, &C) -> bool,
        change: impl Fn(&mut C),
    ) where
        C: Clone,
    {
        let ids = self.of_pod(pod).filter(|(id, container)| which(id, container));
        for id in ids.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            if let Some(container) = self.get_mut(&id) {
                change(Arc::make_mut(container));
            }
        }
    }

    /// Takes the containers of a pod out for which this is true.
    pub(crate) fn drop_of_pod(&mut self, pod: &str, which: impl Fn(&ContainerId) -> bool) {
        let ids = self.of_pod(pod).map(|(id, _)| id).filter(|id| which(id));
        for id in ids.cloned().collect::<Vec<_>>() {
            self.remove(&id);
        }
    }
}
