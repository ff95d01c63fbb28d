//! Whole numbers stay whole: a value that would be cut to one is none.

use serde_yaml_ng::Value;

/// The first value of `layer` that stands where `defaults` has a whole number and is something that would silently be made one:
/// its key, with dots, and the value.
pub(crate) fn cut(layer: &Value, defaults: &Value) -> Option<(String, String)> {
    let (Value::Mapping(given), Value::Mapping(known)) = (layer, defaults) else { return None };
    given.iter().find_map(|(key, value)| {
        let name = key.as_str()?;
        let default = known.get(key)?;
        if let Some((below, value)) = cut(value, default) {
            return Some((format!("{name}.{below}"), value));
        }
        let is_whole = matches!(default, Value::Number(number) if !number.is_f64());
        (is_whole && would_be_cut(value)).then(|| (name.to_owned(), written(value)))
    })
}

fn would_be_cut(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            number.is_f64() && number.as_f64().is_none_or(|number| number.fract() != 0.0)
        }
        Value::Bool(_) => true,
        _ => false,
    }
}

fn written(value: &Value) -> String {
    serde_yaml_ng::to_string(value).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_cut(layer: &str) -> Option<(String, String)> {
        let defaults = "{period: 5, ratio: 0.5, on: false, name: x, deep: {count: 1}}";
        cut(&serde_yaml_ng::from_str(layer).unwrap(), &serde_yaml_ng::from_str(defaults).unwrap())
    }

    #[test]
    fn l8_a_fraction_or_a_word_where_a_whole_number_stands_is_named() {
        let told = |key: &str, value: &str| Some((key.to_owned(), value.to_owned()));
        assert_eq!(first_cut("period: 1.5"), told("period", "1.5"));
        assert_eq!(first_cut("{name: y, deep: {count: 0.1}}"), told("deep.count", "0.1"));
        assert_eq!(first_cut("period: true"), told("period", "true"));
        assert_eq!(first_cut("period: .inf"), told("period", ".inf"));
    }

    #[test]
    fn what_is_whole_or_may_be_a_fraction_is_left_to_the_rest() {
        for layer in ["period: 7", "period: 1e3", "ratio: 1.5", "ratio: 2", "on: true", "other: 1.5", "[1]"] {
            assert_eq!(first_cut(layer), None, "{layer}");
        }
    }
}
