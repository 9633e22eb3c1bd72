use fault_proxy::{Direction, Effect, Fault};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinSet,
};

use crate::support::{
    DEADLINE, LONG, ONE_WAY, ROUTE, Setup, connect, expect_bytes, expect_echo_after_the_end, read_to_reset,
    receive, round_trips, send, within,
};

fn commit(forward: bool) -> Effect {
    Effect::ResetOnPattern { pattern: b"COMMIT".to_vec(), forward }
}

#[tokio::test]
async fn a_forwarded_pattern_arrives_with_the_rest_of_its_message() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        setup.inject(commit(true), direction, LONG).await;
        send(&mut sender, b"BEGIN; ").await;
        expect_bytes(&mut receiver, b"BEGIN; ").await;
        send(&mut sender, b"COMMIT;\0").await;
        assert_eq!(read_to_reset(&mut receiver).await, b"COMMIT;\0");
        assert_eq!(read_to_reset(&mut sender).await, b"");
    }
}

#[tokio::test]
async fn a_pattern_that_is_not_forwarded_does_not_arrive() {
    for direction in ONE_WAY {
        for (sent, expected) in [(&b"BEGIN; COMMIT; SELECT"[..], &b"BEGIN; "[..]), (b"COMMIT", b"")] {
            let setup = Setup::start().await;
            let (mut sender, mut receiver) = setup.connect_along(direction).await;
            setup.inject(commit(false), direction, LONG).await;
            send(&mut sender, sent).await;
            assert_eq!(read_to_reset(&mut receiver).await, expected);
            assert_eq!(read_to_reset(&mut sender).await, b"");
        }
    }
}

#[tokio::test]
async fn a_pattern_is_found_across_chunk_boundaries() {
    for direction in ONE_WAY {
        for (forward, expected) in [(true, &b"Ty"[..]), (false, b"")] {
            let setup = Setup::start().await;
            let (mut sender, mut receiver) = setup.connect_along(direction).await;
            setup.inject(commit(forward), direction, LONG).await;
            // Each byte is a chunk of its own: the next one is sent when the last one has arrived.
            for byte in b"xCOMCOMMI" {
                send(&mut sender, &[*byte]).await;
                expect_bytes(&mut receiver, &[*byte]).await;
            }
            send(&mut sender, b"Ty").await;
            assert_eq!(read_to_reset(&mut receiver).await, expected);
        }
    }
}

#[tokio::test]
async fn a_trickle_forwards_as_much_of_a_pattern() {
    for (forward, expected) in [(true, &b"xCOMMITyz"[..]), (false, b"x")] {
        let setup = Setup::start().await;
        let (mut client, mut server) = setup.connect().await;
        setup.inject(commit(forward), Direction::TowardUpstream, LONG).await;
        let bytes_per_second = 20.try_into().unwrap();
        setup.inject(Effect::Trickle { bytes_per_second }, Direction::TowardUpstream, LONG).await;
        send(&mut client, b"xCOMMITyz").await;
        assert_eq!(read_to_reset(&mut server).await, expected);
    }
}

#[tokio::test]
async fn the_answer_to_a_forwarded_pattern_never_arrives() {
    let setup = Setup::start().await;
    setup.inject(commit(true), Direction::TowardUpstream, LONG).await;
    for resets in 1..=30 {
        let (mut client, mut server) = setup.connect().await;
        let answer = async {
            expect_bytes(&mut server, b"COMMIT").await;
            // Fails when the reset is faster.
            let _ = within(server.write_all(b"committed")).await;
        };
        let ask = async {
            send(&mut client, b"COMMIT").await;
            assert_eq!(read_to_reset(&mut client).await, b"");
        };
        tokio::join!(answer, ask);
        setup.until_resets(resets).await;
    }
    assert_eq!(setup.proxy.stats(ROUTE).unwrap().bytes_to_client, 0);
}

#[tokio::test]
async fn a_beginning_of_the_pattern_is_not_held_back() {
    for forward in [true, false] {
        let setup = Setup::start().await;
        let (mut client, mut server) = setup.connect().await;
        setup.inject(commit(forward), Direction::Both, LONG).await;
        send(&mut client, b"COMMI").await;
        expect_bytes(&mut server, b"COMMI").await;
        send(&mut server, b"COMMA").await;
        expect_bytes(&mut client, b"COMMA").await;
    }
}

#[tokio::test]
async fn a_pattern_in_the_other_direction_is_ignored() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        setup.inject(commit(true), direction, LONG).await;
        send(&mut receiver, b"COMMIT").await;
        expect_bytes(&mut sender, b"COMMIT").await;
        round_trips(&mut sender, &mut receiver).await;
    }
}

#[tokio::test]
async fn a_pattern_with_one_time_resets_one_connection() {
    let setup = Setup::start().await;
    setup.inject_fault(Fault::new(commit(true), Direction::TowardUpstream, LONG).times(1)).await;
    let (mut client, mut server) = setup.connect().await;
    send(&mut client, b"COMMIT").await;
    assert_eq!(read_to_reset(&mut server).await, b"COMMIT");
    read_to_reset(&mut client).await;
    let (mut client, mut server) = setup.connect().await;
    send(&mut client, b"COMMIT").await;
    expect_bytes(&mut server, b"COMMIT").await;
    round_trips(&mut client, &mut server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_limited_number_of_resets_is_exact_among_concurrent_connections() {
    let proxy = Setup::echo().await;
    let fault = Fault::new(commit(true), Direction::TowardUpstream, LONG).times(3);
    proxy.inject(ROUTE, fault).await.unwrap();
    let mut clients = JoinSet::new();
    for _ in 0..12 {
        let mut client = connect(&proxy).await;
        clients.spawn(async move {
            client.write_all(b"COMMIT").await?;
            client.read_exact(&mut [0; 6]).await
        });
    }
    let results = within(clients.join_all()).await;
    assert_eq!(results.iter().filter(|result| result.is_err()).count(), 3, "{results:?}");
    assert_eq!(proxy.until(ROUTE, DEADLINE, |stats| stats.resets == 3).await.unwrap().total, 12);
}

#[tokio::test]
async fn a_pattern_ends_by_itself() {
    expect_echo_after_the_end(&Setup::echo().await, b"COMMIT", commit(true)).await;
}

#[tokio::test]
async fn bytes_before_the_injection_do_not_count() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    send(&mut client, b"COMM").await;
    assert_eq!(receive(&mut server, 4).await, b"COMM");
    setup.inject(commit(true), Direction::Both, LONG).await;
    send(&mut client, b"IT").await;
    expect_bytes(&mut server, b"IT").await;
}

#[tokio::test]
async fn another_fault_does_not_interrupt_a_pattern() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    setup.inject(commit(true), Direction::Both, LONG).await;
    send(&mut client, b"COMM").await;
    expect_bytes(&mut server, b"COMM").await;
    setup.inject(Effect::ResetAfter { bytes: 1000 }, Direction::Both, LONG).await;
    send(&mut client, b"IT").await;
    assert_eq!(read_to_reset(&mut server).await, b"IT");
}
