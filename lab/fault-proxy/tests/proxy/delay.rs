use std::time::{Duration, Instant};

use fault_proxy::{Direction, Effect, MAX_DELAY};
use tokio::{io::AsyncWriteExt as _, time::timeout};

use crate::support::{
    DEADLINE, LONG, ONE_WAY, SHORT, Setup, content, expect_bytes, read_to_end_of_file, read_to_reset,
    round_trips, send, within,
};

const DELAY: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_delay_keeps_content_and_order() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        setup.inject(Effect::Delay(Duration::from_millis(20)), direction, LONG).await;
        let sent = content(2 * 1024 * 1024);
        let (_, received) = tokio::join!(
            async {
                for part in sent.chunks(777) {
                    send(&mut sender, part).await;
                }
                sender.shutdown().await.unwrap();
            },
            read_to_end_of_file(&mut receiver),
        );
        assert!(received == sent);
    }
}

#[tokio::test]
async fn a_delay_holds_each_byte_back() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        setup.inject(Effect::Delay(DELAY), direction, LONG).await;
        for message in [b"first", b"other"] {
            let sent_at = Instant::now();
            send(&mut sender, message).await;
            expect_bytes(&mut receiver, message).await;
            assert!(sent_at.elapsed() >= DELAY);
        }
    }
}

#[tokio::test]
async fn a_delay_leaves_the_other_direction_alone() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        // The longest delay: with it, the round trips could not end before the deadline.
        setup.inject(Effect::Delay(MAX_DELAY), direction, LONG).await;
        round_trips(&mut receiver, &mut sender).await;
    }
}

#[tokio::test]
async fn a_delay_keeps_the_throughput() {
    /// As many bytes as may wait under a delay, in reads of 16 KiB.
    const CHUNKS: u32 = 32;
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    setup.inject(Effect::Delay(DELAY), Direction::TowardUpstream, LONG).await;
    let sent = content(512 * 1024);
    let sent_at = Instant::now();
    send(&mut client, &sent).await;
    expect_bytes(&mut server, &sent).await;
    // A proxy that waits for each chunk in turn needs 9.6 seconds; one delay is 0.3. A slow machine needs the margin.
    assert!(sent_at.elapsed() < DELAY * CHUNKS * 3 / 4, "{:?}", sent_at.elapsed());
}

#[tokio::test]
async fn several_delays_add_up() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    setup.inject(Effect::Delay(DELAY), Direction::TowardUpstream, LONG).await;
    setup.inject(Effect::Delay(DELAY), Direction::Both, LONG).await;
    let sent_at = Instant::now();
    send(&mut client, b"slow").await;
    expect_bytes(&mut server, b"slow").await;
    assert!(sent_at.elapsed() >= DELAY * 2);
}

#[tokio::test]
async fn an_end_of_file_is_delayed_too() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    setup.inject(Effect::Delay(DELAY), Direction::TowardUpstream, LONG).await;
    let ended_at = Instant::now();
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end_of_file(&mut server).await, b"");
    assert!(ended_at.elapsed() >= DELAY);
}

#[tokio::test]
async fn a_reset_by_a_peer_is_delayed_too() {
    let setup = Setup::start().await;
    let (client, mut server) = setup.connect().await;
    setup.inject(Effect::Delay(DELAY), Direction::TowardUpstream, LONG).await;
    let ended_at = Instant::now();
    client.set_zero_linger().unwrap();
    drop(client);
    assert_eq!(read_to_reset(&mut server).await, b"");
    assert!(ended_at.elapsed() >= DELAY);
}

#[tokio::test]
async fn a_delay_ends_by_itself_and_releases_its_bytes() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        let injected_at = Instant::now();
        setup.inject(Effect::Delay(MAX_DELAY), direction, SHORT).await;
        send(&mut sender, b"released").await;
        expect_bytes(&mut receiver, b"released").await;
        assert!(injected_at.elapsed() >= SHORT);
        assert!(injected_at.elapsed() < DEADLINE);
    }
}

#[tokio::test]
async fn a_cleared_delay_releases_its_bytes_in_order() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    setup.inject(Effect::Delay(MAX_DELAY), Direction::Both, LONG).await;
    let sent = content(300_000);
    send(&mut client, &sent).await;
    setup.clear().await;
    expect_bytes(&mut server, &sent).await;
}

#[tokio::test]
async fn a_delay_buffers_a_bounded_number_of_bytes() {
    let setup = Setup::start().await;
    let (mut client, _server) = setup.connect().await;
    setup.inject(Effect::Delay(MAX_DELAY), Direction::TowardUpstream, LONG).await;
    // Far more than the queue and both socket buffers.
    let sent = vec![0; 64 * 1024 * 1024];
    assert!(timeout(Duration::from_secs(1), client.write_all(&sent)).await.is_err());
}

#[tokio::test]
async fn many_small_writes_pass_a_delay() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    setup.inject(Effect::Delay(Duration::from_millis(50)), Direction::TowardUpstream, LONG).await;
    let sent = content(20_000);
    let (_, received) = tokio::join!(
        async {
            for byte in &sent {
                send(&mut client, &[*byte]).await;
            }
            within(client.shutdown()).await.unwrap();
        },
        read_to_end_of_file(&mut server),
    );
    assert!(received == sent);
}
