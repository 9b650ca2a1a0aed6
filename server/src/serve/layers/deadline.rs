//! When a client is late.

use std::time::Duration;

use tokio::time::sleep;

/// Time in which a broker that was stopped reads what has arrived meanwhile.
const TO_READ: Duration = Duration::from_millis(500);

/// Waits for so long, and for a broker that was stopped until it has read what came in time.
pub(super) async fn passed(within: Duration) {
    sleep(within.saturating_sub(TO_READ)).await;
    sleep(TO_READ).await;
}
