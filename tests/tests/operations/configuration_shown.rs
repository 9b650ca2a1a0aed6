//! Valid configurations: displayed values, the JSON schema and the documentation.

use std::{fs, process::Command};

use leasehold_tests::{
    broker::configuration::Configuration, process::binaries::leasehold_server,
    repository::paths::repository_root,
};
use serde_json::Value;
use tokio::net::TcpListener;

#[tokio::test]
async fn a_busy_port_is_reported_by_the_broker_only() {
    let busy = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = busy.local_addr().expect("its address").to_string();
    let configuration = Configuration::new("[store]\nurl = \"memory\"\n");
    let output = configuration
        .run("serve", &[], &["--listen", &address])
        .await;
    let problem = format!(
        "cannot listen on {address}: address already in use; stop the process that listens there, \
         or choose another address (port 0 selects a free port)"
    );
    assert_eq!((output.code, output.stderr_lines), (Some(1), vec![problem]));
    let output = configuration
        .run("check-config", &[], &["--listen", &address])
        .await;
    assert_eq!((output.code, output.stderr_lines), (Some(0), vec![]));
}

#[tokio::test]
async fn a_secret_that_everybody_may_read_is_a_warning() {
    let text = "[store]\nurl = \"rediss://h\"\npassword_file = \"{dir}/password\"\n";
    let configuration = Configuration::new(text);
    configuration.write("password", b"open sesame\n");
    let valid = "the configuration is valid\n";
    let output = configuration.run("check-config", &[], &[]).await;
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), valid));
    configuration.set_mode("password", 0o604);
    let output = configuration.run("check-config", &[], &[]).await;
    let warning = "warning: store.password_file (from {dir}/leasehold.toml): every user of \
                   this machine can read {dir}/password: run chmod o-r {dir}/password\n";
    assert_eq!(
        (output.code, output.stdout),
        (Some(0), format!("{valid}{warning}"))
    );
}

#[tokio::test]
async fn a_file_that_everybody_may_write_is_a_warning() {
    let text = "[store]\nurl = \"memory\"\n[authentication]\ntokens_file = \"{dir}/tokens\"\n\
                [authorization]\npolicy_file = \"{dir}/policy.toml\"\n";
    let configuration = Configuration::new(text);
    configuration.write("tokens", format!("alice {}\n", "0".repeat(64)).as_bytes());
    let rule = b"[[rule]]\ncallers = [\"*\"]\nverbs = [\"acquire\"]\n";
    configuration.write("policy.toml", rule);
    assert_eq!(warnings(&configuration, &[]).await, [""; 0]);
    for (key, file) in [
        ("authentication.tokens_file", "tokens"),
        ("authorization.policy_file", "policy.toml"),
    ] {
        configuration.set_mode(file, 0o622);
        let warning = format!(
            "{key} (from {{dir}}/leasehold.toml): every user of this machine can write \
             {{dir}}/{file}: run chmod o-w {{dir}}/{file}"
        );
        assert_eq!(warnings(&configuration, &[]).await, [warning]);
        configuration.set_mode(file, 0o620);
    }
}

#[tokio::test]
async fn a_store_without_tls_on_another_host_is_a_warning() {
    let text = "[store]\ndeployment_key_file = \"{dir}/key\"\n";
    let configuration = Configuration::new(text);
    configuration.write("key", "0".repeat(64).as_bytes());
    for (url, host) in [
        ("redis://:canary@10.1.2.3:6379/0", "10.1.2.3"),
        ("redis://locks.internal", "locks.internal"),
        ("redis-sentinel://127.0.0.1:1,s2:2/m", "s2"),
        ("redis-cluster://[::1]:1,[2001:db8::1]:2", "2001:db8::1"),
        ("redlock://localhost:1,127.0.0.2:2,n3:3", "n3"),
    ] {
        let warning = format!(
            "store.url (from --store): the connection to {host} is not encrypted: passwords, the \
             deployment key and all grants can be read and changed on the network; set store.tls = true"
        );
        assert_eq!(
            warnings(&configuration, &["--store", url]).await,
            [warning],
            "{url}"
        );
    }
    for url in [
        "redis://:canary@127.0.0.1:6379/0",
        "redis://localhost",
        "redis://[::1]:1",
        "rediss://10.1.2.3",
        "redlock://localhost:1,127.0.0.2:2,[::1]:3",
    ] {
        let found = warnings(&configuration, &["--store", url]).await;
        assert_eq!(found, [""; 0], "{url}");
    }
}

#[tokio::test]
async fn bearer_tokens_over_a_network_without_tls_are_a_warning() {
    let text = "[store]\nurl = \"memory\"\n[server]\nlisten = \"0.0.0.0:0\"\nadmin_listen = \"[::1]:0\"\n\
                insecure = true\n";
    let open = Configuration::new(text);
    assert_eq!(warnings(&open, &[]).await, [""; 0], "no token is sent");
    let text = "[authentication]\ntokens_file = \"{dir}/tokens\"\n[authorization]\n\
                policy_file = \"{dir}/policy.toml\"\n"
        .to_owned()
        + text;
    let known = Configuration::new(&text);
    known.write("tokens", format!("alice {}\n", "0".repeat(64)).as_bytes());
    let rule = b"[[rule]]\ncallers = [\"*\"]\nverbs = [\"acquire\"]\n";
    known.write("policy.toml", rule);
    let warning = "server.listen (from {dir}/leasehold.toml): other machines can reach this \
        address, and bearer tokens can be read on the network: set tls.cert_file and tls.key_file";
    assert_eq!(warnings(&known, &[]).await, [warning]);
    let local = ["--listen", "127.0.0.1:0"];
    assert_eq!(warnings(&known, &local).await, [""; 0]);
}

/// Returns the warnings of `check-config`.
async fn warnings(configuration: &Configuration, args: &[&str]) -> Vec<String> {
    let output = configuration.run("check-config", &[], args).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let mut lines = output.stdout.lines();
    assert_eq!(lines.next(), Some("the configuration is valid"));
    let warnings = lines.map(|line| line.strip_prefix("warning: ").expect("a warning"));
    warnings.map(str::to_owned).collect()
}

#[tokio::test]
async fn what_is_shown_is_a_configuration_with_the_same_meaning() {
    let text = "[store]\nurl = \"redis-sentinel://me:canary@h:1/m\"\nwait_replicas = 2\n\
                [limits]\nttl_max = \"5s\"\n[log]\nfilter = \"a[b{c=\\\"d\\\"}]=info\"\n";
    let configuration = Configuration::new(text);
    let env = [("LEASEHOLD__SERVER__DRAIN_TIMEOUT", "1m 30s")];
    let show = ["--show", "--key-prefix", "a:"];
    let output = configuration.run("check-config", &env, &show).await;
    assert_eq!(
        (output.code, output.stderr_lines.len()),
        (Some(0), 0),
        "{:?}",
        output.stderr_lines
    );
    assert!(!output.stdout.contains("canary"), "{}", output.stdout);
    for line in [
        "drain_timeout = \"1m 30s\" # from: LEASEHOLD__SERVER__DRAIN_TIMEOUT",
        "filter = 'a[b{c=\"d\"}]=info' # from: {dir}/leasehold.toml",
        "key_prefix = \"a:\" # from: --key-prefix",
        "ttl_default = \"5s\" # from: default",
        "ttl_max = \"5s\" # from: {dir}/leasehold.toml",
        "url = \"redis-sentinel://me:***@h:1/m\" # from: {dir}/leasehold.toml",
        "wait_replicas = 2 # from: {dir}/leasehold.toml",
        "# the configuration is valid",
    ] {
        assert!(
            output.stdout.lines().any(|shown| shown == line),
            "{line}: {}",
            output.stdout
        );
    }
    let again = Configuration::new(&output.stdout);
    let said_again = again.run("check-config", &[], &["--show"]).await;
    assert_eq!(
        (said_again.code, said_again.stderr_lines.len()),
        (Some(0), 0)
    );
    assert_eq!(values(&said_again.stdout), values(&output.stdout));
}

/// Returns the output of `leasehold-server config-schema`.
fn schema() -> String {
    let printed = Command::new(leasehold_server())
        .arg("config-schema")
        .output();
    String::from_utf8(printed.expect("it runs").stdout).expect("UTF-8")
}

fn page() -> String {
    let page = repository_root().join("docs/configuration.md");
    fs::read_to_string(page).expect("a page of the docs")
}

#[test]
fn the_schema_in_the_repository_is_the_one_that_is_printed() {
    let path = "docs/leasehold.schema.json";
    let kept = fs::read_to_string(repository_root().join(path)).expect("a file of the docs");
    assert_eq!(kept, schema(), "leasehold-server config-schema > {path}");
}

#[test]
fn the_table_of_keys_is_that_of_the_schema() {
    let schema: Value = serde_json::from_str(&schema()).expect("JSON");
    let sections = schema["properties"].as_object().expect("sections");
    let mut table = String::new();
    for (section, of) in sections {
        for (name, key) in of["properties"].as_object().expect("keys") {
            let default = match key["default"].as_str() {
                Some(text) if !text.is_empty() => format!("`{text}`"),
                _ if key["default"].is_null() || key["default"] == "" => String::new(),
                _ => format!("`{}`", key["default"]),
            };
            let description = key["description"].as_str().expect("a description");
            let description = description.replace('\\', r"\\");
            table += &format!("| `{section}.{name}` | {default} | {description} |\n");
        }
    }
    assert!(table.lines().count() > 30, "{table}");
    let page = page();
    let kept: Vec<_> = page.lines().filter(|line| is_of_a_key(line)).collect();
    assert!(
        kept == table.lines().collect::<Vec<_>>(),
        "the table is\n{table}"
    );
}

/// Returns true if the line is a table row of a configuration key, which contains a dot.
fn is_of_a_key(line: &str) -> bool {
    let name = line
        .strip_prefix("| `")
        .and_then(|line| line.split('`').next());
    name.is_some_and(|name| name.contains('.') && !name.contains(' '))
}

#[tokio::test]
async fn the_example_of_the_docs_is_right() {
    let page = page();
    let example = page.split("```toml\n").nth(1).expect("an example");
    let example = example.split("```").next().expect("its end");
    let configuration = Configuration::new(example);
    let output = configuration.run("check-config", &[], &[]).await;
    assert_eq!((output.code, output.stderr_lines), (Some(0), vec![]));
}

/// Returns the lines without the source of each value.
fn values(toml: &str) -> Vec<&str> {
    let lines = toml.lines();
    lines
        .map(|line| line.split(" # from: ").next().unwrap_or(line))
        .collect()
}
