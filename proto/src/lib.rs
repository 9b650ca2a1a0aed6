//! The gRPC API of Leasehold: generated types and stubs, and rules that clients and servers share.
//!
//! The contract of every message is in the `.proto` files beside this crate.

pub mod address;
pub mod codec;
pub mod text;

/// Types and stubs of the package `leasehold.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated code"
)]
pub mod v1 {
    include!("../gen/leasehold.v1.rs");
}

/// Encoded `FileDescriptorSet` of the API, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("../gen/descriptors.binpb");
