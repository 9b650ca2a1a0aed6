//! Invalid configurations and the exact error messages of the broker.

use leasehold_tests::broker::configuration::Configuration;

/// An invalid configuration. `{dir}` stands for the directory of its files.
struct InvalidConfiguration {
    name: &'static str,
    file: &'static str,
    env: &'static [(&'static str, &'static str)],
    args: &'static [&'static str],
    /// Expected lines of stderr.
    problems: &'static str,
}

/// Returns a case with the memory store, which is set by a flag.
const fn invalid_with_memory(
    name: &'static str,
    file: &'static str,
    problems: &'static str,
) -> InvalidConfiguration {
    InvalidConfiguration {
        name,
        file,
        env: &[],
        args: &["--store", "memory"],
        problems,
    }
}

/// Returns a case whose file sets the store.
const fn invalid_with_store(
    name: &'static str,
    file: &'static str,
    problems: &'static str,
) -> InvalidConfiguration {
    InvalidConfiguration {
        args: &[],
        ..invalid_with_memory(name, file, problems)
    }
}

/// Returns a case with environment variables and flags.
const fn source(
    name: &'static str,
    file: &'static str,
    env: &'static [(&'static str, &'static str)],
    args: &'static [&'static str],
    problems: &'static str,
) -> InvalidConfiguration {
    InvalidConfiguration {
        env,
        args,
        ..invalid_with_memory(name, file, problems)
    }
}

const FILES: [InvalidConfiguration; 25] = [
    invalid_with_memory(
        "a syntax error",
        "[server]\nlisten = \"127.0.0.1:1\n",
        "{dir}/leasehold.toml, line 2, column 22: invalid basic string",
    ),
    invalid_with_memory(
        "a key twice",
        "[limits]\nttl_max = \"5s\"\nttl_max = \"6s\"\n",
        "{dir}/leasehold.toml, line 3, column 1: duplicate key `ttl_max` in table `limits`",
    ),
    invalid_with_memory(
        "a typing error",
        "[server]\nlissten = \"127.0.0.1:1\"\n",
        "server.lissten (from {dir}/leasehold.toml): no such key; did you mean server.listen?",
    ),
    invalid_with_memory(
        "a key in the wrong section",
        "[redis]\nkey_prefix = \"a:\"\n",
        "redis.key_prefix (from {dir}/leasehold.toml): no such key; did you mean store.key_prefix?",
    ),
    invalid_with_memory(
        "a quoted name with a dot",
        "\"limits.ttl_max\" = \"5s\"\n",
        "\"limits.ttl_max\" (from {dir}/leasehold.toml): no such key; did you mean limits.ttl_max?",
    ),
    invalid_with_memory(
        "an unknown section",
        "[archive]\ntokens = \"none\"\n",
        "archive.tokens (from {dir}/leasehold.toml): no such key; leasehold-server config-schema and docs/configuration.md list all keys",
    ),
    invalid_with_memory(
        "an unknown section with nothing in it",
        "[archive]\n[limits]\n",
        "archive (from {dir}/leasehold.toml): no such key; leasehold-server config-schema and docs/configuration.md list all keys",
    ),
    invalid_with_memory(
        "a value in the place of a section",
        "log = \"debug\"\n",
        "log (from {dir}/leasehold.toml): is a section, with the keys log.filter, log.format",
    ),
    invalid_with_memory(
        "a section in the place of a value",
        "[server.listen]\nhost = \"::1\"\n",
        "server.listen.host (from {dir}/leasehold.toml): no such key; leasehold-server config-schema and docs/configuration.md list all keys",
    ),
    invalid_with_memory(
        "an empty section in the place of a value",
        "[server.listen]\n",
        "server.listen (from {dir}/leasehold.toml): must be an IP address with a port, such as 127.0.0.1:7070, in TOML of type string, not table",
    ),
    invalid_with_memory(
        "a list",
        "[server]\nlisten = [\"127.0.0.1:1\"]\n",
        "server.listen (from {dir}/leasehold.toml): must be an IP address with a port, such as 127.0.0.1:7070, in TOML of type string, not array",
    ),
    invalid_with_memory(
        "a host name",
        "[server]\nlisten = \"localhost:7070\"\n",
        "server.listen (from {dir}/leasehold.toml): must be an IP address with a port, such as 127.0.0.1:7070, not \"localhost:7070\"",
    ),
    invalid_with_memory(
        "a time without a unit",
        "[limits]\nwait_max = \"30\"\n",
        "limits.wait_max (from {dir}/leasehold.toml): must be a time from 0s to 1h, such as 10s, not \"30\"",
    ),
    invalid_with_memory(
        "a time that is a number",
        "[limits]\nwait_max = 30\n",
        "limits.wait_max (from {dir}/leasehold.toml): must be a time from 0s to 1h, such as 10s, in TOML of type string, not integer",
    ),
    invalid_with_memory(
        "a negative time",
        "[server]\ndrain_timeout = \"-5s\"\n",
        "server.drain_timeout (from {dir}/leasehold.toml): must be a time from 0s to 1h, such as 10s, not \"-5s\"",
    ),
    invalid_with_memory(
        "a size in another unit",
        "[http2]\nstream_window = \"64kB\"\n",
        "http2.stream_window (from {dir}/leasehold.toml): must be a size from 4KiB to 2047MiB, such as 64KiB, not \"64kB\"",
    ),
    invalid_with_memory(
        "a number where text is meant",
        "[store]\nkey_prefix = 7\n",
        "store.key_prefix (from {dir}/leasehold.toml): must be 1 to 64 bytes without { } * ? [ ] \\ and control characters, in TOML of type string, not integer",
    ),
    invalid_with_memory(
        "text where a number is meant",
        "[store]\nwait_replicas = \"1\"\n",
        "store.wait_replicas (from {dir}/leasehold.toml): must be a number from 0 to 1000, in TOML of type integer, not string",
    ),
    invalid_with_memory(
        "a number out of range",
        "[http2]\nmax_concurrent_streams = 0\n",
        "http2.max_concurrent_streams (from {dir}/leasehold.toml): must be a number from 1 to 1000000, not \"0\"",
    ),
    invalid_with_memory(
        "yes for true",
        "[store]\nwait_for_store = \"yes\"\n",
        "store.wait_for_store (from {dir}/leasehold.toml): must be true or false, in TOML of type boolean, not string",
    ),
    invalid_with_memory(
        "ttl_min above ttl_max",
        "[limits]\nttl_min = \"20s\"\nttl_max = \"10s\"\n",
        "limits.ttl_max (from {dir}/leasehold.toml): must not be below limits.ttl_min",
    ),
    invalid_with_memory(
        "ttl_default out of bounds",
        "[limits]\nttl_max = \"20s\"\nttl_default = \"21s\"\n",
        "limits.ttl_default (from {dir}/leasehold.toml): must lie between limits.ttl_min and limits.ttl_max",
    ),
    invalid_with_memory(
        "max_hold_max below ttl_min",
        "[limits]\nttl_min = \"2s\"\nmax_hold_max = \"1s\"\n",
        "limits.max_hold_max (from {dir}/leasehold.toml): must not be below limits.ttl_min",
    ),
    invalid_with_memory(
        "both listeners on one address",
        "[server]\nadmin_listen = \"127.0.0.1:7070\"\n",
        "server.admin_listen (from {dir}/leasehold.toml): must differ from server.listen",
    ),
    invalid_with_memory(
        "a log filter that is none",
        "[log]\nfilter = \"info,a=b=c\"\n",
        "log.filter (from {dir}/leasehold.toml): must be a log filter, not \"info,a=b=c\": error parsing level filter: expected one of \"off\", \"error\", \"warn\", \"info\", \"debug\", \"trace\", or a number 0-5",
    ),
];

const STORES: [InvalidConfiguration; 18] = [
    invalid_with_store(
        "no store",
        "",
        "store.url: required: memory, or redis://host:port/db (flag --store)",
    ),
    invalid_with_store(
        "a syntax error beside a password",
        "[store]\nurl = \"redis://:canary@h\n",
        "{dir}/leasehold.toml, line 2, column 25: invalid basic string",
    ),
    invalid_with_store(
        "another scheme",
        "[store]\nurl = \"http://:canary@h\"\n",
        "store.url (from {dir}/leasehold.toml): must be memory, redis://[user:password@]host:port/db, rediss:// for TLS, redis-sentinel://[user:password@]host:port,host:port/master/db, redis-cluster://[user:password@]host:port,host:port, or redlock://[user:password@]host:port,host:port,host:port/db",
    ),
    invalid_with_store(
        "Sentinels without a master",
        "[store]\nurl = \"redis-sentinel://a:1,b:2\"\n",
        "store.url (from {dir}/leasehold.toml): the name of the master is missing: redis-sentinel://host:port,host:port/master",
    ),
    invalid_with_store(
        "a cluster with a database",
        "[store]\nurl = \"redis-cluster://a:1/3\"\ndeployment_key_file = \"{dir}/key\"\n",
        "store.url (from {dir}/leasehold.toml): a cluster has only database 0: redis-cluster://host:port,host:port",
    ),
    invalid_with_store(
        "a cluster without a key",
        "[store]\nurl = \"redis-cluster://a:1\"\n",
        "store.deployment_key_file: required with redis-cluster://, which does not store a deployment key: 64 hexadecimal digits, the same for all brokers",
    ),
    invalid_with_store(
        "redlock without a key",
        "[store]\nurl = \"redlock://a,b,c\"\n",
        "store.deployment_key_file: required with redlock://, because no single server can store the key: write 64 random hexadecimal digits to a file, the same for all brokers",
    ),
    invalid_with_store(
        "a key that is none",
        "[store]\nurl = \"redlock://a,b,c\"\ndeployment_key_file = \"{dir}/password\"\n",
        "store.deployment_key_file (from {dir}/leasehold.toml): {dir}/password must contain 64 hexadecimal digits",
    ),
    invalid_with_store(
        "sharded channels on one server",
        "[store]\nurl = \"redis://h\"\nsharded_pubsub = true\n",
        "store.sharded_pubsub (from {dir}/leasehold.toml): requires redis-cluster://: with any other store a message reaches only one server anyway",
    ),
    invalid_with_store(
        "a password twice",
        "[store]\nurl = \"redis://:canary@h\"\npassword_file = \"{dir}/password\"\n",
        "store.password_file (from {dir}/leasehold.toml): is also set in store.url: remove one of them",
    ),
    invalid_with_store(
        "a secret that is missing",
        "[store]\nurl = \"redis://h\"\npassword_file = \"{dir}/nothing\"\n",
        "store.password_file (from {dir}/leasehold.toml): cannot read {dir}/nothing: No such file or directory (os error 2)",
    ),
    invalid_with_store(
        "a secret that is empty",
        "[store]\nurl = \"redis-sentinel://h/m\"\nsentinel_password_file = \"{dir}/empty\"\n",
        "store.sentinel_password_file (from {dir}/leasehold.toml): {dir}/empty is empty",
    ),
    invalid_with_store(
        "a secret that is no text",
        "[store]\nurl = \"redis://h\"\nusername_file = \"{dir}/bytes\"\n",
        "store.username_file (from {dir}/leasehold.toml): cannot read {dir}/bytes: stream did not contain valid UTF-8",
    ),
    invalid_with_store(
        "a secret that cannot be read",
        "[store]\nurl = \"redlock://a,b,c\"\ndeployment_key_file = \"/proc/self/mem\"\n",
        "store.deployment_key_file (from {dir}/leasehold.toml): cannot read /proc/self/mem: Input/output error (os error 5)",
    ),
    invalid_with_store(
        "a path that is empty",
        "[store]\nurl = \"redis://h\"\nusername_file = \"\"\n",
        "store.username_file (from {dir}/leasehold.toml): must be the path of a file, not empty",
    ),
    invalid_with_store(
        "a private key that is missing",
        "[store]\nurl = \"rediss://h\"\ntls_cert_file = \"{dir}/password\"\ntls_key_file = \"{dir}\"\n",
        "store.tls_key_file (from {dir}/leasehold.toml): cannot read {dir}: Is a directory (os error 21)",
    ),
    invalid_with_store(
        "files of TLS for the memory store",
        "[store]\nurl = \"memory\"\ntls_ca_file = \"{dir}/password\"\n",
        "store.tls_ca_file (from {dir}/leasehold.toml): is not used without TLS: set store.tls = true, or use rediss://",
    ),
    invalid_with_store(
        "TLS that is and is not",
        "[store]\nurl = \"rediss://h\"\ntls = false\n",
        "store.tls (from {dir}/leasehold.toml): rediss:// requires TLS: remove this key, or use redis://",
    ),
];

const SOURCES: [InvalidConfiguration; 7] = [
    source(
        "a typing error in the environment",
        "",
        &[("LEASEHOLD__LIMITS__TTL_MAXX", "5s")],
        &["--store", "memory"],
        "limits.ttl_maxx (from LEASEHOLD__LIMITS__TTL_MAXX): no such key; did you mean LEASEHOLD__LIMITS__TTL_MAX?",
    ),
    source(
        "a number in the environment",
        "[store]\nwait_replicas = 2\n",
        &[("LEASEHOLD__STORE__WAIT_REPLICAS", "two")],
        &["--store", "memory"],
        "store.wait_replicas (from LEASEHOLD__STORE__WAIT_REPLICAS): must be a number from 0 to 1000, not \"two\"",
    ),
    source(
        "a flag",
        "[limits]\nttl_max = \"10s\"\n",
        &[("LEASEHOLD__LIMITS__TTL_MAX", "20s")],
        &["--store", "memory", "--ttl-max", "2h"],
        "limits.ttl_max (from --ttl-max): must be a time from 100ms to 1h, such as 10s, not \"2h\"",
    ),
    source(
        "no file",
        "",
        &[],
        &["--config", "{dir}/other.toml"],
        "cannot read {dir}/other.toml: No such file or directory (os error 2)",
    ),
    source(
        "a file that is a directory",
        "",
        &[],
        &["--config", "{dir}"],
        "cannot read {dir}: Is a directory (os error 21)",
    ),
    source(
        "a file that cannot be read",
        "",
        &[],
        &["--config", "/proc/self/mem"],
        "cannot read /proc/self/mem: Input/output error (os error 5)",
    ),
    source(
        "several problems at once, but none with what is overridden",
        "[server]\nlisten = \"nowhere\"\n[limits]\nttl_max = 1\nwait_max = \"2h\"\n[stor]\nurl = \"x\"\n",
        &[
            ("LEASEHOLD__STOR__URL", "x"),
            ("LEASEHOLD__STORE__URL", "redis://h:x"),
            ("LEASEHOLD__LIMITS__TTL_MAX", "20s"),
        ],
        &["--listen", "127.0.0.1:0", "--log", "a=b=c"],
        "limits.wait_max (from {dir}/leasehold.toml): must be a time from 0s to 1h, such as 10s, not \"2h\"\n\
         log.filter (from --log): must be a log filter, not \"a=b=c\": error parsing level filter: expected one of \"off\", \"error\", \"warn\", \"info\", \"debug\", \"trace\", or a number 0-5\n\
         store.url (from LEASEHOLD__STORE__URL): the port must be a number from 1 to 65535\n\
         stor.url (from {dir}/leasehold.toml): no such key; did you mean store.url?\n\
         stor.url (from LEASEHOLD__STOR__URL): no such key; did you mean LEASEHOLD__STORE__URL?",
    ),
];

#[tokio::test]
async fn every_problem_is_reported_and_the_broker_does_not_start() {
    let mut mistaken = String::new();
    for wrong in FILES.iter().chain(&STORES).chain(&SOURCES) {
        let configuration = Configuration::new(wrong.file);
        configuration.write("password", b"open sesame\n");
        configuration.write("key", &[b'a'; 64]);
        configuration.write("empty", b"\n");
        configuration.write("bytes", b"\xff\xfe");
        for verb in ["check-config", "serve", "init-store"] {
            let output = configuration.run(verb, wrong.env, wrong.args).await;
            let problems = output.stderr_lines.join("\n");
            if (output.code, output.stdout.as_str(), problems.as_str())
                != (Some(1), "", wrong.problems)
            {
                mistaken += &format!("{verb}, {}: {output:#?}\n", wrong.name);
            }
        }
    }
    assert!(mistaken.is_empty(), "{mistaken}");
}
