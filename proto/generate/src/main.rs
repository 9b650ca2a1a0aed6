//! Generates the Rust code and the descriptors of the API: `leasehold-proto-generate PROTO_FOLDER OUTPUT_FOLDER`.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 4] = [
    "leasehold/v1/types.proto",
    "leasehold/v1/lock_service.proto",
    "leasehold/v1/inspection_service.proto",
    "leasehold/v1/admin_service.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [protos, output] = arguments.as_slice() else {
        return Err("usage: leasehold-proto-generate PROTO_FOLDER OUTPUT_FOLDER".into());
    };
    let descriptors = protox::compile(FILES, [protos])?;
    fs::write(
        output.join("descriptors.binpb"),
        descriptors.encode_to_vec(),
    )?;
    tonic_prost_build::configure()
        .codec_path("crate::codec::SmallBuffers")
        .out_dir(output)
        .compile_fds(descriptors)?;
    Ok(())
}
