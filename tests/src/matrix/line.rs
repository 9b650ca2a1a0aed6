//! How somebody calls a broker, and what is shown with each call.

use leasehold_proto::v1::{
    AcquireAllResponse, AcquireResponse, GetLockRequest, GetLockResponse, Lease, Lock, LockRef,
};
use prost::Message;
use tonic::{Code, transport::Channel};

use super::{
    ask::{acquire, acquire_all, owner, target},
    walk::Entry,
    wire::{Listens, Reply, exchange},
};

/// Takes one lock.
pub const ACQUIRE: &str = "/leasehold.v1.LockService/Acquire";
/// Takes several.
pub const ACQUIRE_ALL: &str = "/leasehold.v1.LockService/AcquireAll";
/// Lists locks.
pub const LIST: &str = "/leasehold.v1.InspectionService/ListLocks";
const GET_LOCK: &str = "/leasehold.v1.InspectionService/GetLock";

/// How a role reaches its broker, and what it shows there.
#[derive(Debug, Clone)]
pub struct Line {
    /// The listener of the API.
    pub api: Channel,
    /// That of operators.
    pub admin: Channel,
    /// The header of its calls.
    pub authorization: Option<String>,
}

impl Line {
    /// Calls what an entry of the API stands for.
    pub async fn ask(&self, entry: &Entry, message: Vec<u8>) -> Reply {
        let operates = entry.service() == "AdminService";
        let channel = if operates { &self.admin } else { &self.api };
        let shown = self.authorization.as_deref();
        exchange(channel, &entry.path(), shown, (message, entry.listens())).await
    }

    /// Calls the API with one message; what is answered, or why it is refused.
    ///
    /// # Errors
    /// The refusal.
    pub async fn call<R: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
    ) -> Result<R, Reply> {
        let shown = self.authorization.as_deref();
        let call = (request.encode_to_vec(), Listens::ToTheEnd);
        let reply = exchange(&self.api, path, shown, call).await;
        match (reply.code, reply.messages.first()) {
            (Code::Ok, Some(message)) => Ok(R::decode(message.as_slice()).expect("an answer")),
            (_, _) => Err(reply),
        }
    }

    /// Takes these locks under one lease.
    ///
    /// # Errors
    /// The refusal.
    pub async fn take(&self, locks: &[LockRef]) -> Result<Lease, Reply> {
        let lease = match locks {
            [one] => {
                let request = acquire(target(one), owner("matrix"));
                let taken: AcquireResponse = self.call(ACQUIRE, &request).await?;
                taken.lease
            }
            several => {
                let taken: AcquireAllResponse =
                    self.call(ACQUIRE_ALL, &acquire_all(several)).await?;
                taken.lease
            }
        };
        Ok(lease.expect("a grant has a lease"))
    }

    /// Looks at a lock.
    ///
    /// # Errors
    /// The refusal.
    pub async fn look(&self, lock: &LockRef) -> Result<Lock, Reply> {
        let request = GetLockRequest {
            namespace: lock.namespace.clone(),
            name: lock.name.clone(),
        };
        let shown: GetLockResponse = self.call(GET_LOCK, &request).await?;
        Ok(shown.lock.expect("a lock"))
    }
}
