//! GRPC clients without the SDK.

pub mod grant_recorder;
pub mod heartbeat_sender;
pub mod operator;
pub mod reflection_stream;
pub mod session;
pub mod stream;
pub mod traced_calls;
pub mod unary;
