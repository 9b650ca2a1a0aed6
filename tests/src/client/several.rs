//! Several locks at once, all or none.

use leasehold_proto::v1::{AcquireAllRequest, LockTarget, Owner};
use tonic::Status;

use super::{AcquireCall, Client, Held};
use crate::clock::boottime;

impl Client {
    /// Acquires all of these, repeating while the outcome is unknown. The call's own lock and mode
    /// do not count.
    pub async fn acquire_all(&self, names: &[String], call: &AcquireCall) -> Result<Held, Status> {
        let mut repeats = self.repeats(call.wait);
        let mut held = loop {
            let attempt = self.acquire_all_at(repeats.at(), names, call);
            if let Some(result) = repeats.judge(attempt).await {
                break result?;
            }
        };
        if boottime() - held.sent > held.ttl() / 2 {
            self.renew(&mut held).await?;
        }
        Ok(held)
    }

    /// One attempt at one endpoint.
    pub async fn acquire_all_at(
        &self,
        at: usize,
        names: &[String],
        call: &AcquireCall,
    ) -> Result<Held, Status> {
        let sent = boottime();
        let targets = names.iter().map(|name| LockTarget {
            name: name.clone(),
            ..LockTarget::default()
        });
        let request = AcquireAllRequest {
            targets: targets.collect(),
            owner: Some(Owner {
                id: self.name.clone(),
                ..Owner::default()
            }),
            ttl: Some(call.ttl.try_into().expect("a ttl of seconds")),
            wait_timeout: Some(call.wait.try_into().expect("a wait of seconds")),
            request_id: call.request_id.clone(),
            ..AcquireAllRequest::default()
        };
        let response = self.locks(at).acquire_all(request).await?.into_inner();
        let lease = response
            .lease
            .ok_or_else(|| Status::data_loss("no lease"))?;
        Ok(Held { lease, sent })
    }
}
