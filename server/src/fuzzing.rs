//! The entry points of the fuzz targets, one for each kind of input that comes from outside. They are
//! compiled with the feature `fuzzing` only. Each panics where the code that it calls is wrong.

pub use crate::{
    config::fuzzing::configuration,
    grpc::fuzzing::{grpc_request, page_token},
    store::redis::fuzzing::{broker_message, script_reply},
    transport::fuzzing::{certificate_names, http2_frames},
};
