//! Deadline for messages of clients that also holds after the process was suspended.

use std::time::Duration;

use tokio::time::sleep;

/// Time in which a process that was suspended reads the data that arrived meanwhile.
const RESUME_READ_TIME: Duration = Duration::from_millis(500);

/// Waits for `within`. If the process was suspended past the deadline, waits for
/// [`RESUME_READ_TIME`] after it resumed, so that data which arrived in time can be read.
pub(super) async fn suspend_safe_sleep(within: Duration) {
    sleep(within.saturating_sub(RESUME_READ_TIME)).await;
    sleep(RESUME_READ_TIME).await;
}
