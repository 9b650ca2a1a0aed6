//! Comparison of JSON output with golden files, which detects unintended changes.

use std::{fs, path::PathBuf};

use serde_json::Value;

use crate::process::leasehold_command::CommandOutput;

/// Fields with values that differ from run to run. The comparison replaces such a value by its
/// type.
const VOLATILE_FIELDS: [&str; 14] = [
    "acquire_time",
    "endpoint",
    "expire_time",
    "fencing_token",
    "last_fencing_token",
    "lease_id",
    "lease_token",
    "owner",
    "remaining",
    "remaining_ms",
    "round_trip",
    "round_trip_ms",
    "since_time",
    "version",
];

/// Asserts that a call has succeeded without messages, and returns the JSON that it printed.
#[must_use]
pub fn parse_output(ran: &CommandOutput) -> Value {
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// Asserts that `value` equals the golden file `name`, apart from the values of `VOLATILE_FIELDS`
/// fields.
pub fn assert_golden(name: &str, value: &Value) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/cli/{name}.json"));
    let golden = fs::read_to_string(&path).unwrap_or_default();
    let golden: Value = serde_json::from_str(&golden).unwrap_or_default();
    let found = mask_volatile_fields(value);
    let text = serde_json::to_string_pretty(&found).expect("JSON");
    assert_eq!(found, golden, "{}:\n{text}", path.display());
}

fn mask_volatile_fields(value: &Value) -> Value {
    let kind = |value: &Value| match value {
        Value::Null => "<nothing>",
        Value::Bool(_) => "<truth>",
        Value::Number(_) => "<number>",
        Value::String(_) => "<text>",
        Value::Array(_) | Value::Object(_) => "<more>",
    };
    match value {
        Value::Array(values) => values.iter().map(mask_volatile_fields).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| {
                let is_changing = VOLATILE_FIELDS.contains(&name.as_str());
                let value = if is_changing {
                    kind(value).into()
                } else {
                    mask_volatile_fields(value)
                };
                (name.clone(), value)
            });
            Value::Object(fields.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
