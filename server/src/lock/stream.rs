//! The lease stream as the stores know it: which one a lease is on, and from where it is changed.

use super::BrokerId;

/// One stream of one broker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamId {
    /// The process.
    pub broker: BrokerId,
    /// Counts its streams.
    pub epoch: u64,
}

/// That a client has put a lease, or a call that waits, on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment {
    /// The stream.
    pub stream: StreamId,
    /// The client's count of attachments over the life of the lease or the call, 1 or more. Of two
    /// attachments to different streams the higher one is the newer.
    pub number: u32,
}

/// From where a lease is renewed or released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Via {
    /// From anywhere: it does not matter whether the lease is on a stream.
    #[default]
    Anywhere,
    /// By a unary call that changes the lease: a lease on a stream is changed there only.
    Unary,
    /// On this stream: what is done for a stream does nothing to a lease that has moved.
    Stream(StreamId),
}

impl Attachment {
    /// Where something is that was here and is put there; `None` if "there" is older.
    pub fn moved(here: Option<Self>, there: Option<Self>) -> Option<Option<Self>> {
        match (here, there) {
            (None, there) => Some(there),
            (Some(_), None) => None,
            (Some(here), Some(there)) if here.stream == there.stream => {
                let number = here.number.max(there.number);
                Some(Some(Self { number, ..there }))
            }
            (Some(here), Some(there)) => (there.number > here.number).then_some(Some(there)),
        }
    }
}

impl Via {
    /// Whether a lease that is on `stream` is out of reach.
    pub fn misses(self, stream: Option<StreamId>) -> bool {
        match self {
            Self::Anywhere => false,
            Self::Unary => stream.is_some(),
            Self::Stream(mine) => stream != Some(mine),
        }
    }
}
