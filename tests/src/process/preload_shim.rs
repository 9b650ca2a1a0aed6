//! Small C libraries for `LD_PRELOAD`, which change what one process receives from the system.

use std::path::{Path, PathBuf};

use tokio::process::Command;

/// Compiles a file of `tests/shims` into a directory and returns the path of the library.
pub async fn compile_shim(source: &str, into: &Path) -> PathBuf {
    let shims = Path::new(env!("CARGO_MANIFEST_DIR")).join("shims");
    let source = shims.join(source);
    let name = source.file_name().expect("the name of a file");
    let shim = into.join(name).with_extension("so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"]);
    let built = compiler.arg(&shim).arg(&source).output().await;
    let built = built.expect("the C compiler that Rust links with");
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");
    shim
}
