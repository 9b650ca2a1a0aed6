//! A rolling deployment that raises the limit of a semaphore: calls of the old and of the new
//! version are granted side by side.

use std::{
    sync::atomic::{AtomicI32, AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::join_all;
use leasehold_proto::v1::{
    ErrorReason, LockRef, SetLockLimitRequest, lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary::{AcquireCall, Client, channel},
    scale::{print_figures, scaled_count},
    status::error_reason,
};
use tokio::{sync::OnceCell, time::sleep};
use tonic::transport::Channel;

const BROKERS: usize = 2;
const INSTANCES: usize = 20;
const CALLS: usize = 1_000;
const OLD_LIMIT: i32 = 2;
const NEW_LIMIT: i32 = 3;
const POOL: &str = "pool";
const TTL: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_secs(60);
/// Time for which an instance works with its permit.
const WORK: Duration = Duration::from_millis(2);

/// Counts of a deployment.
#[derive(Debug, Default)]
struct Deploy {
    /// Number of calls so far, by which the instances are replaced one after another.
    calls: AtomicUsize,
    refused: AtomicUsize,
    held: AtomicI32,
    held_max: AtomicI32,
    /// Client with which the first instance of the new version sets the limit.
    limit_setter: Option<LockServiceClient<Channel>>,
    limit_set: OnceCell<()>,
}

impl Deploy {
    /// Makes the calls of one instance, which is replaced by the new version during them.
    async fn run_instance(&self, number: usize, client: &Client, total: usize) {
        for _ in 0..total / INSTANCES {
            let calls = self.calls.fetch_add(1, Ordering::SeqCst);
            // The new version replaces the first instance after a quarter of all calls, and the
            // last one after three quarters.
            let is_new = calls >= total / 4 + number * total / INSTANCES / 2;
            let limit = if is_new { NEW_LIMIT } else { OLD_LIMIT };
            if is_new {
                self.limit_set
                    .get_or_init(async || self.set_limit().await)
                    .await;
            }
            let call = AcquireCall::new(POOL, TTL, WAIT).with_permits(1, limit);
            match client.acquire(&call).await {
                Ok(held) => {
                    let now = self.held.fetch_add(1, Ordering::SeqCst) + 1;
                    self.held_max.fetch_max(now, Ordering::SeqCst);
                    sleep(WORK).await;
                    self.held.fetch_sub(1, Ordering::SeqCst);
                    client.release(&held).await.expect("it is held");
                }
                Err(status) => {
                    assert_eq!(error_reason(&status), Some(ErrorReason::LimitMismatch));
                    self.refused.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    }

    async fn set_limit(&self) {
        let request = SetLockLimitRequest {
            lock: Some(LockRef {
                name: POOL.to_owned(),
                ..LockRef::default()
            }),
            limit: NEW_LIMIT,
        };
        if let Some(locks) = &self.limit_setter {
            let set = locks.clone().set_lock_limit(request).await;
            set.expect("the lock is a semaphore");
        }
    }

    async fn run(
        deployment: &Deployment,
        total: usize,
        limit_setter: Option<LockServiceClient<Channel>>,
    ) -> Self {
        let deploy = Self {
            limit_setter,
            ..Self::default()
        };
        let clients: Vec<_> = (0..INSTANCES)
            .map(|number| {
                let mut addrs = deployment.addrs();
                addrs.rotate_left(number % BROKERS);
                Client::new(&format!("instance-{number}"), &addrs, 0)
            })
            .collect();
        let instances = clients.iter().enumerate();
        join_all(instances.map(|(number, client)| deploy.run_instance(number, client, total)))
            .await;
        deploy
    }

    fn print(&self, setting: &str) {
        print_figures(&format!(
            "rolling_limit {setting}: calls={} refused={} held_max={}",
            self.calls.load(Ordering::SeqCst),
            self.refused.load(Ordering::SeqCst),
            self.held_max.load(Ordering::SeqCst)
        ));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_deployment_with_another_limit_is_refused_nothing() {
    let deployment = Deployment::start(BROKERS).await;
    let total = scaled_count(CALLS, 200);
    let mismatching = Deploy::run(&deployment, total, None).await;
    mismatching.print("without a set limit");
    assert!(
        mismatching.refused.load(Ordering::SeqCst) > 0,
        "the run would prove nothing"
    );
    let locks = LockServiceClient::new(channel(deployment.brokers[0].addr()));
    let deploy = Deploy::run(&deployment, total, Some(locks)).await;
    deploy.print("with a set limit");
    assert_eq!(deploy.refused.load(Ordering::SeqCst), 0, "refused calls");
    assert_eq!(
        deploy.held_max.load(Ordering::SeqCst),
        NEW_LIMIT,
        "holders at the same time"
    );
}
