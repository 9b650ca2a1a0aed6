//! Repeats of acquires, renewals and releases whose replies were lost, at the same or another
//! broker. Each acquire creates one lease, and a rollback of the first copy has no effect on the
//! repeat.

#![expect(
    clippy::disallowed_methods,
    reason = "a call that stays open is a task of the test"
)]
#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::broker::deployment::Deployment;
use leasehold_tests::client::unary::{AcquireCall, Client, HeldLease};
use leasehold_tests::net::http2_proxy::{Http2Proxy, ProxyMode};
use leasehold_tests::scale::{print_figures, scaled_count};
use leasehold_tests::status::{error_reason, is_transport_error};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

const BATCH: usize = 50;
const VERBS: usize = 3;
const STOPPED_EVERY: usize = 10;
const TTL: Duration = Duration::from_secs(30);

/// Endpoint indexes of the client: the first broker behind a proxy, the second broker, and the
/// first broker without the proxy.
const PROXIED: usize = 0;
const OTHER: usize = 1;
const DIRECT: usize = 2;

#[derive(Debug, Clone)]
enum Call {
    Acquire(AcquireCall),
    Renew(HeldLease),
    Release(HeldLease),
}

#[derive(Debug, Clone)]
enum Answer {
    Held(HeldLease),
    Released { already: bool },
}

type Open = Vec<AbortOnDropHandle<Result<Answer, Status>>>;

/// Fate of the late first copies of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LateCopy {
    /// The calls stay open and receive a response.
    Answered,
    /// The calls are cancelled and their connection is cut before the broker reads them.
    Dropped,
}

struct Run {
    deployment: Deployment,
    proxy: Http2Proxy,
    client: Client,
    calls: usize,
    replies_cut: usize,
    late_answered: usize,
    late_dropped: usize,
}

#[tokio::test(flavor = "multi_thread")]
async fn repeats_after_lost_replies_make_one_lease_each() {
    let mut run = Run::start().await;
    let batches = scaled_count(10_000, 1_000)
        .div_ceil(BATCH * VERBS)
        .next_multiple_of(STOPPED_EVERY);
    for batch in 0..batches {
        let locks: Vec<_> = (0..BATCH)
            .map(|index| format!("cut-{batch}-{index}"))
            .collect();
        if batch % STOPPED_EVERY == 0 {
            let (answered, dropped) = locks.split_at(BATCH / 2);
            run.stopped_batch(answered, LateCopy::Answered).await;
            run.stopped_batch(dropped, LateCopy::Dropped).await;
        } else {
            run.cut_batch(&locks, if batch % 2 == 0 { DIRECT } else { OTHER })
                .await;
        }
    }
    let Run {
        calls,
        replies_cut,
        late_answered,
        late_dropped,
        ..
    } = run;
    print_figures(&format!(
        "idempotence: calls={calls} replies_cut={replies_cut} late_copies_answered={late_answered} \
         late_copies_dropped={late_dropped} double_leases=0 lost_leases=0"
    ));
    assert!(
        replies_cut > 0 && late_answered > 0 && late_dropped > 0,
        "every fault took place"
    );
    assert!(
        (late_answered + late_dropped) * STOPPED_EVERY >= calls,
        "a tenth was late"
    );
}

impl Run {
    async fn start() -> Self {
        let deployment = Deployment::start(2).await;
        let addrs = deployment.addrs();
        let proxy = Http2Proxy::start(addrs[0]).await;
        let client = Client::new("careful", &[proxy.addr(), addrs[1], addrs[0]], DIRECT);
        let (calls, replies_cut, late_answered, late_dropped) = (0, 0, 0, 0);
        Self {
            deployment,
            proxy,
            client,
            calls,
            replies_cut,
            late_answered,
            late_dropped,
        }
    }

    /// Cuts every reply and repeats the calls at `again_at`.
    async fn cut_batch(&mut self, locks: &[String], again_at: usize) {
        let acquires = acquires(locks);
        self.cut_replies(&acquires).await;
        let first = join_all(locks.iter().map(|lock| self.holder(lock))).await;
        let held = self.acquire_all(again_at, &acquires).await;
        for (held, first) in held.iter().zip(first) {
            assert_eq!(
                Some(identity(held)),
                first,
                "the repeat gets the lease of the first copy"
            );
        }
        self.assert_all_held(&held).await;

        let renews: Vec<_> = held.iter().cloned().map(Call::Renew).collect();
        self.cut_replies(&renews).await;
        assert_same_leases(&held, &self.acquire_all(again_at, &renews).await);

        let releases: Vec<_> = held.iter().cloned().map(Call::Release).collect();
        self.cut_replies(&releases).await;
        for answer in self.all(again_at, &releases).await {
            let answer = answer.unwrap();
            assert!(
                matches!(answer, Answer::Released { already: true }),
                "done once: {answer:?}"
            );
        }
        self.assert_all_free(locks).await;
    }

    /// Pauses the first broker before it reads the first copies, so that they arrive after the
    /// repeats.
    async fn stopped_batch(&mut self, locks: &[String], fate: LateCopy) {
        let acquires = acquires(locks);
        let late = self.stop_and_send(&acquires).await;
        let held = self.acquire_all(OTHER, &acquires).await;
        assert_same_leases_if_answered(&held, self.resume(late, fate).await);
        self.assert_all_held(&held).await;

        let renews: Vec<_> = held.iter().cloned().map(Call::Renew).collect();
        let late = self.stop_and_send(&renews).await;
        assert_same_leases(&held, &self.acquire_all(OTHER, &renews).await);
        assert_same_leases_if_answered(&held, self.resume(late, fate).await);
        self.assert_all_held(&held).await;

        self.late_releases(locks, &held, fate).await;
        self.late_acquires_after_release(locks, fate).await;
    }

    /// Asserts that a late copy of a release has no effect on the next holder.
    async fn late_releases(&mut self, locks: &[String], held: &[HeldLease], fate: LateCopy) {
        let releases: Vec<_> = held.iter().cloned().map(Call::Release).collect();
        let late = self.stop_and_send(&releases).await;
        for answer in self.all(OTHER, &releases).await {
            assert!(matches!(
                answer.unwrap(),
                Answer::Released { already: false }
            ));
        }
        let rivals = self.acquire_all(OTHER, &acquires(locks)).await;
        for answer in self.resume(late, fate).await.into_iter().flatten() {
            assert!(
                matches!(answer, Answer::Released { already: true }),
                "got {answer:?}"
            );
        }
        self.assert_all_held(&rivals).await;
        self.all(
            OTHER,
            &rivals.into_iter().map(Call::Release).collect::<Vec<_>>(),
        )
        .await;
        self.assert_all_free(locks).await;
    }

    /// Asserts that a late copy of an acquire grants nothing after its repeat was granted and
    /// released.
    async fn late_acquires_after_release(&mut self, locks: &[String], fate: LateCopy) {
        let acquires = acquires(locks);
        let late = self.stop_and_send(&acquires).await;
        let held = self.acquire_all(OTHER, &acquires).await;
        self.all(
            OTHER,
            &held.into_iter().map(Call::Release).collect::<Vec<_>>(),
        )
        .await;
        for answer in self.resume(late, fate).await {
            let status = answer.expect_err("the lease is over");
            let over = error_reason(&status) == Some(ErrorReason::LeaseExpired);
            assert!(
                over || is_transport_error(&status),
                "a late acquire got {status}"
            );
        }
        self.assert_all_free(locks).await;
    }

    async fn cut_replies(&mut self, calls: &[Call]) {
        self.connected().await;
        self.proxy.set_mode(ProxyMode::DropReplies);
        let before = self.proxy.dropped_replies();
        let open = self.open(calls);
        self.proxy
            .wait_for_dropped_replies(before + calls.len())
            .await;
        assert!(
            self.proxy.close_connections().await > 0,
            "a connection was cut"
        );
        self.proxy.set_mode(ProxyMode::Forward);
        for answer in join_all(open).await {
            let status = answer.unwrap().expect_err("the reply is lost");
            assert!(
                is_transport_error(&status),
                "the reply was not cut: {status}"
            );
        }
        self.calls += calls.len();
        self.replies_cut += calls.len();
    }

    /// Pauses the first broker, sends the calls, and waits until the proxy has forwarded them.
    async fn stop_and_send(&mut self, calls: &[Call]) -> Open {
        self.connected().await;
        self.deployment.brokers[0].process().pause().await;
        let before = self.proxy.requests();
        let open = self.open(calls);
        self.proxy.wait_for_requests(before + calls.len()).await;
        self.calls += calls.len();
        open
    }

    /// Waits until a connection through the proxy is open again.
    async fn connected(&self) {
        let probe = || self.client.get_lock_at(PROXIED, "nobody's");
        while probe()
            .await
            .is_err_and(|status| is_transport_error(&status))
        {}
    }

    /// Resumes the paused broker and returns the results of the late calls.
    async fn resume(&mut self, late: Open, fate: LateCopy) -> Vec<Result<Answer, Status>> {
        let count = late.len();
        assert!(
            late.iter().all(|call| !call.is_finished()),
            "a stopped broker answers nothing"
        );
        if fate == LateCopy::Dropped {
            drop(late);
            self.proxy.close_connections().await;
            self.deployment.brokers[0].process().resume();
            self.late_dropped += count;
            return Vec::new();
        }
        self.deployment.brokers[0].process().resume();
        let answers: Vec<_> = join_all(late)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let answered = |answer: &&Result<_, _>| !answer.as_ref().is_err_and(is_transport_error);
        self.late_answered += answers.iter().filter(answered).count();
        answers
    }

    fn open(&self, calls: &[Call]) -> Open {
        let open = calls
            .iter()
            .map(|call| send(self.client.clone(), PROXIED, call.clone()));
        open.map(|call| AbortOnDropHandle::new(tokio::spawn(call)))
            .collect()
    }

    async fn all(&self, at: usize, calls: &[Call]) -> Vec<Result<Answer, Status>> {
        join_all(
            calls
                .iter()
                .map(|call| send(self.client.clone(), at, call.clone())),
        )
        .await
    }

    async fn acquire_all(&self, at: usize, calls: &[Call]) -> Vec<HeldLease> {
        let answers = self.all(at, calls).await.into_iter();
        answers.map(|answer| lease(answer.unwrap())).collect()
    }

    async fn holder(&self, lock: &str) -> Option<(String, i64)> {
        let lock = self.client.get_lock_at(OTHER, lock).await.ok()?;
        assert!(
            lock.holders.len() <= 1 && lock.queue_length == 0,
            "one holder, no ghost: {lock:?}"
        );
        lock.holders
            .into_iter()
            .next()
            .map(|holder| (holder.lease_id, holder.fencing_token))
    }

    /// Asserts that all leases are held. The renewals at both brokers also wait for earlier
    /// commands of the first broker.
    async fn assert_all_held(&self, held: &[HeldLease]) {
        for at in [DIRECT, OTHER] {
            let renews: Vec<_> = held.iter().cloned().map(Call::Renew).collect();
            assert_same_leases(held, &self.acquire_all(at, &renews).await);
        }
        for held in held {
            let holder = self
                .holder(&held.lease.grants[0].target.as_ref().unwrap().name)
                .await;
            assert_eq!(holder, Some(identity(held)), "the lock's one holder");
        }
    }

    async fn assert_all_free(&self, locks: &[String]) {
        let probes = locks
            .iter()
            .map(|lock| self.client.get_lock_at(DIRECT, lock));
        join_all(probes).await;
        for lock in locks {
            assert_eq!(self.holder(lock).await, None, "free: {lock}");
        }
    }
}

async fn send(client: Client, at: usize, call: Call) -> Result<Answer, Status> {
    match call {
        Call::Acquire(call) => client.acquire_at(at, &call).await.map(Answer::Held),
        Call::Renew(held) => client.renew_at(at, &held).await.map(Answer::Held),
        Call::Release(held) => {
            let reply = client.release_at(at, &held).await?;
            Ok(Answer::Released {
                already: reply.already_released,
            })
        }
    }
}

fn acquires(locks: &[String]) -> Vec<Call> {
    let call = |lock: &String| Call::Acquire(AcquireCall::new(lock, TTL, Duration::ZERO));
    locks.iter().map(call).collect()
}

fn lease(answer: Answer) -> HeldLease {
    match answer {
        Answer::Held(held) => held,
        Answer::Released { .. } => panic!("a release gives no lease"),
    }
}

fn identity(held: &HeldLease) -> (String, i64) {
    (held.lease.lease_id.clone(), held.token())
}

fn assert_same_leases(held: &[HeldLease], again: &[HeldLease]) {
    let (held, again) = (held.iter().map(identity), again.iter().map(identity));
    assert!(
        held.eq(again),
        "a repeat gives the same lease with the same token"
    );
}

fn assert_same_leases_if_answered(held: &[HeldLease], late: Vec<Result<Answer, Status>>) {
    for (held, answer) in held.iter().zip(late) {
        match answer {
            Ok(answer) => assert_eq!(identity(held), identity(&lease(answer)), "one lease"),
            Err(status) => assert!(is_transport_error(&status), "a late copy got {status}"),
        }
    }
}
