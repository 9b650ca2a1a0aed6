//! Refresh of the stream's credential, so that a stream can outlive the credential it was opened
//! with.

use std::time::Duration;

use leasehold_proto::v1::{RefreshCredential, hold_request::Message as Request};
use tracing::{debug, warn};

use super::{Session, stream_connection::CallKind};
use crate::endpoint::Credential;

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Session {
    /// Sends the current credential to the broker if it differs from that of the stream.
    pub(super) fn refresh_credential(&mut self, now: Duration) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        if now < stream.credential_checked_at + CHECK_INTERVAL || stream.is_refreshing_credential()
        {
            return;
        }
        stream.credential_checked_at = now;
        // An unreadable file may be about to be replaced.
        let Ok(Some(newest)) = self.endpoints.credentials.current() else {
            return;
        };
        if stream.connection.credential.as_ref() != Some(&newest) {
            let authorization = newest.authorization();
            stream.send_call(CallKind::Credential(newest), |call_id| {
                Request::RefreshCredential(RefreshCredential {
                    call_id,
                    authorization,
                })
            });
        }
    }

    pub(super) fn on_credential_accepted(&mut self, credential: Credential) {
        debug!("the lease stream uses the new credential");
        if let Some(stream) = &mut self.stream {
            stream.connection.credential = Some(credential);
        }
    }

    /// Logs the rejection. The credential is sent again, because the broker may receive its key or
    /// its rules later.
    pub(super) fn on_credential_rejected(&self, reason: &str) {
        warn!(why = reason, "a broker rejected the new credential");
    }
}
