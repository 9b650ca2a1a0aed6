//! A Redis server under callgrind, which counts the instructions that scripts cost the server.

use std::path::Path;
use std::process::Command;

use super::{
    connection::RedisConnection,
    server::{RedisOptions, RedisServer},
};
use crate::process::temp_dir::TempDir;

const VALGRIND: &str = "valgrind";
/// Function of the server that executes EVALSHA. Only its instructions are counted.
const COUNTED_FUNCTION: &str = "evalShaCommand";
/// Function of the server that executes ECHO. Before it runs, callgrind writes a file with the
/// instructions since the last file. The reply to ECHO thus means that the file is complete, which
/// a request to callgrind itself would not report.
const DUMP_FUNCTION: &str = "echoCommand";

/// A server that runs some 50 times slower than without callgrind.
#[derive(Debug)]
pub struct CallgrindRedis {
    server: RedisServer,
    connection: RedisConnection,
    dumps: TempDir,
    dump_count: usize,
}

impl CallgrindRedis {
    /// Starts an empty server.
    ///
    /// # Panics
    /// If valgrind is not installed.
    pub async fn start() -> Self {
        let version = Command::new(VALGRIND).arg("--version").output();
        assert!(version.is_ok(), "valgrind is missing. Run: make setup");
        let dumps = TempDir::new("callgrind");
        let wrapper = [
            VALGRIND.to_owned(),
            "--tool=callgrind".to_owned(),
            format!("--toggle-collect={COUNTED_FUNCTION}"),
            format!("--dump-before={DUMP_FUNCTION}"),
            format!(
                "--callgrind-out-file={}",
                dumps.path().join("out").display()
            ),
        ];
        let server = RedisServer::start_with_options(RedisOptions {
            wrapper: wrapper.into(),
            ..RedisOptions::default()
        });
        let server = server.await;
        Self {
            connection: server.connect().await,
            server,
            dumps,
            dump_count: 0,
        }
    }

    #[must_use]
    pub fn server(&self) -> &RedisServer {
        &self.server
    }

    /// Returns the number of instructions since the last call.
    pub async fn instructions(&mut self) -> u64 {
        self.connection.must(&["ECHO", "dump"]).await;
        self.dump_count += 1;
        let path = self.dumps.path().join(format!("out.{}", self.dump_count));
        total(&path)
    }
}

fn total(dump: &Path) -> u64 {
    let text = std::fs::read_to_string(dump);
    let text = text.unwrap_or_else(|error| panic!("read {}: {error}", dump.display()));
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.unwrap_or_else(|| panic!("no total in {}", dump.display()))
}
