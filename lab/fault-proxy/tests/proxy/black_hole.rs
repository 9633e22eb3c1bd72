use std::time::{Duration, Instant};

use fault_proxy::{Direction, Effect, Fault, MAX_DELAY, Stats};
use tokio::{io::AsyncWriteExt as _, time::timeout};

use crate::support::{
    DEADLINE, LONG, ONE_WAY, ROUTE, SHORT, Setup, connect, content, expect_bytes, expect_silence,
    read_to_end_of_file, read_to_reset, round_trips, send, within,
};

#[tokio::test]
async fn a_black_hole_stops_one_direction_and_resumes_with_nothing_lost() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        setup.inject(Effect::BlackHole, direction, LONG).await;
        let sent = content(20_000);
        send(&mut sender, &sent).await;
        round_trips(&mut receiver, &mut sender).await;
        expect_silence(&mut receiver).await;
        setup.clear().await;
        expect_bytes(&mut receiver, &sent).await;
        round_trips(&mut sender, &mut receiver).await;
    }
}

#[tokio::test]
async fn a_black_hole_both_ways_keeps_connections_open_and_resumes_with_nothing_lost() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    setup.inject(Effect::BlackHole, Direction::Both, LONG).await;
    send(&mut client, b"question").await;
    send(&mut server, b"notice").await;
    expect_silence(&mut client).await;
    expect_silence(&mut server).await;
    let stats = setup.proxy.stats(ROUTE).unwrap();
    assert_eq!((stats.open, stats.bytes_to_upstream, stats.bytes_to_client), (1, 0, 0));
    setup.clear().await;
    expect_bytes(&mut server, b"question").await;
    expect_bytes(&mut client, b"notice").await;
}

#[tokio::test]
async fn a_black_hole_in_the_middle_of_a_stream_loses_nothing() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    let sent = content(16 * 1024 * 1024);
    tokio::join!(
        async {
            send(&mut client, &sent).await;
            client.shutdown().await.unwrap();
        },
        async { assert!(read_to_end_of_file(&mut server).await == sent) },
        async {
            for megabytes in 1..=4 {
                let reached = |stats: &Stats| stats.bytes_to_upstream >= megabytes << 20;
                setup.proxy.until(ROUTE, DEADLINE, reached).await.unwrap();
                setup.inject(Effect::BlackHole, Direction::Both, LONG).await;
                let stopped_at = setup.proxy.stats(ROUTE).unwrap().bytes_to_upstream;
                let goes_on = |stats: &Stats| stats.bytes_to_upstream != stopped_at;
                let waited = setup.proxy.until(ROUTE, Duration::from_millis(50), goes_on).await;
                assert!(waited.is_err(), "bytes were forwarded after the injection");
                setup.clear().await;
            }
        },
    );
}

#[tokio::test]
async fn bytes_that_wait_in_the_proxy_wait_for_the_end_of_a_black_hole() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        setup.inject(Effect::Delay(MAX_DELAY), direction, LONG).await;
        send(&mut sender, b"waiting").await;
        // The proxy has read the bytes by then.
        round_trips(&mut receiver, &mut sender).await;
        let black_hole = Fault::new(Effect::BlackHole, direction, LONG);
        within(setup.proxy.replace(ROUTE, vec![black_hole])).await.unwrap();
        expect_silence(&mut receiver).await;
        setup.clear().await;
        expect_bytes(&mut receiver, b"waiting").await;
    }
}

/// The kernel of a proxy that reads nothing keeps the bytes in the receive queue of its socket.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_black_hole_reads_nothing() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    setup.inject(Effect::BlackHole, Direction::TowardUpstream, LONG).await;
    send(&mut client, b"12345").await;
    round_trips(&mut server, &mut client).await;
    let (proxy, client) = (client.peer_addr().unwrap().port(), client.local_addr().unwrap().port());
    let addresses = format!("0100007F:{proxy:04X} 0100007F:{client:04X}");
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let line = table.lines().find(|line| line.contains(&addresses)).unwrap();
    let queues = line.split_ascii_whitespace().nth(4).unwrap();
    assert!(queues.ends_with(":00000005"), "{line}");
}

#[tokio::test]
async fn a_sender_into_a_black_hole_is_blocked() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, _receiver) = setup.connect_along(direction).await;
        setup.inject(Effect::BlackHole, direction, LONG).await;
        // Far more than both socket buffers.
        let sent = vec![0; 64 * 1024 * 1024];
        assert!(timeout(Duration::from_secs(1), sender.write_all(&sent)).await.is_err());
    }
}

#[tokio::test]
async fn a_black_hole_accepts_connections_that_are_carried_after_its_end() {
    for direction in [Direction::TowardUpstream, Direction::TowardClient, Direction::Both] {
        let setup = Setup::start().await;
        setup.inject(Effect::BlackHole, direction, LONG).await;
        let mut client = connect(&setup.proxy).await;
        send(&mut client, b"question").await;
        setup.proxy.until(ROUTE, DEADLINE, |stats| stats.open == 1).await.unwrap();
        expect_silence(&mut client).await;
        setup.clear().await;
        let (mut server, _) = within(setup.upstream.accept()).await.unwrap();
        expect_bytes(&mut server, b"question").await;
        round_trips(&mut server, &mut client).await;
    }
}

#[tokio::test]
async fn a_black_hole_toward_the_upstream_carries_no_connection_request() {
    let setup = Setup::start().await;
    setup.inject(Effect::BlackHole, Direction::TowardUpstream, LONG).await;
    let _client = connect(&setup.proxy).await;
    setup.proxy.until(ROUTE, DEADLINE, |stats| stats.open == 1).await.unwrap();
    assert!(timeout(Duration::from_millis(100), setup.upstream.accept()).await.is_err());
}

#[tokio::test]
async fn a_black_hole_holds_ends_and_resets_back() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut closing, mut of_closing) = setup.connect_along(direction).await;
        let (resetting, mut of_resetting) = setup.connect_along(direction).await;
        setup.inject(Effect::BlackHole, direction, LONG).await;
        closing.shutdown().await.unwrap();
        resetting.set_zero_linger().unwrap();
        drop(resetting);
        expect_silence(&mut of_closing).await;
        expect_silence(&mut of_resetting).await;
        setup.clear().await;
        assert_eq!(read_to_end_of_file(&mut of_closing).await, b"");
        assert_eq!(read_to_reset(&mut of_resetting).await, b"");
        drop(of_closing);
    }
}

#[tokio::test]
async fn a_black_hole_toward_the_sender_holds_a_reset_back_that_a_write_notices() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, receiver) = setup.connect_along(direction).await;
        let toward_sender = match direction {
            Direction::TowardUpstream => Direction::TowardClient,
            _ => Direction::TowardUpstream,
        };
        setup.inject(Effect::BlackHole, toward_sender, LONG).await;
        receiver.set_zero_linger().unwrap();
        drop(receiver);
        send(&mut sender, b"to a socket that is gone").await;
        expect_silence(&mut sender).await;
        setup.clear().await;
        assert_eq!(read_to_reset(&mut sender).await, b"");
    }
}

#[tokio::test]
async fn a_black_hole_toward_the_client_holds_a_refusal_by_the_upstream_back() {
    let (proxy, _port) = Setup::refusing().await;
    let fault = Fault::new(Effect::BlackHole, Direction::TowardClient, LONG);
    proxy.inject(ROUTE, fault).await.unwrap();
    let mut client = connect(&proxy).await;
    proxy.until(ROUTE, DEADLINE, |stats| stats.connect_failures == 1).await.unwrap();
    expect_silence(&mut client).await;
    proxy.clear(ROUTE).await.unwrap();
    read_to_reset(&mut client).await;
}

#[tokio::test]
async fn a_black_hole_ends_by_itself() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        let injected_at = Instant::now();
        setup.inject(Effect::BlackHole, direction, SHORT).await;
        send(&mut sender, b"late").await;
        expect_bytes(&mut receiver, b"late").await;
        assert!(injected_at.elapsed() >= SHORT);
    }
}

#[tokio::test]
async fn the_end_of_one_fault_leaves_the_others() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    setup.inject(Effect::BlackHole, Direction::Both, SHORT).await;
    setup.inject(Effect::ResetAfter { bytes: 3 }, Direction::Both, LONG).await;
    send(&mut client, b"12345").await;
    assert_eq!(read_to_reset(&mut server).await, b"123");
}
