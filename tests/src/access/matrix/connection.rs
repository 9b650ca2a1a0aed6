//! Connection of a role to a broker, with the credential of its calls.

use leasehold_proto::v1::{
    AcquireAllResponse, AcquireResponse, GetLockRequest, GetLockResponse, Lease, Lock, LockRef,
};
use prost::Message;
use tonic::{Code, transport::Channel};

use super::{
    api_entries::ApiEntry,
    raw_call::{Reply, ReplyMode, call_method},
    requests::{acquire_all_request, acquire_request, owner, target},
};

pub const ACQUIRE: &str = "/leasehold.v1.LockService/Acquire";
pub const ACQUIRE_ALL: &str = "/leasehold.v1.LockService/AcquireAll";
pub const LIST: &str = "/leasehold.v1.InspectionService/ListLocks";
const GET_LOCK: &str = "/leasehold.v1.InspectionService/GetLock";

/// The channels of a role to its broker, and its credential.
#[derive(Debug, Clone)]
pub struct RoleConnection {
    /// Channel to the listener of the API.
    pub api: Channel,
    /// Channel to the admin listener.
    pub admin: Channel,
    /// The `authorization` header of the calls.
    pub authorization: Option<String>,
}

impl RoleConnection {
    /// Sends an encoded message to the method of an API entry.
    pub async fn call_entry(&self, entry: &ApiEntry, message: Vec<u8>) -> Reply {
        let operates = entry.service() == "AdminService";
        let channel = if operates { &self.admin } else { &self.api };
        let header = self.authorization.as_deref();
        call_method(
            channel,
            &entry.path(),
            header,
            (message, entry.reply_mode()),
        )
        .await
    }

    /// Sends one message to a method of the API and returns the decoded reply.
    ///
    /// # Errors
    /// The reply with the rejection.
    pub async fn call<R: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
    ) -> Result<R, Reply> {
        let header = self.authorization.as_deref();
        let call = (request.encode_to_vec(), ReplyMode::UntilEnd);
        let reply = call_method(&self.api, path, header, call).await;
        match (reply.code, reply.messages.first()) {
            (Code::Ok, Some(message)) => Ok(R::decode(message.as_slice()).expect("an answer")),
            (_, _) => Err(reply),
        }
    }

    /// Acquires these locks under one lease.
    ///
    /// # Errors
    /// The reply with the rejection.
    pub async fn acquire(&self, locks: &[LockRef]) -> Result<Lease, Reply> {
        let lease = match locks {
            [one] => {
                let request = acquire_request(target(one), owner("matrix"));
                let taken: AcquireResponse = self.call(ACQUIRE, &request).await?;
                taken.lease
            }
            several => {
                let taken: AcquireAllResponse = self
                    .call(ACQUIRE_ALL, &acquire_all_request(several))
                    .await?;
                taken.lease
            }
        };
        Ok(lease.expect("a grant has a lease"))
    }

    /// Inspects a lock.
    ///
    /// # Errors
    /// The reply with the rejection.
    pub async fn get_lock(&self, lock: &LockRef) -> Result<Lock, Reply> {
        let request = GetLockRequest {
            namespace: lock.namespace.clone(),
            name: lock.name.clone(),
        };
        let header: GetLockResponse = self.call(GET_LOCK, &request).await?;
        Ok(header.lock.expect("a lock"))
    }
}
