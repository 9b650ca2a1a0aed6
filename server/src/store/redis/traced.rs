//! A span for each script that a traced call has Redis run.

use super::node::{Missed, Node};
use crate::trace::Traced;

/// Runs the script of that name, on this node.
pub(super) async fn traced<T>(
    script: &str,
    node: &Node,
    run: impl Future<Output = Result<T, Missed>>,
) -> Result<T, Missed> {
    let call = Traced::current();
    if !call.is_recording() {
        return run.await;
    }
    let traced = call.outer(format!("redis {script}"));
    traced.note("db.system.name", "redis");
    traced.note("db.operation.name", script.to_owned());
    traced.note("server.address", node.name());
    let result = run.await;
    if let Err(Missed::Failed(error)) = &result {
        traced.fail(error.to_string());
    }
    traced.end();
    result
}
