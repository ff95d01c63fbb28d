//! Pods that plugins have yet to be told are gone, under `plugin-removal/<uid>`.

use std::collections::BTreeSet;

use oxalyst_ledger::Change;
use oxalyst_proto::orm::v1::PluginRemovalRecord;
use prost::Message as _;

const PREFIX: &str = "plugin-removal/";

/// The change that remembers the plugins that gave this pod something, or (`None`) that all have heard that it is gone.
pub fn removal(uid: &str, plugins: Option<&BTreeSet<String>>) -> Change {
    let key = format!("{PREFIX}{uid}");
    match plugins {
        Some(plugins) => {
            let record =
                PluginRemovalRecord { uid: uid.to_owned(), plugins: plugins.iter().cloned().collect() };
            Change::Put(key, record.encode_to_vec())
        }
        None => Change::Delete(key),
    }
}

/// The pod of such a record, and the plugins; `None` for any other record.
pub fn removal_of(key: &str, bytes: &[u8]) -> Option<Result<(String, BTreeSet<String>), prost::DecodeError>> {
    key.starts_with(PREFIX).then(|| {
        let record = PluginRemovalRecord::decode(bytes)?;
        Ok((record.uid, record.plugins.into_iter().collect()))
    })
}
