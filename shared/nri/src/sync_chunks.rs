//! Synchronize in parts: the runtime's list, and our updates, may be larger than one message.

use prost::Message;

use crate::api::{Container, ContainerUpdate, PodSandbox, SynchronizeRequest, SynchronizeResponse};
use crate::message::MAX_MESSAGE;
use crate::status::{Code, Status};

/// Bytes of a part's items: the message's cap less room for the envelopes around them.
pub const PART: usize = MAX_MESSAGE - 4096;

/// Bytes of the whole list that are accepted; 3,000 containers of 2 KiB are 6 MiB.
pub const MAX_LIST: usize = 256 << 20;

/// Field tag and length varint around an item.
const ITEM_ENVELOPE: usize = 8;

/// Everything that a runtime runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// Every sandbox.
    pub pods: Vec<PodSandbox>,
    /// Every container.
    pub containers: Vec<Container>,
}

/// Puts the runtime's list together.
#[derive(Debug, Default)]
pub struct Assembly {
    list: Inventory,
    bytes: usize,
}

// === impl Assembly ===

impl Assembly {
    /// Takes a part; gives the whole list with the last one.
    pub fn push(&mut self, part: SynchronizeRequest) -> Result<Option<Inventory>, Status> {
        self.bytes += part.encoded_len();
        if self.bytes > MAX_LIST {
            *self = Self::default();
            let why = format!("the list of pods and containers exceeds {MAX_LIST} bytes");
            return Err(Status::new(Code::ResourceExhausted, why));
        }
        self.list.pods.extend(part.pods);
        self.list.containers.extend(part.containers);
        if part.more {
            return Ok(None);
        }
        Ok(Some(std::mem::take(self).list))
    }
}

/// Cuts a list into requests of at most `part` bytes (an item that is larger alone has a request of its own).
pub fn requests(pods: Vec<PodSandbox>, containers: Vec<Container>, part: usize) -> Vec<SynchronizeRequest> {
    let mut out = Vec::new();
    for pods in cut(pods, part) {
        out.push(SynchronizeRequest { pods, containers: Vec::new(), more: true });
    }
    for containers in cut(containers, part) {
        out.push(SynchronizeRequest { pods: Vec::new(), containers, more: true });
    }
    if out.iter().map(Message::encoded_len).sum::<usize>() <= part {
        let whole = out.into_iter().fold(SynchronizeRequest::default(), |mut all, one| {
            all.pods.extend(one.pods);
            all.containers.extend(one.containers);
            all
        });
        return vec![whole];
    }
    if let Some(last) = out.last_mut() {
        last.more = false;
    }
    out
}

/// Cuts updates into responses of at most `part` bytes; never empty.
pub fn responses(updates: Vec<ContainerUpdate>, part: usize) -> Vec<SynchronizeResponse> {
    let mut out: Vec<_> =
        cut(updates, part).into_iter().map(|update| SynchronizeResponse { update, more: true }).collect();
    match out.last_mut() {
        Some(last) => last.more = false,
        None => out.push(SynchronizeResponse::default()),
    }
    out
}

fn cut<M: Message>(items: Vec<M>, part: usize) -> Vec<Vec<M>> {
    let mut out: Vec<Vec<M>> = Vec::new();
    let mut room = 0;
    for item in items {
        let len = item.encoded_len() + ITEM_ENVELOPE;
        match out.last_mut() {
            Some(last) if len <= room => last.push(item),
            _ => {
                out.push(vec![item]);
                room = part;
            }
        }
        room = room.saturating_sub(len);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn container(n: usize, size: usize) -> Container {
        Container { id: n.to_string(), name: "x".repeat(size), ..Default::default() }
    }

    #[test]
    fn a_small_list_is_one_request_without_more() {
        let pods = vec![PodSandbox { id: "p".into(), ..Default::default() }];
        let requests = requests(pods, vec![container(1, 10)], PART);
        assert_eq!(requests.len(), 1);
        assert!(!requests[0].more);
        assert_eq!((requests[0].pods.len(), requests[0].containers.len()), (1, 1));
    }

    #[test]
    fn an_empty_list_is_still_one_request() {
        assert_eq!(requests(vec![], vec![], PART), vec![SynchronizeRequest::default()]);
        assert_eq!(responses(vec![], PART), vec![SynchronizeResponse::default()]);
    }

    #[test]
    fn a_list_beyond_the_bound_is_refused_and_forgotten() {
        let mut assembly = Assembly { bytes: MAX_LIST, ..Default::default() };
        let part = SynchronizeRequest { containers: vec![container(1, 1)], more: true, ..Default::default() };
        assert_eq!(assembly.push(part).unwrap_err().code, Code::ResourceExhausted);
        assert_eq!(assembly.bytes, 0);
    }

    proptest! {
        #[test]
        fn cutting_and_assembling_gives_the_list_back(
            sizes in proptest::collection::vec(0usize..400, 0..60), part in 100usize..2000,
        ) {
            let containers: Vec<_> = sizes.iter().enumerate().map(|(n, s)| container(n, *s)).collect();
            let mut assembly = Assembly::default();
            let requests = requests(vec![], containers.clone(), part);
            let last = requests.len() - 1;
            for (n, request) in requests.into_iter().enumerate() {
                prop_assert!(request.encoded_len() <= part + 2 || request.containers.len() == 1);
                let whole = assembly.push(request).unwrap();
                prop_assert_eq!(whole.is_some(), n == last);
                if let Some(got) = whole {
                    prop_assert_eq!(got.containers, containers.clone());
                }
            }
        }
    }
}
