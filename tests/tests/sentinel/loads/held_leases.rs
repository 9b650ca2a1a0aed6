//! Leases that are held on streams while the master is killed again and again. Each lease that the
//! replicas have survives each fail-over.

use std::{collections::HashSet, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::hold_response::Message as Response;
use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess},
    client::stream::StreamClient,
    clock::boottime,
    scale::{full_scale_count, print_figures, scaled_count},
    sentinel::deployment::{MasterFault, SentinelDeployment, SentinelOptions},
};

const BROKERS: usize = 2;
/// Number of streams at full scale.
const STREAMS: usize = 10;
/// Maximum number of leases of a stream.
const EACH: usize = 1_000;
const FAIL_OVERS: usize = 20;
const TTL: Duration = Duration::from_secs(60);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// The leases of one stream.
struct HeldLeases {
    stream: StreamClient,
    lease_ids: HashSet<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn no_replicated_lease_ends_when_the_master_is_killed() {
    let mut redis = SentinelDeployment::start(SentinelOptions::default()).await;
    let options = BrokerOptions::for_store(redis.url());
    options.init_store().await;
    let brokers = BrokerProcess::start_many(&options, BROKERS).await;
    let mut held = Vec::new();
    for index in 0..scaled_count(STREAMS, 1) {
        held.push(HeldLeases::acquire(&brokers[index % BROKERS], index).await);
    }
    let all = held.len() * EACH;
    // One at the default scale.
    let fail_overs = full_scale_count(FAIL_OVERS);
    let mut ended = 0;
    for _ in 0..fail_overs {
        redis.wait_until_ready().await;
        let master = redis.master().await;
        let killed_at = boottime();
        redis.cause(MasterFault::Killed, master).await;
        let next = redis.wait_for_failover(master).await;
        let switched_at = boottime();
        let renewed = held
            .iter_mut()
            .map(|one| one.wait_for_renewals(switched_at));
        ended += join_all(renewed).await.into_iter().sum::<usize>();
        print_figures(&format!(
            "held_leases: leases={all} switched after {} ms, all renewed {} ms later, ended={ended}",
            (switched_at - killed_at).as_millis(),
            (boottime() - switched_at).as_millis()
        ));
        redis.repair(MasterFault::Killed, master, next).await;
    }
    print_figures(&format!(
        "held_leases: leases={all} fail_overs={fail_overs} ended={ended}"
    ));
    assert_eq!(ended, 0, "of {all} leases");
}

impl HeldLeases {
    async fn acquire(broker: &BrokerProcess, index: usize) -> Self {
        let mut stream = StreamClient::open(broker.addr()).await;
        let names = (0..EACH).map(|lock| format!("held/{index}/{lock}"));
        let leases = stream.acquire_each(names, TTL).await;
        stream.start_heartbeats(HEARTBEAT_INTERVAL);
        Self {
            stream,
            lease_ids: leases.into_iter().map(|lease| lease.lease_id).collect(),
        }
    }

    /// Waits until each lease has ended, or was renewed by a heartbeat after this time. Returns the
    /// number of leases that have ended.
    async fn wait_for_renewals(&mut self, since: Duration) -> usize {
        let mut open = self.lease_ids.clone();
        let before = open.len();
        while !open.is_empty() {
            match self.stream.next_lease_message().await {
                Some(Response::Ack(ack)) => {
                    if self.stream.heartbeat_sent_at(ack.sequence) >= since {
                        for renewed in ack.leases {
                            open.remove(&renewed.lease_id);
                        }
                    }
                }
                Some(Response::Ended(ended)) => {
                    open.remove(&ended.lease_id);
                    self.lease_ids.remove(&ended.lease_id);
                }
                other => panic!("{other:?} instead of an acknowledgement"),
            }
        }
        before - self.lease_ids.len()
    }
}
