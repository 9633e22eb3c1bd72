use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use fault_proxy::{Direction, Effect, Fault};
use tokio::{io::AsyncReadExt as _, net::TcpStream, time::sleep};

use crate::support::{LONG, ROUTE, Setup, connect, round_trips, send, within};

async fn until_refused(address: SocketAddr) {
    within(async {
        while TcpStream::connect(address).await.map_err(|error| error.kind()).err()
            != Some(ErrorKind::ConnectionRefused)
        {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Waits for an end of file or a reset: both say that the proxy has closed its socket.
async fn until_closed(stream: &mut TcpStream) {
    assert!(matches!(within(stream.read(&mut [0])).await, Ok(0) | Err(_)));
}

#[tokio::test]
async fn dropping_the_proxy_stops_everything() {
    let mut setup = Setup::start().await;
    let control = setup.proxy.serve_control("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = setup.proxy.address(ROUTE).unwrap();
    let (mut client, mut server) = setup.connect().await;
    round_trips(&mut client, &mut server).await;
    drop(setup.proxy);
    until_closed(&mut client).await;
    until_closed(&mut server).await;
    until_refused(address).await;
    until_refused(control).await;
}

#[tokio::test]
async fn dropping_the_proxy_closes_connections_to_the_control_api() {
    let mut proxy = Setup::echo().await;
    let control = proxy.serve_control("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let mut idle = TcpStream::connect(control).await.unwrap();
    send(&mut idle, b"GET /routes HTTP/1.1\r\nhost: control\r\n\r\n").await;
    within(idle.readable()).await.unwrap();
    let mut unfinished = TcpStream::connect(control).await.unwrap();
    send(&mut unfinished, b"GET /routes HTTP/1.1\r\n").await;
    drop(proxy);
    within(idle.read_to_end(&mut Vec::new())).await.unwrap();
    within(unfinished.read_to_end(&mut Vec::new())).await.ok();
}

#[tokio::test]
async fn dropping_the_proxy_ends_connections_under_every_fault() {
    let pattern = Effect::ResetOnPattern { pattern: b"COMMIT".to_vec(), forward: true };
    let delay = Effect::Delay(Duration::from_secs(60));
    let trickle = Effect::Trickle { bytes_per_second: 1.try_into().unwrap() };
    for effect in [Effect::BlackHole, delay, trickle, pattern] {
        let setup = Setup::start().await;
        let (mut client, mut server) = setup.connect().await;
        setup.inject_fault(Fault::new(effect, Direction::Both, LONG)).await;
        let mut another = connect(&setup.proxy).await;
        send(&mut client, b"not yet forwarded").await;
        drop(setup.proxy);
        until_closed(&mut another).await;
        within(client.read_to_end(&mut Vec::new())).await.ok();
        within(server.read_to_end(&mut Vec::new())).await.ok();
    }
}
