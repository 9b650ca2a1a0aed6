//! A stream must not outlive its credential: a newer one is shown as soon as it is there.

use std::time::Duration;

use leasehold_proto::v1::{RefreshCredential, hold_request::Message as Request};
use tracing::{debug, warn};

use super::{Keeper, link::About};
use crate::endpoint::Credential;

const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Keeper {
    /// Looks whether there is another credential than the one that the stream has.
    pub(super) fn watch_credential(&mut self, now: Duration) {
        let Some(link) = &mut self.link else { return };
        if now < link.looked_at + LOOK_EVERY || link.is_showing() {
            return;
        }
        link.looked_at = now;
        // A file that cannot be read may be about to be replaced.
        let Ok(Some(newest)) = self.brokers.source.now() else {
            return;
        };
        if link.connection.credential.as_ref() != Some(&newest) {
            let authorization = newest.authorization();
            link.call(About::Credential(newest), |call_id| {
                Request::RefreshCredential(RefreshCredential {
                    call_id,
                    authorization,
                })
            });
        }
    }

    pub(super) fn credential_accepted(&mut self, shown: Credential) {
        debug!("the stream goes on with another credential");
        if let Some(link) = &mut self.link {
            link.connection.credential = Some(shown);
        }
    }

    /// The broker may hear of its key, or of it, in a moment: it is shown again.
    pub(super) fn credential_refused(&self, why: &str) {
        warn!(why, "a broker does not accept another credential");
    }
}
