//! The committed definitions are those of the types, and obey the rules of structural schemas.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::collections::BTreeSet;
use std::path::Path;

use oxalyst_kube_types::crd;
use serde_json::Value;

#[test]
fn committed_files_are_what_the_types_generate() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    let committed: BTreeSet<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let generated: BTreeSet<String> = crd::all().into_iter().map(|d| d.file).collect();
    assert_eq!(committed, generated, "run: cargo run -p oxalyst-kube-types --example crds");
    for definition in crd::all() {
        let text = std::fs::read_to_string(folder.join(&definition.file)).unwrap();
        assert_eq!(
            text,
            definition.yaml().unwrap(),
            "{} is not what the types generate; run: cargo run -p oxalyst-kube-types --example crds",
            definition.file
        );
    }
}

/// Calls `visit` on every schema below `schema`, with its path.
fn walk(path: &str, schema: &Value, visit: &mut dyn FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), field, visit);
    }
    for key in ["items", "additionalProperties"] {
        if schema[key].is_object() {
            walk(&format!("{path}[{key}]"), &schema[key], visit);
        }
    }
}

fn each_schema(visit: &mut dyn FnMut(&str, &Value)) {
    let definition = crd::custom_node_resource().object;
    walk("", &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], visit);
}

#[test]
fn every_schema_is_structural() {
    let mut seen = 0;
    each_schema(&mut |path, schema| {
        seen += 1;
        let map = schema.as_object().unwrap_or_else(|| panic!("{path} is not an object: {schema}"));
        for forbidden in ["$ref", "$defs", "definitions", "default", "oneOf", "allOf", "const", "title"] {
            assert!(!map.contains_key(forbidden), "{path} has {forbidden}");
        }
        let int_or_string = map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
        assert!(schema["type"].is_string() || int_or_string, "{path} has no type: {schema}");
    });
    assert!(seen > 40, "only {seen} schemas were looked at");
}

#[test]
fn keys_of_map_lists_are_required_fields_of_their_items() {
    let mut lists = 0;
    each_schema(&mut |path, schema| {
        if schema["x-kubernetes-list-type"] == "map" {
            lists += 1;
            for key in schema["x-kubernetes-list-map-keys"].as_array().unwrap() {
                assert!(schema["items"]["required"].as_array().unwrap().contains(key), "{path}: {key}");
            }
        }
    });
    assert_eq!(lists, 4);
}

#[test]
fn only_children_escape_the_schema() {
    let mut free = Vec::new();
    each_schema(&mut |path, schema| {
        if schema["x-kubernetes-preserve-unknown-fields"] == true {
            free.push(path.to_owned());
        }
    });
    assert_eq!(free, [".status.topologyZone[items].children[items]"]);
}
