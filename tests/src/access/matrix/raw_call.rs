//! A gRPC call at the level of encoded messages, with everything that the broker returns.

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

use super::api_entries::ApiEntry;
use crate::status::error_reason;

const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The time for which the client reads replies of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyMode {
    /// Until the end of the call.
    UntilEnd,
    /// Until the first message. The client then half-closes the call and reads until its end.
    UntilFirstMessage,
    /// Until the response headers.
    UntilHeaders,
}

/// Everything that the broker returned.
#[derive(Clone, PartialEq, Eq)]
pub struct Reply {
    pub code: Code,
    /// Text of the status.
    pub message: String,
    /// `google.rpc.Status`, encoded.
    pub details: Vec<u8>,
    /// Headers and trailers.
    pub metadata: Vec<String>,
    pub messages: Vec<Vec<u8>>,
}

impl Reply {
    fn from_status(status: &Status) -> Self {
        let mut reply = Self {
            code: status.code(),
            message: status.message().to_owned(),
            details: status.details().to_vec(),
            metadata: Vec::new(),
            messages: Vec::new(),
        };
        reply.add_metadata(status.metadata());
        reply
    }

    fn ok() -> Self {
        Self::from_status(&Status::new(Code::Ok, ""))
    }

    /// Returns the reply for one message of an open stream.
    #[must_use]
    pub fn from_message(message: Vec<u8>) -> Self {
        let messages = vec![message];
        Self {
            messages,
            ..Self::ok()
        }
    }

    #[must_use]
    pub fn status(&self) -> Status {
        Status::with_details(self.code, &self.message, self.details.clone().into())
    }

    /// Returns the code and the reason of the rejection of `entry`, if it was rejected.
    #[must_use]
    pub fn rejection(&self, entry: &ApiEntry) -> Option<(Code, ErrorReason)> {
        if self.code != Code::Ok {
            let reason = error_reason(&self.status());
            return Some((self.code, reason.unwrap_or_default()));
        }
        if entry.reply_mode() != ReplyMode::UntilFirstMessage {
            return None;
        }
        let response = self.messages.first().expect("the stream answers");
        let response = HoldResponse::decode(response.as_slice()).expect("a response");
        let Some(Told::Refused(refused)) = response.message else {
            return None;
        };
        Some((Code::from(refused.code), refused.reason()))
    }

    /// Returns the content as text, with the fields of details in a fixed order.
    #[must_use]
    pub fn text(&self) -> String {
        let status = rpc::Status::decode(self.details.as_slice());
        let details = status.expect("details of a status").details;
        let messages = self.messages.iter().map(|message| {
            let response = HoldResponse::decode(message.as_slice()).ok();
            match response.and_then(|response| response.message) {
                Some(Told::Refused(mut refused)) => {
                    let details = std::mem::take(&mut refused.details);
                    format!("{refused:?} {}", format_details(details))
                }
                _ => format!("{message:?}"),
            }
        });
        let messages: Vec<_> = messages.collect();
        format!(
            "{:?} {} {} {:?} {messages:?}",
            self.code,
            self.message,
            format_details(details),
            self.metadata
        )
    }

    /// Returns the whole reply as bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let texts = [&self.message].into_iter().chain(&self.metadata);
        let texts = texts.map(|text| text.as_bytes());
        let all = texts.chain([self.details.as_slice()]);
        let all: Vec<_> = all.chain(self.messages.iter().map(Vec::as_slice)).collect();
        all.join(&b"\n"[..])
    }

    /// Returns the first of these texts that occurs anywhere in the reply.
    #[must_use]
    pub fn first_occurring<'a>(&self, texts: &'a [String]) -> Option<&'a String> {
        let bytes = self.bytes();
        let is_in = |text: &&String| {
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        };
        texts.iter().find(is_in)
    }

    /// Adds metadata, except the date of the reply.
    fn add_metadata(&mut self, metadata: &MetadataMap) {
        let headers = metadata.clone().into_headers();
        let entries = headers.iter().filter(|(name, _)| *name != "date");
        let entries = entries.map(|(name, value)| format!("{name}: {value:?}"));
        self.metadata.extend(entries);
        self.metadata.sort();
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes();
        write!(f, "{:?} {:?}", self.code, String::from_utf8_lossy(&bytes))
    }
}

/// Formats details. The fields of each `ErrorInfo` are sorted, because their order is arbitrary.
fn format_details(details: Vec<Any>) -> String {
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
pub async fn call_method(
    channel: &Channel,
    path: &str,
    authorization: Option<&str>,
    (message, listens): (Vec<u8>, ReplyMode),
) -> Reply {
    let (requests, outgoing) = mpsc::channel(1);
    requests.send(message).await.expect("there is room");
    let requests = (listens == ReplyMode::UntilFirstMessage).then_some(requests);
    let answer = async {
        let mut response = match open_call(channel, path, authorization, outgoing).await {
            Ok(response) => response,
            Err(status) => return Reply::from_status(&status),
        };
        let mut reply = Reply::ok();
        reply.add_metadata(&response.1);
        if listens == ReplyMode::UntilHeaders {
            return reply;
        }
        let mut requests = requests;
        loop {
            match response.0.message().await {
                Ok(Some(message)) => reply.messages.push(message.to_vec()),
                Ok(None) => break,
                Err(status) => {
                    let messages = reply.messages;
                    return Reply {
                        messages,
                        ..Reply::from_status(&status)
                    };
                }
            }
            drop(requests.take());
        }
        if let Ok(Some(trailers)) = response.0.trailers().await {
            reply.add_metadata(&trailers);
        }
        reply
    };
    let answer = timeout(ANSWER_LIMIT, answer).await;
    answer.unwrap_or_else(|_| panic!("{path}: no answer within {ANSWER_LIMIT:?}"))
}

/// Opens a call whose messages come from a channel. Returns the replies and the response headers.
///
/// # Errors
/// Returns the status with which the broker rejects the call.
pub async fn open_call(
    channel: &Channel,
    path: &str,
    authorization: Option<&str>,
    requests: mpsc::Receiver<Vec<u8>>,
) -> Result<(Streaming<Bytes>, MetadataMap), Status> {
    let mut calls = Grpc::new(channel.clone());
    calls.ready().await.expect("the broker is there");
    let mut request = Request::new(ReceiverStream::new(requests));
    if let Some(shown) = authorization {
        let shown = shown.parse().expect("a header of ASCII");
        request.metadata_mut().insert("authorization", shown);
    }
    let path = PathAndQuery::try_from(path).expect("a path");
    let response = calls.streaming(request, path, RawCodec).await?;
    let before = response.metadata().clone();
    Ok((response.into_inner(), before))
}

/// A codec that leaves messages encoded.
#[derive(Debug, Clone, Copy)]
struct RawCodec;

impl Codec for RawCodec {
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

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&message);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
