//! One call as it goes over the wire: any message in, and everything that comes back.

use std::{collections::BTreeMap, fmt, time::Duration};

use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use leasehold_proto::v1::{ErrorReason, HoldResponse, hold_response::Message as Told};
use prost::Message as _;
use prost_types::Any;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    metadata::MetadataMap,
    transport::Channel,
};
use tonic_types::pb as rpc;

use super::walk::Entry;
use crate::status::reason;

const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// How long a call's answer is listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listens {
    /// To its end.
    ToTheEnd,
    /// Until it says something, then the client is done, and to the end.
    ToTheFirst,
    /// Until it is accepted.
    UntilAccepted,
}

/// Everything that came back.
#[derive(Clone, PartialEq, Eq)]
pub struct Reply {
    /// The code.
    pub code: Code,
    /// The sentence.
    pub message: String,
    /// `google.rpc.Status`, encoded.
    pub details: Vec<u8>,
    /// What stood before and behind the messages.
    pub metadata: Vec<String>,
    /// The messages, encoded.
    pub messages: Vec<Vec<u8>>,
}

impl Reply {
    fn of(status: &Status) -> Self {
        let mut reply = Self {
            code: status.code(),
            message: status.message().to_owned(),
            details: status.details().to_vec(),
            metadata: Vec::new(),
            messages: Vec::new(),
        };
        reply.note(status.metadata());
        reply
    }

    fn ok() -> Self {
        Self::of(&Status::new(Code::Ok, ""))
    }

    /// One message of a stream that goes on.
    #[must_use]
    pub fn told(message: Vec<u8>) -> Self {
        let messages = vec![message];
        Self {
            messages,
            ..Self::ok()
        }
    }

    /// As a status.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::with_details(self.code, &self.message, self.details.clone().into())
    }

    /// How it was refused, if it was; `entry` was asked.
    #[must_use]
    pub fn refusal(&self, entry: &Entry) -> Option<(Code, ErrorReason)> {
        if self.code != Code::Ok {
            let reason = reason(&self.status());
            return Some((self.code, reason.unwrap_or_default()));
        }
        if entry.listens() != Listens::ToTheFirst {
            return None;
        }
        let told = self.messages.first().expect("the stream answers");
        let told = HoldResponse::decode(told.as_slice()).expect("a response");
        let Some(Told::Refused(refused)) = told.message else {
            return None;
        };
        Some((Code::from(refused.code), refused.reason()))
    }

    /// What it says, whatever the order in which details name their fields.
    #[must_use]
    pub fn text(&self) -> String {
        let status = rpc::Status::decode(self.details.as_slice());
        let details = status.expect("details of a status").details;
        let messages = self.messages.iter().map(|message| {
            let told = HoldResponse::decode(message.as_slice()).ok();
            match told.and_then(|told| told.message) {
                Some(Told::Refused(mut refused)) => {
                    let details = std::mem::take(&mut refused.details);
                    format!("{refused:?} {}", in_order(details))
                }
                _ => format!("{message:?}"),
            }
        });
        let messages: Vec<_> = messages.collect();
        format!(
            "{:?} {} {} {:?} {messages:?}",
            self.code,
            self.message,
            in_order(details),
            self.metadata
        )
    }

    /// All of it in a row.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let texts = [&self.message].into_iter().chain(&self.metadata);
        let texts = texts.map(|text| text.as_bytes());
        let all = texts.chain([self.details.as_slice()]);
        let all: Vec<_> = all.chain(self.messages.iter().map(Vec::as_slice)).collect();
        all.join(&b"\n"[..])
    }

    /// The first of these texts that is anywhere in it.
    #[must_use]
    pub fn first_of<'a>(&self, texts: &'a [String]) -> Option<&'a String> {
        let bytes = self.bytes();
        let is_in = |text: &&String| {
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        };
        texts.iter().find(is_in)
    }

    /// When the call was answered says nothing about the answer.
    fn note(&mut self, metadata: &MetadataMap) {
        let headers = metadata.clone().into_headers();
        let said = headers.iter().filter(|(name, _)| *name != "date");
        let said = said.map(|(name, value)| format!("{name}: {value:?}"));
        self.metadata.extend(said);
        self.metadata.sort();
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes();
        write!(f, "{:?} {:?}", self.code, String::from_utf8_lossy(&bytes))
    }
}

/// The fields of an `ErrorInfo` come in any order.
fn in_order(details: Vec<Any>) -> String {
    let read = details.into_iter().map(|detail| {
        let is_info = detail.type_url.ends_with("google.rpc.ErrorInfo");
        let info = rpc::ErrorInfo::decode(detail.value.as_slice());
        match info.ok().filter(|_| is_info) {
            None => format!("{detail:?}"),
            Some(info) => {
                let fields: BTreeMap<_, _> = info.metadata.into_iter().collect();
                format!("{} {} {fields:?}", info.reason, info.domain)
            }
        }
    });
    read.collect::<Vec<_>>().join(" ")
}

/// Calls `path`, a service and its method, with one message.
pub async fn exchange(
    channel: &Channel,
    path: &str,
    authorization: Option<&str>,
    (message, listens): (Vec<u8>, Listens),
) -> Reply {
    let (asks, outgoing) = mpsc::channel(1);
    asks.send(message).await.expect("there is room");
    let asks = (listens == Listens::ToTheFirst).then_some(asks);
    let answer = async {
        let mut told = match open(channel, path, authorization, outgoing).await {
            Ok(told) => told,
            Err(status) => return Reply::of(&status),
        };
        let mut reply = Reply::ok();
        reply.note(&told.1);
        if listens == Listens::UntilAccepted {
            return reply;
        }
        let mut asks = asks;
        loop {
            match told.0.message().await {
                Ok(Some(message)) => reply.messages.push(message.to_vec()),
                Ok(None) => break,
                Err(status) => {
                    let messages = reply.messages;
                    return Reply {
                        messages,
                        ..Reply::of(&status)
                    };
                }
            }
            drop(asks.take());
        }
        if let Ok(Some(trailers)) = told.0.trailers().await {
            reply.note(&trailers);
        }
        reply
    };
    let answer = timeout(ANSWER_LIMIT, answer).await;
    answer.unwrap_or_else(|_| panic!("{path}: no answer within {ANSWER_LIMIT:?}"))
}

/// Opens a call whose messages come from a channel; what is told, and what stands before it.
///
/// # Errors
/// If the broker refuses it at once.
pub async fn open(
    channel: &Channel,
    path: &str,
    authorization: Option<&str>,
    asks: mpsc::Receiver<Vec<u8>>,
) -> Result<(Streaming<Bytes>, MetadataMap), Status> {
    let mut calls = Grpc::new(channel.clone());
    calls.ready().await.expect("the broker is there");
    let mut request = Request::new(ReceiverStream::new(asks));
    if let Some(shown) = authorization {
        let shown = shown.parse().expect("a header of ASCII");
        request.metadata_mut().insert("authorization", shown);
    }
    let path = PathAndQuery::try_from(path).expect("a path");
    let told = calls.streaming(request, path, Raw).await?;
    let before = told.metadata().clone();
    Ok((told.into_inner(), before))
}

/// Messages as they are.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
