use std::path::{Path, PathBuf};

use config::{Config, File, FileFormat};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_yaml_ng::{Mapping, Value};

use crate::environment::{self, at};
use crate::{Error, whole};

/// The flags that every service takes.
#[derive(Debug, Clone, Default, clap::Parser)]
pub struct Cli {
    /// YAML file with settings.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Sets one key, dots between levels: --set common.run_dir=/tmp/x. May be repeated; the value is YAML.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Prints the settings in force as YAML, and ends.
    #[arg(long)]
    pub print_config: bool,
}

/// Reads the settings of `service` from all layers. `environment` is given, so that the function is a pure one.
///
/// # Errors
/// [`Error`] names the file, the key and the fault.
pub fn load<T>(
    service: &str,
    cli: &Cli,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<T, Error>
where
    T: Default + Serialize + DeserializeOwned,
{
    let mut names = vec!["defaults".to_owned()];
    let text = yaml(&T::default(), service)?;
    let defaults = serde_yaml_ng::from_str(&text).unwrap_or_default();
    let mut layers = vec![text];
    if let Some(path) = &cli.config {
        layers.push(read_file(path)?);
        names.push(path.display().to_string());
    }
    let variables = environment::variables(service, environment);
    environment::check(service, &variables, &defaults)?;
    for variable in variables {
        layers.push(nested(&variable.path, &variable.value, &defaults));
        names.push(variable.name);
    }
    for given in &cli.set {
        let (key, value) = given
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| Error::Flag { given: given.clone() })?;
        layers.push(nested(&key.split('.').map(str::to_owned).collect::<Vec<_>>(), value, &defaults));
        names.push(format!("--set {key}"));
    }
    let fault = |what: String| Error::Value { service: service.to_owned(), what, layers: names.join(", ") };
    for layer in &layers {
        let values: Value = serde_yaml_ng::from_str(layer).unwrap_or_default();
        if let Some((key, given)) = whole::cut(&values, &defaults) {
            return Err(fault(format!("{key} is {given}: it must be a whole number")));
        }
        if let Some(key) = FOLDERS.into_iter().find(|key| is_empty_text(&values, key)) {
            return Err(fault(format!("common.{key} is empty: it must name a folder")));
        }
    }
    layers
        .iter()
        .fold(Config::builder(), |b, layer| b.add_source(File::from_str(layer, FileFormat::Yaml)))
        .build()
        .and_then(Config::try_deserialize)
        .map_err(|e| fault(e.to_string()))
}

/// Keys of the common part that name a folder.
const FOLDERS: [&str; 2] = ["run_dir", "host_root"];

fn is_empty_text(layer: &Value, key: &str) -> bool {
    layer.get("common").and_then(|common| common.get(key)).and_then(Value::as_str) == Some("")
}

/// The settings as YAML, for `--print-config`.
///
/// # Errors
/// Only if a value cannot be written as YAML.
pub fn print<T: Serialize>(service: &str, settings: &T) -> Result<String, Error> {
    yaml(settings, service)
}

fn yaml<T: Serialize>(value: &T, service: &str) -> Result<String, Error> {
    serde_yaml_ng::to_string(value).map_err(|e| Error::Value {
        service: service.to_owned(),
        what: e.to_string(),
        layers: "defaults".to_owned(),
    })
}

fn read_file(path: &Path) -> Result<String, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
    let syntax = |what: String| Error::Syntax { path: path.into(), what };
    match serde_yaml_ng::from_str::<Value>(&text).map_err(|e| syntax(e.to_string()))? {
        Value::Mapping(_) => Ok(text),
        Value::Null => Ok("{}".to_owned()),
        _ => Err(syntax("it must be a mapping of keys to values".to_owned())),
    }
}

/// A YAML document that holds `value` at `path`.
fn nested(path: &[String], value: &str, defaults: &Value) -> String {
    let leaf = leaf(value, at(defaults, path));
    let tree = path
        .iter()
        .rev()
        .fold(leaf, |inner, key| Value::Mapping(Mapping::from_iter([(Value::String(key.clone()), inner)])));
    serde_yaml_ng::to_string(&tree).unwrap_or_default()
}

/// `text` as YAML, else as it stands. Where a text is awaited (or nobody knows what), a bare `0x10` or `1e3` is no number.
fn leaf(text: &str, default: Option<&Value>) -> Value {
    let as_given = || Value::String(text.to_owned());
    match (default, serde_yaml_ng::from_str(text)) {
        (_, Ok(Value::String(quoted))) => Value::String(quoted),
        (Some(Value::String(_)), _) | (_, Err(_)) => as_given(),
        (Some(Value::Null), Ok(Value::Number(_) | Value::Bool(_))) => as_given(),
        (_, Ok(value)) => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Common;
    use serde::Deserialize;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Sample {
        common: Common,
        reserved: String,
        period_ms: u64,
        names: Vec<String>,
    }

    impl Default for Sample {
        fn default() -> Self {
            Self { common: Common::default(), reserved: String::new(), period_ms: 5000, names: vec![] }
        }
    }

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn file(text: &str) -> (tempfile::NamedTempFile, Cli) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let cli = Cli { config: Some(file.path().into()), ..Cli::default() };
        (file, cli)
    }

    #[test]
    fn nothing_given_is_the_defaults() {
        assert_eq!(load::<Sample>("orm", &Cli::default(), env(&[])).unwrap(), Sample::default());
    }

    #[test]
    fn each_layer_overrides_the_one_before() {
        let (_file, mut cli) = file("period_ms: 1\nreserved: '0'\nnames: [a]\n");
        let environment = env(&[("OXALYST_ORM_PERIOD_MS", "2"), ("OXALYST_ORM_RESERVED", "1")]);
        cli.set = vec!["period_ms=3".to_owned()];
        let got: Sample = load("orm", &cli, environment).unwrap();
        assert_eq!((got.period_ms, got.reserved.as_str(), got.names), (3, "1", vec!["a".to_owned()]));
    }

    #[test]
    fn common_environment_reaches_every_service_and_foreign_variables_none() {
        let environment =
            env(&[("OXALYST_RUN_DIR", "/x"), ("OXALYST_REPORTER_NOPE", "1"), ("OXALYST_VECTORS", "y")]);
        let got: Sample = load("orm", &Cli::default(), environment).unwrap();
        assert_eq!(got.common.run_dir, PathBuf::from("/x"));
    }

    #[test]
    fn an_unknown_key_is_named_in_every_layer() {
        let (_file, cli) = file("perod_ms: 1\n");
        let by_file = load::<Sample>("orm", &cli, env(&[])).unwrap_err().to_string();
        let by_env = load::<Sample>("orm", &Cli::default(), env(&[("OXALYST_ORM_PEROD_MS", "1")]))
            .unwrap_err()
            .to_string();
        let set = Cli { set: vec!["common.perod_ms=1".to_owned()], ..Cli::default() };
        let by_flag = load::<Sample>("orm", &set, env(&[])).unwrap_err().to_string();
        for text in [by_file, by_env, by_flag] {
            assert!(text.contains("perod_ms"), "{text}");
            assert!(!text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn a_wrong_kind_names_the_key() {
        let (_file, cli) = file("period_ms: soon\n");
        let text = load::<Sample>("orm", &cli, env(&[])).unwrap_err().to_string();
        assert!(text.contains("period_ms"), "{text}");
    }

    #[test]
    fn l8_a_fraction_and_an_empty_folder_are_refused_in_every_layer() {
        let (_file, by_file) = file("period_ms: 1.5\ncommon: {log: debug}\n");
        let by_set = Cli { set: vec!["period_ms=1.5".to_owned()], ..Cli::default() };
        let by_env = env(&[("OXALYST_ORM_PERIOD_MS", "1.5")]);
        for result in [
            load::<Sample>("orm", &by_file, env(&[])),
            load::<Sample>("orm", &by_set, env(&[])),
            load::<Sample>("orm", &Cli::default(), by_env),
        ] {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("period_ms is 1.5: it must be a whole number"), "{text}");
        }
        for key in ["common.run_dir", "common.host_root"] {
            let cli = Cli { set: vec![format!("{key}=")], ..Cli::default() };
            let text = load::<Sample>("orm", &cli, env(&[])).unwrap_err().to_string();
            assert!(text.contains(&format!("{key} is empty")), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_no_mapping_is_refused_and_an_empty_one_is_fine() {
        let (_a, list) = file("- 1\n");
        assert!(matches!(load::<Sample>("orm", &list, env(&[])), Err(Error::Syntax { .. })));
        let (_b, empty) = file("");
        assert!(load::<Sample>("orm", &empty, env(&[])).is_ok());
        let missing = Cli { config: Some("/no/such/file".into()), ..Cli::default() };
        assert!(matches!(load::<Sample>("orm", &missing, env(&[])), Err(Error::Read { .. })));
    }

    #[test]
    fn a_text_stays_the_text_that_was_given() {
        for text in ["0x10", "1e3", "0o7", "007", "1_000", "+1", ".5", "1.50", "true", "null", "~", "", "1-2"]
        {
            let cli = Cli {
                set: vec![format!("reserved={text}"), format!("common.otlp_endpoint=x{text}")],
                ..Cli::default()
            };
            let got: Sample = load("orm", &cli, env(&[("OXALYST_ORM_COMMON__LOG", text)])).unwrap();
            assert_eq!((got.reserved.as_str(), got.common.log.as_str()), (text, text));
        }
        let optional = Cli { set: vec!["common.otlp_endpoint=0x10".to_owned()], ..Cli::default() };
        let got: Sample = load("orm", &optional, env(&[])).unwrap();
        assert_eq!(got.common.otlp_endpoint.as_deref(), Some("0x10"));
        let quoted = Cli { set: vec!["reserved='0-1'".to_owned()], ..Cli::default() };
        assert_eq!(load::<Sample>("orm", &quoted, env(&[])).unwrap().reserved, "0-1");
        let number = Cli { set: vec!["period_ms=16".to_owned()], ..Cli::default() };
        assert_eq!(load::<Sample>("orm", &number, env(&[])).unwrap().period_ms, 16);
    }

    #[test]
    fn a_variable_that_lacks_an_underscore_is_told_its_right_name() {
        let environment = env(&[("OXALYST_ORM_COMMON_RUN_DIR", "/x")]);
        let text = load::<Sample>("orm", &Cli::default(), environment).unwrap_err().to_string();
        assert!(text.contains("OXALYST_ORM_COMMON__RUN_DIR") && text.contains("common.run_dir"), "{text}");
    }

    #[test]
    fn variables_of_a_kubernetes_service_end_no_service() {
        let environment = env(&[
            ("OXALYST_ORM_SERVICE_HOST", "10.0.0.1"),
            ("OXALYST_ORM_SERVICE_PORT", "9100"),
            ("OXALYST_ORM_PORT", "tcp://10.0.0.1:9100"),
            ("OXALYST_ORM_PORT_9100_TCP_ADDR", "10.0.0.1"),
        ]);
        assert_eq!(load::<Sample>("orm", &Cli::default(), environment).unwrap(), Sample::default());
    }

    #[test]
    fn a_set_without_value_is_refused() {
        let cli = Cli { set: vec!["period_ms".to_owned()], ..Cli::default() };
        assert!(matches!(load::<Sample>("orm", &cli, env(&[])), Err(Error::Flag { .. })));
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let text = print("orm", &Sample::default()).unwrap();
        let (_file, cli) = file(&text);
        assert_eq!(load::<Sample>("orm", &cli, env(&[])).unwrap(), Sample::default());
    }
}
