//! Without a fault, the proxy is not noticed.

use std::io::ErrorKind::{BrokenPipe, ConnectionReset};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{
    DEADLINE, ONE_WAY, ROUTE, Setup, content, expect_bytes, read_to_end_of_file, read_to_reset, send, within,
};

#[tokio::test]
async fn both_directions_keep_content_and_order() {
    let setup = Setup::start().await;
    let (mut client, mut server) = setup.connect().await;
    let sent = content(8 * 1024 * 1024);
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let (mut at_client, mut at_server) = (vec![0; sent.len()], vec![0; sent.len()]);
    within(async {
        tokio::try_join!(
            to_client.write_all(&sent),
            to_server.write_all(&sent),
            from_client.read_exact(&mut at_client),
            from_server.read_exact(&mut at_server),
        )
    })
    .await
    .unwrap();
    assert!(at_client == sent && at_server == sent);
    let stats = setup.proxy.stats(ROUTE).unwrap();
    assert_eq!((stats.bytes_to_upstream, stats.bytes_to_client), (sent.len() as u64, sent.len() as u64));
    assert_eq!((stats.open, stats.total, stats.refused, stats.resets), (1, 1, 0, 0));
}

#[tokio::test]
async fn an_end_of_file_is_passed_on_and_the_other_direction_stays_open() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        send(&mut sender, b"question").await;
        within(sender.shutdown()).await.unwrap();
        assert_eq!(read_to_end_of_file(&mut receiver).await, b"question");
        send(&mut receiver, b"answer").await;
        drop(receiver);
        assert_eq!(read_to_end_of_file(&mut sender).await, b"answer");
        setup.proxy.until(ROUTE, DEADLINE, |stats| stats.open == 0).await.unwrap();
        assert_eq!(setup.proxy.stats(ROUTE).unwrap().resets, 0);
    }
}

#[tokio::test]
async fn a_reset_by_a_peer_is_passed_on_behind_its_bytes() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        send(&mut sender, b"last words").await;
        // The kernel of a resetting sender discards bytes that it has not sent.
        setup.until_forwarded(direction, 10).await;
        sender.set_zero_linger().unwrap();
        drop(sender);
        assert_eq!(read_to_reset(&mut receiver).await, b"last words");
    }
}

#[tokio::test]
async fn a_reset_by_a_peer_that_a_write_notices_is_not_an_end_of_file() {
    for direction in ONE_WAY {
        // Which side of the proxy notices the reset is a matter of timing: many turns take both ways.
        for turn in 0..50 {
            let setup = Setup::start().await;
            let (mut sender, receiver) = setup.connect_along(direction).await;
            send(&mut sender, &content(1024 * (turn % 7 + 1))).await;
            receiver.set_zero_linger().unwrap();
            drop(receiver);
            read_to_reset(&mut sender).await;
        }
    }
}

#[tokio::test]
async fn a_reset_after_the_end_of_the_other_direction_is_a_reset() {
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        // The receiver has ended its own stream, so only a failed write can report its reset.
        within(receiver.shutdown()).await.unwrap();
        assert_eq!(read_to_end_of_file(&mut sender).await, b"");
        receiver.set_zero_linger().unwrap();
        drop(receiver);
        let failed = within(async {
            loop {
                if let Err(error) = sender.write_all(&content(1024)).await {
                    return error.kind();
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert!(matches!(failed, ConnectionReset | BrokenPipe), "{failed}");
        setup.proxy.until(ROUTE, DEADLINE, |stats| stats.open == 0).await.unwrap();
    }
}

#[tokio::test]
async fn many_connections_do_not_mix() {
    let setup = Setup::start().await;
    let mut pairs = Vec::new();
    for number in 0..50_u8 {
        let (mut client, server) = setup.connect().await;
        send(&mut client, &[number; 100]).await;
        pairs.push((number, client, server));
    }
    for (number, _, server) in &mut pairs {
        expect_bytes(server, &[*number; 100]).await;
    }
    assert_eq!(setup.proxy.stats(ROUTE).unwrap().open, 50);
    drop(pairs);
    let stats = setup.proxy.until(ROUTE, DEADLINE, |stats| stats.open == 0).await.unwrap();
    assert_eq!(stats.total, 50);
}

#[tokio::test]
async fn a_peer_that_reads_after_the_end_gets_everything() {
    // Less than the kernel buffers without a reader, and far more than it sends at once.
    const BYTES: usize = 2 * 1024 * 1024;
    for direction in ONE_WAY {
        let setup = Setup::start().await;
        let (mut sender, mut receiver) = setup.connect_along(direction).await;
        let sent = content(BYTES);
        within(receiver.shutdown()).await.unwrap();
        send(&mut sender, &sent).await;
        within(sender.shutdown()).await.unwrap();
        // The proxy has closed both sockets by then.
        setup.proxy.until(ROUTE, DEADLINE, |stats| stats.open == 0).await.unwrap();
        assert!(read_to_end_of_file(&mut receiver).await == sent);
    }
}
