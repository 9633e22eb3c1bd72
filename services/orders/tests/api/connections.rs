//! Clients that hold connections: without a request, and without reading the answers.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context as _;
use reqwest::Client;
use sqlx::{Connection as _, PgConnection};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::support::{DEADLINE, Orders, order};

/// The 200 files leave 50 connections.
#[tokio::test]
async fn silent_connections_keep_neither_requests_nor_health_out() -> anyhow::Result<()> {
    let orders = Orders::start_with(&[("OPEN_FILES", "200")]).await?;
    let address = orders.url.trim_start_matches("http://");
    let mut admin = PgConnection::connect(&orders.database.admin_url()).await?;
    let mut lock = admin.begin().await?;
    sqlx::query("lock table orders.orders").execute(&mut *lock).await?;
    let slow = tokio::spawn(orders.client.post(format!("{}/orders", orders.url)).json(&order()).send());
    testbed::eventually("the order to wait for the lock", DEADLINE, async || {
        let sql =
            "select exists (select from pg_locks where not granted and relation = 'orders.orders'::regclass)";
        Ok(sqlx::query_scalar::<_, bool>(sql).fetch_one(&orders.auditor).await?.then_some(()))
    })
    .await?;

    let mut silent = vec![];
    for number in 0..300 {
        let mut stream = TcpStream::connect(address).await?;
        if number % 2 == 0 {
            let _ = stream.write_all(b"POST /orders HTTP/1.1\r\nhost: x\r\n").await;
        }
        silent.push(stream);
    }
    // A connection that comes while those before it are being closed may be closed too; then a client tries again.
    testbed::eventually("health", DEADLINE, async || {
        let answer = Client::new().get(format!("{}/readyz", orders.url)).send().await;
        Ok(answer.ok().filter(|answer| answer.status() == 200))
    })
    .await?;
    // It was answered: its connection was not the one to close. Whether it got the lock in time is not the question.
    lock.rollback().await?;
    slow.await??;

    // More than the service has connections to the database.
    testbed::eventually("thirty orders at once", DEADLINE, async || {
        let post =
            || tokio::spawn(Client::new().post(format!("{}/orders", orders.url)).json(&order()).send());
        let mut placed = 0;
        for request in (0..30).map(|_| post()).collect::<Vec<_>>() {
            placed += i32::from(request.await?.is_ok_and(|answer| answer.status() == 201));
        }
        Ok((placed == 30).then_some(()))
    })
    .await?;
    let metrics = Client::new().get(format!("{}/metrics", orders.url)).send().await?.text().await?;
    assert!(metrics.contains("http_connections_closed_total{reason=\"silent\"}"), "{metrics}");
    drop(silent);
    Ok(())
}

/// The 200 files leave 50 connections. Sixty clients keep theirs, none of them is silent for a second, and all connect again.
#[tokio::test]
async fn busy_connections_keep_no_others_out() -> anyhow::Result<()> {
    let orders = Orders::start_with(&[("OPEN_FILES", "200")]).await?;
    let answers = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..60 {
        let (address, answers) = (orders.url.trim_start_matches("http://").to_owned(), answers.clone());
        clients.spawn(async move {
            loop {
                let Ok(mut stream) = TcpStream::connect(&address).await else { continue };
                while stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.is_ok()
                    && stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0)
                {
                    answers.fetch_add(1, Relaxed);
                    sleep(Duration::from_millis(100)).await;
                }
            }
        });
    }
    testbed::eventually("the clients to be busy", DEADLINE, async || {
        Ok((answers.load(Relaxed) > 1000).then_some(()))
    })
    .await?;
    let url = format!("{}/readyz", orders.url);
    let answer = timeout(testbed::longer(DEADLINE), Client::new().get(url).send()).await??;
    assert_eq!(answer.status(), 200);
    Ok(())
}

#[tokio::test]
async fn connection_whose_client_reads_nothing_is_closed() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    let mut stream = socket.connect(orders.url.trim_start_matches("http://").parse()?).await?;
    // Together more than the kernel buffers.
    let request = "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(request.repeat(20).as_bytes()).await?;
    // Writing finds out without reading.
    testbed::eventually("the connection to be reset", DEADLINE, async || {
        Ok(stream.try_write(b"G").is_err_and(|error| error.kind() != ErrorKind::WouldBlock).then_some(()))
    })
    .await
}

/// The 200 files leave 50 connections, and each of these clients has sent its request before it waits.
#[tokio::test]
async fn request_that_has_arrived_is_answered_however_many_clients_connect() -> anyhow::Result<()> {
    let orders = Orders::start_with(&[("OPEN_FILES", "200")]).await?;
    let address = orders.url.trim_start_matches("http://");
    let order = order().to_string();
    let length = order.len();
    let request = format!(
        "POST /orders HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{order}"
    );
    let mut clients = JoinSet::new();
    for _ in 0..500 {
        let (address, request) = (address.to_owned(), request.clone());
        clients.spawn(async move {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            anyhow::Ok(answer.split(' ').nth(1).context("no answer")?.to_owned())
        });
    }
    let mut answers = BTreeMap::<_, u32>::new();
    while let Some(answer) = clients.join_next().await {
        let answer = answer?.unwrap_or_else(|error| format!("{error:#}"));
        *answers.entry(answer).or_default() += 1;
    }
    assert!(answers.keys().all(|answer| answer == "201" || answer == "503"), "{answers:?}");
    assert!(answers["201"] > 0, "{answers:?}");
    Ok(())
}

/// Each has the API's largest page, and its connection stays open.
#[tokio::test]
async fn readers_of_a_large_page_cost_little_memory() -> anyhow::Result<()> {
    const READERS: u64 = 300;
    let orders = Orders::start().await?;
    let page = format!("{}/docs/swagger-ui-bundle.js", orders.url);
    let size = orders.client.get(&page).send().await?.bytes().await?.len() as u64 / 1024;
    let before = resident_kib(&orders)?;
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        let page = page.clone();
        readers.spawn(async move {
            let client = Client::new();
            let read = client.get(page).send().await?.bytes().await?.len();
            anyhow::Ok((client, read))
        });
    }
    let mut open = vec![];
    while let Some(reader) = readers.join_next().await {
        open.push(reader??);
    }
    let grown = resident_kib(&orders)?.saturating_sub(before);
    // A copy for each reader is the product of both.
    assert!(grown < READERS * size / 4, "{READERS} readers of {size} KiB took {grown} KiB");
    Ok(())
}

/// Each body comes in many segments of one byte.
#[tokio::test]
async fn bodies_in_tiny_pieces_cost_little_memory() -> anyhow::Result<()> {
    const CLIENTS: u64 = 100;
    const PIECES: u64 = 1_000;
    const BUFFER_KIB: u64 = 8;
    let orders = Orders::start().await?;
    let address = orders.url.trim_start_matches("http://");
    let head = "POST /orders HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n";
    let mut clients = vec![];
    for _ in 0..CLIENTS {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        stream.write_all(head.as_bytes()).await?;
        clients.push(stream);
    }
    let before = resident_kib(&orders)?;
    for _ in 0..PIECES {
        for client in &mut clients {
            // One whose body has taken too long is answered, and may be closed.
            let _ = client.write_all(b" ").await;
        }
        // Else the kernel would join them.
        tokio::task::yield_now().await;
    }
    let grown = resident_kib(&orders)?.saturating_sub(before);
    // A buffer for each byte takes the product of all three, and less where the kernel joins bytes: 99 MiB were measured, and at
    // most 20 without such buffers.
    let limit = CLIENTS * PIECES * BUFFER_KIB / 10;
    assert!(grown < limit, "{CLIENTS} clients with {PIECES} pieces took {grown} KiB of {limit}");
    Ok(())
}

/// The memory of the service's process, without the pages of its files: those grow as code runs for the first time.
fn resident_kib(orders: &Orders) -> anyhow::Result<u64> {
    let pid = orders.service.pid().context("the service has ended")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
