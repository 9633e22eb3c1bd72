use std::time::{Duration, Instant};

use fault_proxy::{Direction, Effect};
use tokio::io::AsyncWriteExt as _;

use crate::support::{
    LONG, ONE_WAY, SHORT, Setup, content, expect_bytes, read_to_end_of_file, round_trips, send,
};

fn trickle(bytes_per_second: u32) -> Effect {
    Effect::Trickle { bytes_per_second: bytes_per_second.try_into().unwrap() }
}

#[tokio::test]
async fn a_trickle_keeps_content_and_order() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        setup.inject(trickle(1_000_000), direction, LONG).await;
        let sent = content(300_000);
        let (_, received) = tokio::join!(
            async {
                send(&mut sender, &sent).await;
                sender.shutdown().await.unwrap();
            },
            read_to_end_of_file(&mut receiver),
        );
        assert!(received == sent);
    }
}

#[tokio::test]
async fn a_trickle_forwards_at_most_its_rate() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        setup.inject(trickle(10_000), direction, LONG).await;
        let sent = content(5_000);
        let sent_at = Instant::now();
        send(&mut sender, &sent).await;
        expect_bytes(&mut receiver, &sent).await;
        // The first twentieth of a second's bytes is forwarded at once: 4500 bytes take 450 milliseconds.
        assert!(sent_at.elapsed() >= Duration::from_millis(450), "{:?}", sent_at.elapsed());
    }
}

#[tokio::test]
async fn the_smallest_of_several_rates_applies() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    setup.inject(trickle(10_000), Direction::Both, LONG).await;
    setup.inject(trickle(1_000_000), Direction::Both, LONG).await;
    let sent_at = Instant::now();
    let sent = content(5_000);
    send(&mut client, &sent).await;
    expect_bytes(&mut server, &sent).await;
    assert!(sent_at.elapsed() >= Duration::from_millis(450));
}

#[tokio::test]
async fn a_trickle_leaves_the_other_direction_alone() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        // At this rate, the bytes of the other direction could not arrive before the deadline.
        setup.inject(trickle(1), direction, LONG).await;
        let sent = content(1_000_000);
        tokio::join!(send(&mut receiver, &sent), expect_bytes(&mut sender, &sent));
        round_trips(&mut receiver, &mut sender).await;
    }
}

#[tokio::test]
async fn a_trickle_ends_by_itself() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        let injected_at = Instant::now();
        setup.inject(trickle(1), direction, SHORT).await;
        let sent = content(1_000);
        send(&mut sender, &sent).await;
        expect_bytes(&mut receiver, &sent).await;
        assert!(injected_at.elapsed() >= SHORT);
    }
}
