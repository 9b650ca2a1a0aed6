//! Protection against DNS rebinding: without authentication, the admin listener rejects foreign
//! host names.

use std::net::SocketAddr;

use leasehold_proto::v1::{LockRef, OpenLockRequest, admin_service_client::AdminServiceClient};
use leasehold_tests::{
    broker::{deployment::Deployment, in_process::InProcessBroker, process::BrokerOptions},
    console::client::ConsoleUser,
    telemetry::scrape::scrape,
    until::until,
};
use tonic::{Status, transport::Endpoint};

/// Routes of the admin listener, and an unknown path.
const PATHS: [&str; 9] = [
    "/",
    "/locks",
    "/live?view=overview",
    "/assets/page.js",
    "/livez",
    "/readyz",
    "/metrics",
    "/nothing",
    "/leasehold.v1.AdminService/OpenLock",
];
const FORMS: [&str; 2] = ["/lock/force-release", "/log-filter"];

fn called(at: SocketAddr, host: &str) -> ConsoleUser {
    ConsoleUser::new(at).with_header("host", host)
}

/// Calls the admin service with this host name.
async fn open_lock(at: SocketAddr, host: &str) -> Result<(), Status> {
    let endpoint = Endpoint::from_shared(format!("http://{at}")).expect("an address");
    let origin = format!("http://{host}").parse().expect("a name");
    let channel = endpoint.origin(origin).connect_lazy();
    let open = OpenLockRequest {
        lock: Some(LockRef {
            namespace: String::new(),
            name: "a".to_owned(),
        }),
    };
    let opened = AdminServiceClient::new(channel).open_lock(open).await;
    opened.map(drop)
}

#[tokio::test]
async fn a_rebound_host_name_is_rejected_on_every_route() {
    for ip in ["127.0.0.1", "0.0.0.0"] {
        let broker = InProcessBroker::start_at(ip).await;
        let at = SocketAddr::from(([127, 0, 0, 1], broker.admin.port()));
        until("it is ready", async || {
            let page = ConsoleUser::new(at).get("/").await;
            (page.status == 200).then_some(())
        })
        .await;
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
        ] {
            let user = called(at, &format!("{host}:{}", at.port()));
            for path in PATHS {
                assert_eq!(user.get(path).await.status, 421, "{ip} {host} {path}");
            }
            for path in FORMS {
                assert_eq!(user.post(path, &[]).await.status, 421, "{ip} {host} {path}");
            }
        }
        let refused = open_lock(at, "evil.example").await;
        let refused = refused.expect_err("a rebound name").to_string();
        assert!(refused.contains("421"), "{refused}");
        for host in [
            "127.0.0.1",
            "10.1.2.3:7071",
            "[::1]",
            "[2001:db8::1]:1",
            "localhost",
            "LocalHost:7",
        ] {
            for path in ["/", "/livez"] {
                assert_eq!(
                    called(at, host).get(path).await.status,
                    200,
                    "{ip} {host} {path}"
                );
            }
            open_lock(at, host).await.expect("an address");
        }
        broker.stop().await;
    }
}

#[tokio::test]
async fn configured_host_names_are_accepted_and_others_are_counted() {
    let mut options = BrokerOptions::default();
    let names = "Brokers.Ops.Example, leasehold-admin.locks.svc";
    let setting = ("LEASEHOLD__SERVER__ADMIN_HOSTS", names);
    options
        .env
        .push((setting.0.to_owned(), setting.1.to_owned()));
    let fixture = Deployment::start_single(options).await;
    let at = fixture.brokers[0].admin();
    for (host, status) in [
        ("brokers.ops.example", 200),
        ("BROKERS.ops.example:7071", 200),
        ("leasehold-admin.locks.svc:7071", 200),
        ("ops.example", 421),
        ("x.brokers.ops.example", 421),
    ] {
        assert_eq!(
            called(at, host).get("/livez").await.status,
            status,
            "{host}"
        );
    }
    let counted = scrape(&fixture.brokers[0]).await;
    let counted = counted.sum("leasehold_access_refusals_total", &[("reason", "host")]);
    assert!((counted - 2.0).abs() < f64::EPSILON, "{counted}");
}

#[tokio::test]
async fn names_with_ports_are_no_names() {
    for names in ["ops.example:7071", "http://ops.example", "a b"] {
        let mut options = BrokerOptions::for_store("memory".to_owned());
        let setting = (
            "LEASEHOLD__SERVER__ADMIN_HOSTS".to_owned(),
            names.to_owned(),
        );
        options.env.push(setting);
        let output = options.failed_start_output().await;
        assert!(output.contains("server.admin_hosts"), "{names}: {output}");
    }
}
