use std::time::{Duration, Instant};

use fault_proxy::{Direction, Effect, Error, Fault, MAX_DELAY, MAX_FAULT_DURATION, MAX_FAULTS, Proxy, Route};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::support::{DEADLINE, LONG, ROUTE, Setup, connect, read_to_reset, round_trips, within};

#[tokio::test]
async fn connections_above_the_limit_are_reset_and_counted() {
    let setup = Setup::with(|route| Route { max_connections: 2, ..route }).await;
    let (mut client, mut server) = setup.connect().await;
    let (other_client, other_server) = setup.connect().await;
    for refused in 1..=3 {
        let mut client = connect_to_refusal(&setup.proxy).await;
        if let Some(client) = &mut client {
            read_to_reset(client).await;
        }
        let stats = setup.proxy.until(ROUTE, DEADLINE, |stats| stats.refused == refused).await.unwrap();
        assert_eq!((stats.open, stats.total), (2, 2));
    }
    round_trips(&mut client, &mut server).await;
    drop((other_client, other_server));
    setup.proxy.until(ROUTE, DEADLINE, |stats| stats.open == 1).await.unwrap();
    let (mut client, mut server) = setup.connect().await;
    round_trips(&mut client, &mut server).await;
}

/// The reset may come before the client's connect returns. That is a refusal too.
async fn connect_to_refusal(proxy: &Proxy) -> Option<TcpStream> {
    within(TcpStream::connect(proxy.address(ROUTE).unwrap())).await.ok()
}

#[tokio::test]
async fn a_client_is_reset_when_the_upstream_refuses() {
    let (proxy, _port) = Setup::refusing().await;
    read_to_reset(&mut connect(&proxy).await).await;
    let stats = proxy.until(ROUTE, DEADLINE, |stats| stats.open == 0).await.unwrap();
    assert_eq!((stats.connect_failures, stats.resets), (1, 0));
}

#[tokio::test]
async fn an_upstream_that_does_not_answer_is_given_up_at_the_connect_deadline() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    // The kernel ignores connection requests to a listener whose queue is full.
    let mut queued = Vec::new();
    while let Ok(connected) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        queued.push(connected.unwrap());
    }
    let proxy = Proxy::start(vec![Route::new(ROUTE, address.to_string())]).await.unwrap();
    let connected_at = Instant::now();
    read_to_reset(&mut connect(&proxy).await).await;
    assert!(connected_at.elapsed() >= Duration::from_secs(4));
    assert_eq!(proxy.stats(ROUTE).unwrap().connect_failures, 1);
}

#[tokio::test]
async fn invalid_faults_are_refused() {
    let setup = Setup::start().await;
    let both = |effect| Fault::new(effect, Direction::Both, LONG);
    let pattern = |length| Effect::ResetOnPattern { pattern: vec![b'x'; length], forward: true };
    let invalid = [
        Fault::new(Effect::BlackHole, Direction::Both, Duration::ZERO),
        Fault::new(Effect::BlackHole, Direction::Both, MAX_FAULT_DURATION + Duration::from_millis(1)),
        both(Effect::BlackHole).times(1),
        both(Effect::ResetAfter { bytes: 0 }),
        both(Effect::Delay(Duration::ZERO)),
        both(Effect::Delay(MAX_DELAY + Duration::from_millis(1))),
        both(pattern(0)),
        both(pattern(1025)),
    ];
    for fault in invalid {
        let refused = setup.proxy.inject(ROUTE, fault.clone()).await;
        assert!(matches!(refused, Err(Error::InvalidFault(_))), "{fault:?}");
        let refused = setup.proxy.replace(ROUTE, vec![both(Effect::Cut), fault]).await;
        assert!(matches!(refused, Err(Error::InvalidFault(_))));
    }
    // Nothing of the refused lists is in force.
    let (mut client, mut server) = setup.connect().await;
    round_trips(&mut client, &mut server).await;
}

#[tokio::test]
async fn a_route_has_a_limited_number_of_faults() {
    let setup = Setup::start().await;
    let delay = Fault::new(Effect::Delay(Duration::from_millis(1)), Direction::Both, LONG);
    for _ in 0..MAX_FAULTS {
        setup.inject_fault(delay.clone()).await;
    }
    assert!(matches!(setup.proxy.inject(ROUTE, delay.clone()).await, Err(Error::InvalidFault(_))));
    let refused = setup.proxy.replace(ROUTE, vec![delay.clone(); MAX_FAULTS + 1]).await;
    assert!(matches!(refused, Err(Error::InvalidFault(_))));
    setup.proxy.replace(ROUTE, vec![delay; MAX_FAULTS]).await.unwrap();
}

#[tokio::test]
async fn an_unknown_route_is_an_error() {
    let setup = Setup::start().await;
    let fault = Fault::new(Effect::Cut, Direction::Both, LONG);
    assert!(matches!(setup.proxy.address("other"), Err(Error::UnknownRoute(_))));
    assert!(matches!(setup.proxy.stats("other"), Err(Error::UnknownRoute(_))));
    assert!(matches!(setup.proxy.inject("other", fault).await, Err(Error::UnknownRoute(_))));
    assert!(matches!(setup.proxy.clear("other").await, Err(Error::UnknownRoute(_))));
}

#[tokio::test]
async fn a_condition_that_does_not_become_true_ends_at_its_deadline() {
    let setup = Setup::start().await;
    let waited = setup.proxy.until(ROUTE, Duration::from_millis(20), |stats| stats.resets == 1).await;
    assert!(matches!(waited, Err(Error::DeadlinePassed { .. })));
}
