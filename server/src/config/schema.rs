//! JSON Schema of the configuration file, for editors and Helm charts.

use serde_json::{Value, json};

use super::settings::{Setting, Settings};

/// Returns the schema (draft 2020-12) of a file with these settings.
pub(super) fn schema(keys: &Settings) -> Value {
    let mut sections = json!({});
    for setting in keys.0.values() {
        let (section, name) = setting.key.name.split_once('.').unwrap_or_default();
        if sections[section].is_null() {
            sections[section] = object(json!({}));
        }
        sections[section]["properties"][name] = property(setting);
    }
    let mut schema = object(sections);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "The configuration of leasehold-server".into();
    schema
}

fn object(properties: Value) -> Value {
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

fn property(setting: &Setting) -> Value {
    let (key, form) = (setting.key, &setting.form);
    let mut property = form.schema.clone();
    let mut description = format!("{} ({}).", key.about, form.expected);
    if key.is_reloadable {
        description.push_str(" Needs no restart.");
    }
    property["description"] = description.into();
    if let Some(default) = key.default {
        let text = || default.into();
        property["default"] = match form.json_type() {
            "string" => text(),
            _ => default.parse().unwrap_or_else(|_| text()),
        };
    }
    property
}
