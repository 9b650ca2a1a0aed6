//! JSON that is compared with a file: what must not change without a word.

use std::{fs, path::PathBuf};

use serde_json::Value;

use crate::cli::Ran;

/// Values that differ from run to run; what is left of them is their type.
const CHANGING: [&str; 14] = [
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

/// The JSON that a call has printed.
#[must_use]
pub fn parsed(ran: &Ran) -> Value {
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// Compares the shape with the file of that name.
pub fn is_golden(name: &str, value: &Value) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/cli/{name}.json"));
    let golden = fs::read_to_string(&path).unwrap_or_default();
    let golden: Value = serde_json::from_str(&golden).unwrap_or_default();
    let found = without_changing(value);
    let shown = serde_json::to_string_pretty(&found).expect("JSON");
    assert_eq!(found, golden, "{}:\n{shown}", path.display());
}

fn without_changing(value: &Value) -> Value {
    let kind = |value: &Value| match value {
        Value::Null => "<nothing>",
        Value::Bool(_) => "<truth>",
        Value::Number(_) => "<number>",
        Value::String(_) => "<text>",
        Value::Array(_) | Value::Object(_) => "<more>",
    };
    match value {
        Value::Array(values) => values.iter().map(without_changing).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| {
                let is_changing = CHANGING.contains(&name.as_str());
                let value = if is_changing {
                    kind(value).into()
                } else {
                    without_changing(value)
                };
                (name.clone(), value)
            });
            Value::Object(fields.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
