//! Polling for conditions that cause no event.

use std::time::Duration;

use tokio::time::{sleep, timeout};

const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `ask` repeatedly until it returns a value. `what` names the condition for the panic
/// message.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let answered = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            sleep(PAUSE).await;
        }
    };
    let answer = timeout(LIMIT, answered).await;
    answer.unwrap_or_else(|_| panic!("not within {LIMIT:?}: {what}"))
}
