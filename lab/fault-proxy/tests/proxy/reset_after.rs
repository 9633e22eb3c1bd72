use fault_proxy::{Direction, Effect};

use crate::support::{
    LONG, ONE_WAY, ROUTE, Setup, content, expect_bytes, expect_echo_after_the_end, read_to_reset,
    round_trips, send,
};

#[tokio::test]
async fn reset_after_n_bytes_forwards_exactly_n() {
    for direction in ONE_WAY {
        for bytes in [1, 999, 1000] {
            let setup = Setup::start().await;
            let (mut sender, mut receiver) = setup.connect_along(direction).await;
            setup.inject(Effect::ResetAfter { bytes }, direction, LONG).await;
            let sent = content(1000);
            send(&mut sender, &sent).await;
            let received = read_to_reset(&mut receiver).await;
            assert_eq!(received.len() as u64, bytes);
            assert!(sent.starts_with(&received));
            assert_eq!(read_to_reset(&mut sender).await, b"");
            setup.until_resets(1).await;
        }
    }
}

#[tokio::test]
async fn reset_after_n_bytes_delivers_n_to_a_peer_that_reads_late() {
    // Less than the kernel buffers without a reader, and far more than it sends at once.
    const BYTES: usize = 2 * 1024 * 1024;
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        setup.inject(Effect::ResetAfter { bytes: BYTES as u64 }, direction, LONG).await;
        let sent = content(BYTES);
        send(&mut sender, &sent).await;
        setup.until_forwarded(direction, BYTES).await;
        // The sender is reset first, so the proxy is at the last bytes now. Only now does the receiver read.
        read_to_reset(&mut sender).await;
        let received = read_to_reset(&mut receiver).await;
        assert_eq!(received.len(), BYTES);
        assert!(received == sent);
    }
}

#[tokio::test]
async fn reset_after_n_bytes_counts_from_the_injection() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        round_trips(&mut sender, &mut receiver).await;
        setup.inject(Effect::ResetAfter { bytes: 5 }, direction, LONG).await;
        send(&mut sender, b"1234").await;
        expect_bytes(&mut receiver, b"1234").await;
        send(&mut sender, b"56").await;
        assert_eq!(read_to_reset(&mut receiver).await, b"5");
    }
}

#[tokio::test]
async fn reset_after_n_bytes_ignores_the_other_direction() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        setup.inject(Effect::ResetAfter { bytes: 5 }, direction, LONG).await;
        round_trips(&mut receiver, &mut sender).await;
        send(&mut sender, b"12345").await;
        assert_eq!(read_to_reset(&mut receiver).await, b"12345");
    }
}

#[tokio::test]
async fn each_connection_counts_on_its_own() {
    let setup = Setup::start().await;
    let (mut first_client, mut first_server) = setup.connect().await;
    let (mut second_client, mut second_server) = setup.connect().await;
    setup.inject(Effect::ResetAfter { bytes: 3 }, Direction::Both, LONG).await;
    for (sender, receiver) in
        [(&mut first_client, &mut first_server), (&mut second_server, &mut second_client)]
    {
        send(sender, b"12").await;
        expect_bytes(receiver, b"12").await;
    }
    for (sender, receiver) in
        [(&mut first_client, &mut first_server), (&mut second_server, &mut second_client)]
    {
        send(sender, b"34").await;
        assert_eq!(read_to_reset(receiver).await, b"3");
    }
    setup.until_resets(2).await;
}

#[tokio::test]
async fn several_resets_on_one_route_take_the_first_that_is_reached() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    let pattern = Effect::ResetOnPattern { pattern: b"COMMIT".to_vec(), forward: true };
    setup.inject(Effect::ResetAfter { bytes: 12 }, Direction::TowardUpstream, LONG).await;
    setup.inject(pattern, Direction::TowardUpstream, LONG).await;
    setup.inject(Effect::ResetAfter { bytes: 8 }, Direction::TowardUpstream, LONG).await;
    send(&mut client, b"BEGIN;COMMIT;").await;
    assert_eq!(read_to_reset(&mut server).await, b"BEGIN;CO");
}

#[tokio::test]
async fn a_cleared_reset_does_not_happen() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    setup.inject(Effect::ResetAfter { bytes: 3 }, Direction::Both, LONG).await;
    send(&mut client, b"12").await;
    expect_bytes(&mut server, b"12").await;
    setup.clear().await;
    round_trips(&mut client, &mut server).await;
    assert_eq!(setup.proxy.stats(ROUTE).unwrap().resets, 0);
}

#[tokio::test]
async fn reset_after_n_bytes_ends_by_itself() {
    let effect = Effect::ResetAfter { bytes: 3 };
    expect_echo_after_the_end(&Setup::echo().await, b"message", effect).await;
}

#[tokio::test]
async fn another_fault_does_not_start_the_count_again() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    setup.inject(Effect::ResetAfter { bytes: 3 }, Direction::Both, LONG).await;
    send(&mut client, b"12").await;
    expect_bytes(&mut server, b"12").await;
    setup.inject(Effect::ResetAfter { bytes: 1000 }, Direction::Both, LONG).await;
    send(&mut client, b"34").await;
    assert_eq!(read_to_reset(&mut server).await, b"3");
}
