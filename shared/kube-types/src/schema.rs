//! Pieces of OpenAPI schema that a Rust type does not tell by itself.
//!
//! List kinds matter to server-side apply: a `map` list is merged by its keys, so that each field manager owns its own
//! entries (a controller's taint survives the reporter's); without a kind a list is replaced whole.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::Quantity;

/// A list of `T`, merged by server-side apply over `keys`.
fn map_list<T: JsonSchema>(generator: &mut SchemaGenerator, keys: &[&str]) -> Schema {
    let mut schema = generator.subschema_for::<Vec<T>>();
    schema.insert("x-kubernetes-list-type".into(), json!("map"));
    schema.insert("x-kubernetes-list-map-keys".into(), json!(keys));
    schema
}

pub(crate) fn by_type_and_name<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    map_list::<T>(generator, &["type", "name"])
}

pub(crate) fn by_type<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    map_list::<T>(generator, &["type"])
}

pub(crate) fn by_property_name<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    map_list::<T>(generator, &["propertyName"])
}

pub(crate) fn by_taint<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    map_list::<T>(generator, &["key", "effect", "qosLevel"])
}

/// Zones within zones: a structural schema cannot recurse, so the server takes what stands there unseen.
pub(crate) fn children(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Zones within this zone, of the same shape. A schema cannot recurse, so the server does not check them.",
        "type": "array",
        "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    })
}

/// An optional amount: schemars would wrap it into an `anyOf` with null, which is not structural.
pub(crate) fn quantity(generator: &mut SchemaGenerator) -> Schema {
    Quantity::json_schema(generator)
}

/// A point in time in RFC 3339.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// Takes out what a structural schema may not hold, or what would make the server write values of its own: `$schema`,
/// `title`, `default`, and formats that Kubernetes does not know.
pub(crate) fn prune(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            // Below "properties" the keys are field names, which may well be "title" or "default".
            for (key, value) in map.iter_mut() {
                match (key.as_str(), value) {
                    ("properties", Value::Object(fields)) => fields.values_mut().for_each(prune),
                    (_, value) => prune(value),
                }
            }
            map.remove("$schema");
            map.remove("title");
            map.remove("default");
            if matches!(map.get("format").and_then(Value::as_str), Some("uint32" | "uint64")) {
                map.remove("format");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pruning_spares_fields_that_are_named_like_keywords() {
        let mut schema = json!({
            "$schema": "x", "title": "T",
            "properties": { "title": { "type": "string", "default": "" }, "default": { "type": "integer", "format": "uint64" } },
        });
        prune(&mut schema);
        assert_eq!(
            schema,
            json!({ "properties": { "title": { "type": "string" }, "default": { "type": "integer" } } })
        );
    }
}
