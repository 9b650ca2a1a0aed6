//! Calls of the Rust client for locks that nobody else wants, so that a run is not idle.

use std::{net::SocketAddr, time::Duration};

use leasehold::{Client, Error};
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{clock::boottime, sdk_site::connect};

const CLIENTS: usize = 4;
const CALLERS_EACH: usize = 5;
const BETWEEN_CALLS: Duration = Duration::from_millis(20);

/// One lock taken and given back.
#[derive(Debug)]
pub struct Call {
    /// When it was given back, or could not be taken.
    pub ended: Duration,
    /// Otherwise no broker was available.
    pub is_granted: bool,
}

/// Callers of a few clients that call until stopped.
pub async fn start(
    brokers: &[SocketAddr],
    stop: &CancellationToken,
) -> Vec<AbortOnDropHandle<Vec<Call>>> {
    let mut callers = Vec::new();
    for index in 0..CLIENTS {
        let mut addrs = brokers.to_vec();
        addrs.rotate_left(index % 2);
        let client = connect(&format!("calling-{index}"), &addrs).await;
        for caller in 0..CALLERS_EACH {
            let call = call(
                client.clone(),
                format!("called-{index}-{caller}"),
                stop.clone(),
            );
            callers.push(AbortOnDropHandle::new(tokio::spawn(call)));
        }
    }
    callers
}

/// Takes a lock that nobody else wants and gives it back, again and again.
async fn call(client: Client, lock: String, stop: CancellationToken) -> Vec<Call> {
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
            ended: boottime(),
            is_granted,
        });
        sleep(BETWEEN_CALLS).await;
    }
    calls
}
