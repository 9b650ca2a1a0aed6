//! Endpoints, TLS trust and error messages of `leasehold`, word for word.

use leasehold_tests::{
    broker::in_process::InProcessBroker,
    net::{certificates::Authority, credential_recorder::CredentialRecorder, tls_relay::TlsRelay},
    process::leasehold_command::{Cli, run_command},
};

const NOWHERE: &str = "http://127.0.0.1:1";

#[tokio::test]
async fn without_a_broker_it_says_how_to_get_one() {
    let cli = Cli::for_broker("127.0.0.1:1");
    let next = "Start one with `leasehold-server dev`, or set its address with";
    let refused = "tcp connect error: Connection refused (os error 111)";
    for args in [
        &["get", "a"][..],
        &["acquire", "a"],
        &["run", "a", "--", "true"],
    ] {
        let ran = cli.run(args).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(125), ""), "{args:?}");
        let stderr = ran.stderr;
        assert!(
            stderr.starts_with("leasehold: no broker answers: http://127.0.0.1:1: "),
            "{stderr}"
        );
        assert!(
            stderr.contains("Connection refused (os error 111)"),
            "{stderr} {refused}"
        );
        assert!(
            stderr.ends_with(&format!(". {next} --endpoint or LEASEHOLD_ENDPOINT\n")),
            "{stderr}"
        );
    }
    let ran = cli
        .run(&[
            "force-release",
            "a",
            "L",
            "--reason=x",
            "--yes",
            "--admin-endpoint",
            NOWHERE,
        ])
        .await;
    let hint = format!(". {next} --admin-endpoint or LEASEHOLD_ADMIN_ENDPOINT\n");
    assert!(
        ran.code == Some(125) && ran.stderr.ends_with(&hint),
        "{}",
        ran.stderr
    );
    let ran = cli.run(&["get", "a", "--endpoint=ftp://x"]).await;
    let stderr = format!(
        "leasehold: no broker answers: ftp://x: expected an http or https URL, such as \
         http://127.0.0.1:7070. {next} --endpoint or LEASEHOLD_ENDPOINT\n"
    );
    assert_eq!((ran.code, ran.stderr), (Some(125), stderr));
}

#[tokio::test]
async fn wrong_usage_is_125_and_names_what_is_wrong() {
    let cli = Cli::for_broker("127.0.0.1:1");
    for (args, stderr) in [
        (&["runn"][..], "unrecognized subcommand 'runn'"),
        (&["run", "a"], "<COMMAND>..."),
        (
            &["run", "a", "--ttl=soon", "--", "true"],
            "expected a time such as 500ms, 10s or 5m",
        ),
        (
            &["run", "a", "--permits=x", "--", "true"],
            "expected N or N/M, such as 2/10",
        ),
        (
            &["run", "a", "--label=x", "--", "true"],
            "expected KEY=VALUE, such as team=billing",
        ),
        (
            &["run", "a", "-n", "--wait=1s", "--", "true"],
            "cannot be used with",
        ),
    ] {
        let ran = cli.run(args).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(125), ""), "{args:?}");
        assert!(ran.stderr.contains(stderr), "{args:?}: {}", ran.stderr);
    }
    let typo = cli.run(&["relase"]).await;
    assert!(
        typo.stderr
            .contains("some similar subcommands exist: 'renew', 'close', 'reserve', 'release'"),
        "{}",
        typo.stderr
    );
}

#[tokio::test]
async fn rejections_of_the_broker_are_printed() {
    let broker = InProcessBroker::start().await;
    let cli = Cli::for_broker(broker.api);
    let ran = cli.run(&["get", "a", "--namespace=NO"]).await;
    assert_eq!(ran.code, Some(125));
    let start = format!(
        "leasehold: cannot show \"a\": the broker at {} returned: ",
        cli.endpoint
    );
    assert!(ran.stderr.starts_with(&start), "{}", ran.stderr);
    assert!(
        ran.stderr.ends_with(" (InvalidArgument, INVALID_FIELD)\n"),
        "{}",
        ran.stderr
    );
    let ran = cli.run(&["run", "a", "--namespace=NO", "--", "true"]).await;
    assert!(
        ran.stderr.starts_with("leasehold: cannot acquire \"a\": "),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.code, Some(125));
    broker.stop().await;
}

#[tokio::test]
async fn a_flag_wins_over_the_environment_and_that_over_the_context() {
    let broker = InProcessBroker::start().await;
    let cli = Cli::for_broker("127.0.0.1:1");
    let here = format!("http://{}", broker.api);
    let config = |endpoint: &str| {
        format!(
            "context = \"here\"\n[contexts.here]\nendpoint = \"{endpoint}\"\nnamespace = \"shop\"\n[contexts.away]\nendpoint = \"{NOWHERE}\"\n"
        )
    };
    cli.write(".config/leasehold/config.toml", &config(&here));
    let get = ["get", "a", "-o=json"];
    let mut from_context = cli.command(&get);
    from_context.env_remove("LEASEHOLD_ENDPOINT");
    let found = run_command(from_context).await;
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    assert!(
        found.stdout.contains("\"namespace\": \"shop\""),
        "{}",
        found.stdout
    );
    let from_environment = cli.run(&get).await;
    assert_eq!(
        from_environment.code,
        Some(125),
        "the environment says nowhere"
    );
    let flagged = cli
        .run(&[&get[..], &["--endpoint", &here, "--namespace=web"]].concat())
        .await;
    assert_eq!(flagged.code, Some(0), "{}", flagged.stderr);
    assert!(
        flagged.stdout.contains("\"namespace\": \"web\""),
        "{}",
        flagged.stdout
    );
    let mut named = cli.command(&[&get[..], &["--context=away"]].concat());
    named.env_remove("LEASEHOLD_ENDPOINT");
    assert_eq!(run_command(named).await.code, Some(125), "away is nowhere");
    let elsewhere = cli.write("other.toml", &config(NOWHERE));
    let mut other = cli.command(&[&get[..], &["--config", &elsewhere]].concat());
    other.env_remove("LEASEHOLD_ENDPOINT");
    assert_eq!(
        run_command(other).await.code,
        Some(125),
        "the other file says nowhere"
    );
    broker.stop().await;
}

#[tokio::test]
async fn invalid_configurations_are_reported() {
    let cli = Cli::for_broker("127.0.0.1:1");
    let home = cli.home.path().display().to_string();
    let ran = cli.run(&["get", "a", "--context=prod"]).await;
    let stderr = format!(
        "leasehold: there is no context \"prod\", because there is no file {home}/.config/leasehold/config.toml; write one with\n  [contexts.prod]\n  endpoint = \"http://127.0.0.1:7070\"\n"
    );
    assert_eq!((ran.code, ran.stderr), (Some(125), stderr));
    let path = cli.write(
        ".config/leasehold/config.toml",
        "[contexts.dev]\n[contexts.test]\n",
    );
    let ran = cli.run(&["get", "a", "--context=prod"]).await;
    let stderr = format!("leasehold: there is no context \"prod\" in {path}; it has: dev, test\n");
    assert_eq!((ran.code, ran.stderr), (Some(125), stderr));
    cli.write(
        ".config/leasehold/config.toml",
        "[contexts.dev]\nendpont = \"x\"\n",
    );
    let ran = cli.run(&["get", "a"]).await;
    assert!(
        ran.stderr
            .starts_with(&format!("leasehold: the configuration {path}: ")),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("unknown field `endpont`"),
        "{}",
        ran.stderr
    );
    let ran = cli.run(&["get", "a", "--config=/no/such"]).await;
    let stderr = "leasehold: cannot read the configuration /no/such: No such file or directory (os error 2)\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(125), stderr));
}

#[tokio::test]
async fn token_and_certificates_come_from_files() {
    let broker = InProcessBroker::start().await;
    let recorder = CredentialRecorder::start(broker.api).await;
    let (authority, clients) = (Authority::new("brokers"), Authority::new("clients"));
    let server = authority.server(&["127.0.0.1"]);
    let relay = TlsRelay::start(recorder.addr(), &server, Some(&clients)).await;
    let mut cli = Cli::for_broker("127.0.0.1:1");
    cli.endpoint = format!("https://{}", relay.addr());
    let own = clients.client("worker-1");
    cli.write("ca.pem", &authority.pem());
    cli.write("cert.pem", &own.pem());
    cli.write("key.pem", &own.key_pem());
    cli.write("token", "canary-77\n");
    cli.write(
        ".config/leasehold/config.toml",
        "context = \"prod\"\n[contexts.prod]\nca_file = \"../../ca.pem\"\n\
         cert_file = \"../../cert.pem\"\nkey_file = \"../../key.pem\"\ntoken_file = \"../../token\"\n",
    );
    let got = cli.run(&["acquire", "a"]).await;
    assert_eq!(got.code, Some(0), "{}", got.stderr);
    let ran_under = cli.run(&["run", "b", "--", "env"]).await;
    assert_eq!(ran_under.code, Some(0), "{}", ran_under.stderr);
    for text in [
        &got.stdout,
        &got.stderr,
        &ran_under.stdout,
        &ran_under.stderr,
    ] {
        assert!(!text.contains("canary-77"), "{text}");
    }
    let seen = recorder.recorded();
    for method in ["Acquire", "Hold"] {
        let request = &seen[&format!("/leasehold.v1.LockService/{method}")];
        let credential = Some("Bearer canary-77".to_owned());
        assert!(
            !request.is_empty() && request.iter().all(|request| *request == credential),
            "{seen:?}"
        );
    }
    let handshakes = relay.handshakes().completed;
    assert!(
        handshakes
            .iter()
            .all(|request| *request == Some(own.certificate())),
        "its certificate"
    );

    let strange = cli.write("strange.pem", &clients.pem());
    let refused = cli.run(&["get", "a", "--ca-file", &strange]).await;
    assert_eq!(refused.code, Some(125));
    let stderr = "invalid peer certificate: UnknownIssuer";
    assert!(refused.stderr.contains(stderr), "{}", refused.stderr);
    broker.stop().await;
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let cli = Cli::for_broker("127.0.0.1:1");
    for (args, stderr) in [
        (
            ["--token-file", "/no/such"],
            "cannot read the bearer token /no/such: No such file or directory (os error 2)",
        ),
        (
            ["--token-file", "/dev/null"],
            "the token file /dev/null is empty",
        ),
        (
            ["--ca-file", "/no/such"],
            "cannot read the certificates /no/such: No such file or directory (os error 2)",
        ),
        (
            ["--cert-file", "/dev/null"],
            "a client certificate is given alone; add --key-file",
        ),
        (
            ["--key-file", "/dev/null"],
            "a client key is given alone; add --cert-file",
        ),
    ] {
        let ran = cli.run(&[&["get", "a"][..], &args].concat()).await;
        assert_eq!(
            (ran.code, ran.stderr),
            (Some(125), format!("leasehold: {stderr}\n"))
        );
    }
}

#[tokio::test]
async fn a_token_goes_unencrypted_to_other_machines_only_if_that_is_allowed() {
    let broker = InProcessBroker::start().await;
    let mut cli = Cli::for_broker(broker.api);
    let token = format!("--token-file={}", cli.write("token", "s3cret\n"));
    // The first endpoint responds. The second one is in a network reserved for documentation.
    let other = "http://192.0.2.1:7070";
    let admin = format!("--admin-endpoint={other}");
    let force = ["force-release", "a", "l", "--reason=r", "--yes", &admin];
    cli.endpoint = format!("http://{},{other}", broker.api);
    let stderr = format!(
        "leasehold: {other}: the bearer token would be sent unencrypted to another machine; use \
         https, or --allow-insecure-token on a trusted network\n"
    );
    for command in [
        &["get", "a"][..],
        &["acquire", "a"],
        &["run", "a", "--", "true"],
        &["hold", "a"],
        &["ping"],
        &force,
    ] {
        let refused = cli.run(&[&[token.as_str()], command].concat()).await;
        assert_eq!(
            (refused.code, refused.stderr.as_str()),
            (Some(125), stderr.as_str())
        );
    }
    for command in [&["get", "a"][..], &["run", "a", "--", "true"]] {
        let open = cli.run(command).await;
        assert_eq!(open.code, Some(0), "nothing to protect: {open:?}");
        let args = [&["--allow-insecure-token", token.as_str()], command].concat();
        let allowed = cli.run(&args).await;
        assert_eq!(allowed.code, Some(0), "{allowed:?}");
        let mut by_variable = cli.command(&[&[token.as_str()], command].concat());
        by_variable.env("LEASEHOLD_ALLOW_INSECURE_TOKEN", "true");
        let allowed = run_command(by_variable).await;
        assert_eq!(allowed.code, Some(0), "{allowed:?}");
        let context = "[contexts.lan]\ntoken_file = \"token\"\nallow_insecure_token = true\n";
        let config = format!("--config={}", cli.write("config.toml", context));
        let args = [&[config.as_str(), "--context=lan"], command].concat();
        let allowed = cli.run(&args).await;
        assert_eq!(allowed.code, Some(0), "{allowed:?}");
    }
    broker.stop().await;
}
