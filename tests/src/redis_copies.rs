//! What operators do to a healthy server: a backup of it, and a first replica.

use tokio::process::Command;

use crate::{binary::store_client, redis_server::RedisServer, temp_dir::TempDir, until::until};

/// A replica of it, once it is in touch.
pub async fn replica_of(master: &RedisServer) -> RedisServer {
    let port = master.addr().port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]).await;
    let mut raw = replica.connect().await;
    until("the replica is in touch", async || {
        let link = raw.info("replication", "master_link_status").await;
        (link.as_deref() == Some("up")).then_some(())
    })
    .await;
    replica
}

/// Takes a backup, as operators do, and throws it away.
pub async fn back_up(master: &RedisServer) {
    let dir = TempDir::new("backup");
    let file = dir.path().join("backup.rdb");
    let port = master.addr().port().to_string();
    let mut client = Command::new(store_client());
    client.args(["-h", "127.0.0.1", "-p", &port, "--rdb"]);
    let output = client.arg(&file).output().await;
    let output = output.expect("redis-cli runs");
    assert!(output.status.success(), "{output:?}");
    assert!(file.metadata().expect("a backup").len() > 0);
}
