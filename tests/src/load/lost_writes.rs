//! Runs in which the store loses its newest writes: the figures and the assertions that all of them
//! share.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;

use crate::{
    client::unary::{AcquireCall, Client},
    clock::boottime,
    history::Fault,
    load::{
        callers::{JudgedFault, LoadRecord, LockKind, lock_name},
        grant_rate::GrantRate,
        losses::{DataLoss, Period},
        mutual_exclusion_oracle::Verdict,
    },
    scale::print_figures,
    status::error_reason,
    until::until,
};

/// Number of brokers of a run.
pub const BROKERS: usize = 2;
/// Number of clients of a run.
pub const CLIENTS: usize = 64;
/// Number of locks of a run.
pub const LOCKS: usize = 80;

/// Returns the kind of a lock: half of them are exclusive.
#[must_use]
pub fn kind_of(lock: usize) -> LockKind {
    [
        LockKind::Exclusive,
        LockKind::Exclusive,
        LockKind::ReadWrite,
        LockKind::Semaphore,
    ][lock % 4]
}

/// A fault by which the store lost its newest writes.
#[derive(Debug, Clone)]
pub struct LostWrites {
    /// Period whose writes may be lost.
    pub data_loss: DataLoss,
    /// Time at which the store was gone: nothing was written from then on.
    pub gone_at: Duration,
    /// Time at which a new call was granted again.
    pub resumed_at: Duration,
    /// Number of calls that were rejected with STORE_RECOVERING until then.
    pub recovering: usize,
    /// Number of locks whose last grant before the fault is lost.
    pub lost_grants: usize,
}

/// Returns the last fencing token of each lock of the load, or 0 without a record.
pub async fn read_last_tokens(client: &Client, locks: usize) -> Vec<i64> {
    let reads = (0..locks).map(|lock| async move {
        let state = client.get_lock(&lock_name(lock)).await;
        let state = state.expect("GetLock works");
        state.map_or(0, |state| state.last_fencing_token)
    });
    join_all(reads).await
}

/// Waits until a lock of the load has been granted since `before` was read, and returns the last
/// tokens then.
pub async fn wait_for_later_tokens(client: &Client, before: &[i64]) -> Vec<i64> {
    until("a grant whose record can be lost", async || {
        let tokens = read_last_tokens(client, before.len()).await;
        let is_later = tokens.iter().zip(before).any(|(now, then)| now > then);
        is_later.then_some(tokens)
    })
    .await
}

impl LostWrites {
    /// Waits until a broker grants a new call again, after the fault that lost these writes.
    /// `tokens` are the last tokens just before the fault.
    pub async fn wait_for_grants(
        data_loss: DataLoss,
        gone_at: Duration,
        tokens: &[i64],
        probe: &Client,
        ttl: Duration,
    ) -> Self {
        let kept = read_last_tokens(probe, tokens.len()).await;
        let lost = tokens.iter().zip(&kept).filter(|(last, kept)| kept < last);
        let (lost_grants, mut recovering) = (lost.count(), 0);
        let name = format!("probe/{:?}", data_loss.started_at);
        let resumed_at = until("grants after the loss", async || {
            let call = AcquireCall::new(&name, ttl, Duration::ZERO);
            let refused = match probe.acquire_at(0, &call).await {
                Ok(_) => return Some(boottime()),
                Err(status) => error_reason(&status),
            };
            recovering += usize::from(refused == Some(ErrorReason::StoreRecovering));
            None
        });
        let resumed_at = resumed_at.await;
        Self {
            data_loss,
            gone_at,
            resumed_at,
            recovering,
            lost_grants,
        }
    }
}

/// Prints the figures of a run, and asserts its results: no overlaps, rising tokens, a cause for
/// each loss, and an effect of each fault. `quarantine` is `Q`.
pub fn assert_lost_writes(
    setting: &str,
    faults: &[LostWrites],
    (record, verdict): (&LoadRecord, &Verdict),
    quarantine: Duration,
    ran: Duration,
) {
    let is_closed = |at: Duration| {
        let closed = |fault: &LostWrites| fault.data_loss.ended_at < at && at < fault.resumed_at;
        faults.iter().any(closed)
    };
    let is_in_fault = |at: Duration| {
        let within = |fault: &LostWrites| fault.data_loss.started_at < at && at < fault.resumed_at;
        faults.iter().any(within)
    };
    for fault in faults {
        let DataLoss {
            started_at,
            ended_at,
        } = fault.data_loss;
        let closed = fault.resumed_at - ended_at;
        print_figures(&format!(
            "{setting}: writes of {} ms lost, lost_grants={} recovering={} grants after {} ms (Q={} ms)",
            (ended_at - started_at).as_millis(),
            fault.lost_grants,
            fault.recovering,
            closed.as_millis(),
            quarantine.as_millis()
        ));
    }
    let fault_time: Duration = faults
        .iter()
        .map(|fault| fault.resumed_at - fault.data_loss.started_at)
        .sum();
    let in_closed = record.calls.iter().filter(|call| is_closed(call.ended_at));
    let in_closed = in_closed.count();
    let granted = record.calls.iter().filter(|call| call.is_granted);
    let quiet = granted.clone().filter(|call| !is_in_fault(call.ended_at));
    let per_second = GrantRate::new(quiet.count(), ran - fault_time);
    print_figures(&format!(
        "{setting}: seconds={} faults={} granted={} calm_grants_per_s={per_second} \
         answered_in_quarantine={in_closed} uses={} overlaps={} regressions={} \
         fence_violations={} caught={}",
        ran.as_secs(),
        faults.len(),
        granted.count(),
        verdict.uses,
        verdict.overlaps,
        verdict.regressions,
        verdict.fence_violations,
        verdict.rejected_writes
    ));
    let data_losses: Vec<_> = faults.iter().map(|fault| fault.data_loss).collect();
    record.assert_losses_have_causes(setting, &data_losses);
    let judged = faults.iter().map(|fault| JudgedFault {
        fault: Fault::DataLoss,
        period: Period {
            started_at: fault.gone_at,
            ended_at: fault.resumed_at,
        },
    });
    record.assert_history(setting, &judged.collect::<Vec<_>>());
    let wrong = (
        verdict.overlaps,
        verdict.regressions,
        verdict.fence_violations,
    );
    assert_eq!(wrong, (0, 0, 0), "overlaps, regressions, fence violations");
    for fault in faults {
        assert!(fault.lost_grants > 0, "no grant was lost: {fault:?}");
        assert!(fault.recovering > 0, "no STORE_RECOVERING: {fault:?}");
    }
    assert!(in_closed > 0, "no call was answered during the quarantine");
    per_second.assert_sufficient();
}
