//! Answers that tell of a lease: what was taken is given back if the answer is not sent whole.

use std::sync::{Arc, Mutex, PoisonError};

use tonic::Response;

use crate::broker::Delivery;

/// An extension of an answer: what to do when all of it was sent. Dropped before, the caller is gone.
#[derive(Clone)]
pub struct OnDelivery(Arc<Mutex<Option<Delivery>>>);

impl OnDelivery {
    /// An answer that tells of the lease.
    pub(super) fn with<T>(message: T, delivery: Delivery) -> Response<T> {
        let mut answer = Response::new(message);
        let delivery = Arc::new(Mutex::new(Some(delivery)));
        answer.extensions_mut().insert(Self(delivery));
        answer
    }

    /// All of the answer was sent.
    pub fn done(&self) {
        let delivery = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(delivery) = delivery {
            delivery.done();
        }
    }
}
