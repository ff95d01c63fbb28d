//! Which environment variables are settings.

use serde_yaml_ng::Value;

use crate::{Common, Error};

/// One variable that is a setting.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Variable {
    pub(crate) name: String,
    /// Keys from the outermost to the innermost.
    pub(crate) path: Vec<String>,
    pub(crate) value: String,
}

/// `OXALYST_ORM_LEDGER__DIR` is `ledger.dir` of the service `orm`; `OXALYST_RUN_DIR` is `common.run_dir` of each. The common
/// ones come first. What Kubernetes injects for a Service named `oxalyst-orm` is no setting.
pub(crate) fn variables(
    service: &str,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Vec<Variable> {
    let own = prefix(service);
    let mut shared = Vec::new();
    let mut special = Vec::new();
    for (name, value) in environment {
        if let Some(key) = name.strip_prefix(&own) {
            if !is_of_kubernetes(key) {
                let path = key.to_lowercase().split("__").map(str::to_owned).collect();
                special.push(Variable { name, path, value });
            }
        } else if let Some(key) = name.strip_prefix("OXALYST_").map(str::to_lowercase)
            && Common::KEYS.contains(&key.as_str())
        {
            shared.push(Variable { name, path: vec!["common".to_owned(), key], value });
        }
    }
    shared.sort();
    special.sort();
    shared.extend(special);
    shared
}

/// Names the variable that was meant, where one is written with `_` between levels.
pub(crate) fn check(service: &str, variables: &[Variable], defaults: &Value) -> Result<(), Error> {
    for variable in variables.iter().filter(|v| at(defaults, &v.path).is_none()) {
        let written = variable.path.join("_");
        let mut known = Vec::new();
        paths(defaults, &mut Vec::new(), &mut known);
        if let Some(path) = known.iter().find(|path| path.join("_") == written) {
            let meant = prefix(service) + &path.join("__").to_uppercase();
            return Err(Error::Variable { given: variable.name.clone(), key: path.join("."), meant });
        }
    }
    Ok(())
}

/// What stands at `path`.
pub(crate) fn at<'a>(tree: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(tree, |value, key| value.get(key.as_str()))
}

fn prefix(service: &str) -> String {
    format!("OXALYST_{}_", service.to_uppercase().replace('-', "_"))
}

fn paths<'a>(tree: &'a Value, above: &mut Vec<&'a str>, found: &mut Vec<Vec<&'a str>>) {
    let Value::Mapping(children) = tree else { return found.push(above.clone()) };
    for (key, child) in children {
        if let Some(key) = key.as_str() {
            above.push(key);
            paths(child, above, found);
            above.pop();
        }
    }
}

/// `SERVICE_HOST`, `SERVICE_PORT`, `SERVICE_PORT_<NAME>`, `PORT`, `PORT_<n>_<PROTOCOL>` and its `_PROTO`, `_PORT`, `_ADDR`.
fn is_of_kubernetes(key: &str) -> bool {
    if ["SERVICE_HOST", "SERVICE_PORT", "PORT"].contains(&key) || key.starts_with("SERVICE_PORT_") {
        return true;
    }
    let Some(rest) = key.strip_prefix("PORT_") else { return false };
    let mut parts = rest.split('_');
    let number = parts.next().is_some_and(|n| n.parse::<u16>().is_ok());
    let protocol = parts.next().is_some_and(|p| ["TCP", "UDP", "SCTP"].contains(&p));
    let detail = parts.next().is_none_or(|d| ["PROTO", "PORT", "ADDR"].contains(&d));
    number && protocol && detail && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubernetes_injects_is_no_setting_and_what_resembles_it_is() {
        for key in [
            "SERVICE_HOST",
            "SERVICE_PORT",
            "SERVICE_PORT_HTTP",
            "PORT",
            "PORT_9100_TCP",
            "PORT_9100_TCP_PROTO",
            "PORT_9100_UDP_PORT",
            "PORT_53_SCTP_ADDR",
        ] {
            assert!(is_of_kubernetes(key), "{key}");
        }
        for key in ["PORTS", "PORT_X_TCP", "PORT_1_TCP_X", "PORT_1", "PORT_1_TCP_PORT_X", "SERVICE", "HOST"] {
            assert!(!is_of_kubernetes(key), "{key}");
        }
    }
}
