//! Attachment of leases to lease streams, and the check whether a command may change an attached
//! lease.

use super::BrokerId;

/// Id of one lease stream of one broker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub broker: BrokerId,
    /// Number of the stream among the streams of the process.
    pub epoch: u64,
}

/// The attachment of a lease, or of a waiting call, to a lease stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attachment {
    pub stream: StreamId,
    /// The client's count of attachments over the life of the lease or call, starting at 1. Of two
    /// attachments to different streams, the one with the higher number is newer.
    pub number: u32,
}

/// The lease has a newer attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaleAttachment;

/// Attachment that a renewal or release requires of its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ExpectedAttachment {
    /// No requirement.
    #[default]
    Any,
    /// The lease must not be attached to a stream. Used by unary calls: an attached lease can only
    /// be changed on its stream.
    None,
    /// The lease must be attached to this stream. Commands on behalf of a stream do not change a
    /// lease that has moved.
    Stream(StreamId),
}

impl Attachment {
    /// Returns the new attachment of a lease that is attached to `current` and requested to move to
    /// `incoming`.
    ///
    /// # Errors
    /// [`StaleAttachment`] if `incoming` is older or is no attachment.
    pub fn supersede(
        current: Option<Self>,
        incoming: Option<Self>,
    ) -> Result<Option<Self>, StaleAttachment> {
        match (current, incoming) {
            (None, incoming) => Ok(incoming),
            (Some(current), Some(incoming)) if current.stream == incoming.stream => {
                let number = current.number.max(incoming.number);
                Ok(Some(Self { number, ..incoming }))
            }
            (Some(current), Some(incoming)) if current.number < incoming.number => {
                Ok(Some(incoming))
            }
            (Some(_), Some(_) | None) => Err(StaleAttachment),
        }
    }
}

impl ExpectedAttachment {
    /// Returns true if a lease attached to `stream` does not meet the requirement.
    pub fn rejects(self, stream: Option<StreamId>) -> bool {
        match self {
            Self::Any => false,
            Self::None => stream.is_some(),
            Self::Stream(expected) => stream != Some(expected),
        }
    }
}
