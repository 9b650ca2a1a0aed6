//! TLS handshakes. Handshakes from one address are processed with limited concurrency,
//! independently of other addresses.

use std::{io, net::IpAddr, sync::Arc};

use leasehold_tests::{
    broker::{
        process::BrokerProcess,
        tls::{BrokerTls, HOST},
    },
    net::{certificates::client_config, raw_http2::RawHttp2Options},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, pki_types::ServerName},
};

/// Number of concurrent handshakes of one address.
const AT_ONCE: usize = 32;
/// First bytes of a handshake that is never completed.
const HALF_HELLO: [u8; 8] = [0x16, 3, 1, 2, 0, 1, 0, 1];

async fn tcp(broker: &BrokerProcess, from: IpAddr) -> TcpStream {
    let connection_options = RawHttp2Options {
        local_ip: from,
        ..RawHttp2Options::new(broker.addr())
    };
    connection_options.connect_tcp().await.expect("a backlog")
}

async fn handshake(tcp: TcpStream, config: &Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(HOST).expect("an address");
    TlsConnector::from(Arc::clone(config))
        .connect(name, tcp)
        .await
}

#[tokio::test]
async fn handshakes_of_an_address_wait_for_each_other() {
    let tls = BrokerTls::create(false);
    let options = tls.options("memory".to_owned());
    let broker = BrokerProcess::start(&options).await;
    let config = client_config(&tls.authority, None);
    let [one, other] = [2, 3].map(|host| IpAddr::from([127, 0, 0, host]));
    let mut half = Vec::new();
    for _ in 0..AT_ONCE {
        let mut tcp = tcp(&broker, one).await;
        tcp.write_all(&HALF_HELLO).await.expect("it is open");
        half.push(tcp);
    }
    // The broker accepts connections in order, so this connection waits for the handshakes before
    // it.
    let waits = handshake(tcp(&broker, one).await, &config);
    let mut waits = std::pin::pin!(waits);
    let shaken = async {
        for _ in 0..10 {
            let shaken = handshake(tcp(&broker, other).await, &config).await;
            shaken.expect("another address does not wait");
        }
    };
    tokio::select! {
        biased;
        waited = &mut waits => panic!("it did not wait: {:?}", waited.map(drop)),
        () = shaken => {}
    }
    drop(half);
    waits.await.expect("its turn");
}
