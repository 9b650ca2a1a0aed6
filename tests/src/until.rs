//! Polling for conditions that cause no event.

use std::time::Duration;

use tokio::time::{sleep, timeout};

const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `ask` repeatedly until it returns a value. `what` names the condition for the panic
/// message.
pub async fn until<T>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    until_within(LIMIT, what, ask).await
}

/// Does the same as [`until`] with another limit of the time.
pub async fn until_within<T>(
    limit: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Option<T>,
) -> T {
    let answered = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            sleep(PAUSE).await;
        }
    };
    let answer = timeout(limit, answered).await;
    answer.unwrap_or_else(|_| panic!("not within {limit:?}: {what}"))
}
