use std::io::ErrorKind::{BrokenPipe, ConnectionReset};

use fault_proxy::{Direction, Effect, Fault, Stats};

use crate::support::{
    DEADLINE, LONG, ONE_WAY, ROUTE, Setup, along, connect, echo, expect_bytes, expect_echo_after_the_end,
    expect_silence, read_to_reset, round_trips, send, within,
};

#[tokio::test]
async fn a_cut_resets_both_sides_of_open_connections() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    round_trips(&mut client, &mut server).await;
    setup.inject(Effect::Cut, Direction::Both, LONG).await;
    // Without a wait: the injection returns when the connections are reset.
    assert_eq!(setup.proxy.stats(ROUTE).unwrap().resets, 1);
    read_to_reset(&mut client).await;
    read_to_reset(&mut server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_open_connections_are_reset_when_the_injection_returns() {
    let setup = Setup::start().await;
    for turn in 1..=20 {
        let mut pairs = Vec::new();
        for _ in 0..20 {
            let (mut client, mut server) = setup.connect().await;
            send(&mut client, b"open").await;
            expect_bytes(&mut server, b"open").await;
            pairs.push((client, server));
        }
        setup.inject(Effect::Cut, Direction::Both, LONG).await;
        assert_eq!(setup.proxy.stats(ROUTE).unwrap().resets, turn * 20);
        setup.clear().await;
    }
}

#[tokio::test]
async fn a_cut_refuses_new_connections_with_a_reset_and_counts_them() {
    let proxy = Setup::echo().await;
    let fault = Fault::new(Effect::Cut, Direction::Both, LONG);
    proxy.inject(ROUTE, fault).await.unwrap();
    for refused in 1..=3 {
        let error = within(echo(&proxy, b"message")).await.unwrap_err().kind();
        assert!(matches!(error, ConnectionReset | BrokenPipe), "{error}");
        let counted = proxy.until(ROUTE, DEADLINE, |stats| stats.refused == refused).await;
        assert_eq!(counted.unwrap().total, 0);
    }
    proxy.clear(ROUTE).await.unwrap();
    within(echo(&proxy, b"message")).await.unwrap();
}

#[tokio::test]
async fn a_cut_toward_one_side_leaves_the_other_side_open_and_silent_until_its_end() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (client, server) = setup.connect().await;
        let (mut other, mut reset) = along(direction, client, server);
        round_trips(&mut other, &mut reset).await;
        setup.inject(Effect::Cut, direction, LONG).await;
        read_to_reset(&mut reset).await;
        send(&mut other, b"into a connection without a peer").await;
        expect_silence(&mut other).await;
        assert_eq!(setup.proxy.stats(ROUTE).unwrap().open, 1);
        setup.clear().await;
        read_to_reset(&mut other).await;
        assert_eq!(setup.proxy.stats(ROUTE).unwrap().resets, 1);
    }
}

#[tokio::test]
async fn a_second_cut_resets_the_side_that_the_first_left_open() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    round_trips(&mut client, &mut server).await;
    setup.inject(Effect::Cut, Direction::TowardClient, LONG).await;
    read_to_reset(&mut client).await;
    setup.inject(Effect::Cut, Direction::TowardUpstream, LONG).await;
    read_to_reset(&mut server).await;
}

#[tokio::test]
async fn a_cut_ends_by_itself() {
    expect_echo_after_the_end(&Setup::echo().await, b"message", Effect::Cut).await;
}

#[tokio::test]
async fn a_cut_passes_through_a_black_hole() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    setup.inject(Effect::BlackHole, Direction::Both, LONG).await;
    // This one waits for its upstream and has no second side yet.
    let mut waiting = connect(&setup.proxy).await;
    let two_open = |stats: &Stats| stats.open == 2;
    setup.proxy.until(ROUTE, DEADLINE, two_open).await.unwrap();
    setup.inject(Effect::Cut, Direction::Both, LONG).await;
    for stream in [&mut client, &mut server, &mut waiting] {
        read_to_reset(stream).await;
    }
}

#[tokio::test]
async fn a_cut_while_the_proxy_connects_resets_both_sides() {
    // When the upstream has accepted, the proxy may not have noticed it yet. Many turns take that way too.
    for _ in 0..50 {
        let setup = Setup::start().await;
        let (mut client, mut server) = setup.connect().await;
        setup.inject(Effect::Cut, Direction::Both, LONG).await;
        read_to_reset(&mut client).await;
        read_to_reset(&mut server).await;
    }
}
