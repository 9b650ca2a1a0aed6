//! Background calls of the Rust client for locks without contention.

use std::{net::SocketAddr, time::Duration};

use leasehold::{Client, Error};
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{clock::boottime, sdk::proxied_client::connect};

const CLIENTS: usize = 4;
const CALLERS_PER_CLIENT: usize = 5;
const CALL_PAUSE: Duration = Duration::from_millis(20);

/// One acquire and release of a lock.
#[derive(Debug)]
pub struct Call {
    /// Time at which the lock was released, or the acquire failed.
    pub ended_at: Duration,
    /// False if no broker was available.
    pub is_granted: bool,
}

/// Starts a few clients with several callers each, which call until stopped.
pub async fn start_callers(
    brokers: &[SocketAddr],
    stop: &CancellationToken,
) -> Vec<AbortOnDropHandle<Vec<Call>>> {
    let mut callers = Vec::new();
    for index in 0..CLIENTS {
        let mut addrs = brokers.to_vec();
        addrs.rotate_left(index % 2);
        let client = connect(&format!("calling-{index}"), &addrs).await;
        for caller in 0..CALLERS_PER_CLIENT {
            let call = call_until_stopped(
                client.clone(),
                format!("called-{index}-{caller}"),
                stop.clone(),
            );
            callers.push(AbortOnDropHandle::new(tokio::spawn(call)));
        }
    }
    callers
}

/// Acquires and releases a lock without contention until stopped.
async fn call_until_stopped(client: Client, lock: String, stop: CancellationToken) -> Vec<Call> {
    let (mut calls, mut last) = (Vec::new(), 0);
    while !stop.is_cancelled() {
        let is_granted = match client.lock(lock.as_str()).acquire().await {
            Ok(guard) => {
                assert!(guard.fencing_token() > last, "tokens rise");
                last = guard.fencing_token();
                guard.release().await.expect("it was held");
                true
            }
            Err(Error::Unavailable(_)) => false,
            Err(error) => panic!("{error:?}"),
        };
        calls.push(Call {
            ended_at: boottime(),
            is_granted,
        });
        sleep(CALL_PAUSE).await;
    }
    calls
}
