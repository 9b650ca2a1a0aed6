//! Entry points of the fuzz targets, one for each kind of external input. Compiled only with the
//! feature `fuzzing`. Each entry point panics if the code under test is wrong.

pub use crate::{
    config::fuzzing::configuration,
    grpc::fuzzing::{grpc_request, page_token},
    store::redis::fuzzing::{broker_message, script_reply},
    transport::fuzzing::{certificate_names, http2_frames},
};
