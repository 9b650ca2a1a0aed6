//! Responses that contain a lease. The lease is released unless the complete response is sent.

use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Response;

use crate::broker::Delivery;

/// A response extension that confirms the delivery once the complete response is sent. If it is
/// dropped before, the client has disconnected.
#[derive(Clone)]
pub struct DeliveryConfirmation(Arc<Mutex<Option<Delivery>>>);

impl DeliveryConfirmation {
    /// Creates a response that contains the lease.
    pub(super) fn response<T>(message: T, delivery: Delivery) -> Response<T> {
        let mut response = Response::new(message);
        let delivery = Arc::new(Mutex::new(Some(delivery)));
        response.extensions_mut().insert(Self(delivery));
        response
    }

    /// Confirms that the complete response was sent.
    pub fn confirm(&self) {
        let delivery = self.0.lock().take();
        if let Some(delivery) = delivery {
            delivery.confirm();
        }
    }
}
