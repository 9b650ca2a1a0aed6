//! Calls for several locks under one lease.

use std::time::Duration;

use leasehold_proto::v1::{
    AcquireAllRequest, AcquireRequest, Lease, LockRef, LockTarget, Owner, ReleaseRequest,
    ReleaseResponse,
};
use tonic::Status;

use super::{AcquireCall, Client, HeldLease, receive_lease};
use crate::clock::boottime;

impl Client {
    /// Acquires all of these locks, and repeats the call while its outcome is unknown. The lock and
    /// the mode of `call` are ignored.
    pub async fn acquire_all(
        &self,
        names: &[String],
        call: &AcquireCall,
    ) -> Result<HeldLease, Status> {
        let mut repeats = self.retry_loop(call.wait);
        let mut held = loop {
            let attempt = self.acquire_all_at(repeats.endpoint(), names, call);
            if let Some(result) = repeats.run_attempt(attempt).await {
                break result?;
            }
        };
        if boottime() - held.sent_at > held.ttl() / 2 {
            self.renew(&mut held).await?;
        }
        Ok(held)
    }

    /// Acquires all of these targets, and repeats the call while its outcome is unknown. Does not
    /// renew the lease, however long the call took.
    pub async fn acquire_targets(
        &self,
        targets: &[LockTarget],
        call: &AcquireCall,
    ) -> Result<HeldLease, Status> {
        let request = AcquireAllRequest {
            targets: targets.to_vec(),
            ..self.acquire_all_request(&[], call)
        };
        let mut repeats = self.retry_loop(call.wait);
        loop {
            let attempt = self.send_acquire_all(repeats.endpoint(), call, request.clone());
            if let Some(result) = repeats.run_attempt(attempt).await {
                return result;
            }
        }
    }

    /// Attempts to acquire all of these locks once, at one endpoint.
    pub async fn acquire_all_at(
        &self,
        at: usize,
        names: &[String],
        call: &AcquireCall,
    ) -> Result<HeldLease, Status> {
        self.send_acquire_all(at, call, self.acquire_all_request(names, call))
            .await
    }

    async fn send_acquire_all(
        &self,
        at: usize,
        call: &AcquireCall,
        request: AcquireAllRequest,
    ) -> Result<HeldLease, Status> {
        let recorded = self.record_acquire(at, &request.targets, call, None);
        let mut locks = self.locks(at);
        let reply = Box::pin(async { Ok(locks.acquire_all(request).await?.into_inner().lease) });
        receive_lease(recorded, reply).await
    }

    /// Returns the request that this client sends for a call.
    #[must_use]
    pub fn acquire_all_request(&self, names: &[String], call: &AcquireCall) -> AcquireAllRequest {
        let targets = names.iter().map(|name| LockTarget {
            name: name.clone(),
            ..LockTarget::default()
        });
        AcquireAllRequest {
            targets: targets.collect(),
            owner: Some(Owner {
                id: self.name.clone(),
                ..Owner::default()
            }),
            ttl: Some(call.ttl.try_into().expect("a ttl of seconds")),
            wait_timeout: Some(call.wait.try_into().expect("a wait of seconds")),
            request_id: call.request_id.clone(),
            ..AcquireAllRequest::default()
        }
    }

    /// Adds a lock to a lease, and repeats the call while its outcome is unknown.
    pub async fn acquire_under(
        &self,
        call: &AcquireCall,
        lease: &Lease,
    ) -> Result<HeldLease, Status> {
        let mut repeats = self.retry_loop(call.wait);
        loop {
            let attempt = self.acquire_under_at(repeats.endpoint(), call, lease);
            if let Some(result) = repeats.run_attempt(attempt).await {
                return result;
            }
        }
    }

    /// Releases one lock of a lease, and repeats the call while its outcome is unknown.
    pub async fn release_lock(&self, lease: &Lease, name: &str) -> Result<ReleaseResponse, Status> {
        let mut repeats = self.retry_loop(Duration::ZERO);
        loop {
            let attempt = self.release_lock_at(repeats.endpoint(), lease, name);
            if let Some(result) = repeats.run_attempt(attempt).await {
                return result;
            }
        }
    }

    /// Attempts once, at one endpoint, to add a lock to a lease.
    pub async fn acquire_under_at(
        &self,
        at: usize,
        call: &AcquireCall,
        lease: &Lease,
    ) -> Result<HeldLease, Status> {
        let request = AcquireRequest {
            under: Some(lease.clone()),
            ..self.acquire_request(call)
        };
        let recorded = self.record_acquire(at, request.target.as_slice(), call, Some(lease));
        let mut locks = self.locks(at);
        let reply = Box::pin(async { Ok(locks.acquire(request).await?.into_inner().lease) });
        receive_lease(recorded, reply).await
    }

    /// Attempts once, at one endpoint, to release the entry of a lock that a call created.
    pub async fn release_entry_at(
        &self,
        at: usize,
        lease: &Lease,
        call: &AcquireCall,
    ) -> Result<ReleaseResponse, Status> {
        let request = ReleaseRequest {
            lease: Some(lease.clone()),
            lock: Some(LockRef {
                name: call.lock.clone(),
                ..LockRef::default()
            }),
            request_id: call.request_id.clone(),
        };
        Ok(self.locks(at).release(request).await?.into_inner())
    }

    /// Attempts once, at one endpoint, to release one lock of a lease.
    pub async fn release_lock_at(
        &self,
        at: usize,
        lease: &Lease,
        name: &str,
    ) -> Result<ReleaseResponse, Status> {
        let request = ReleaseRequest {
            lease: Some(lease.clone()),
            lock: Some(LockRef {
                name: name.to_owned(),
                ..LockRef::default()
            }),
            request_id: String::new(),
        };
        self.send_release(at, request).await
    }
}
