//! Trace spans of the scripts that Redis runs for a traced call.

use super::node::{Node, ScriptError};
use crate::trace::Span;

/// Runs `run` in a span that names the script and the node.
pub(super) async fn with_span<T>(
    script: &str,
    node: &Node,
    run: impl Future<Output = Result<T, ScriptError>>,
) -> Result<T, ScriptError> {
    let call = Span::current();
    if !call.is_recording() {
        return run.await;
    }
    let span = call.client_child(format!("redis {script}"));
    span.set_attribute("db.system.name", "redis");
    span.set_attribute("db.operation.name", script.to_owned());
    span.set_attribute("server.address", node.name());
    let result = run.await;
    if let Err(ScriptError::Failed(error)) = &result {
        span.set_error(error.to_string());
    }
    span.end();
    result
}
