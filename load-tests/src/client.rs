//! The HTTP client of both kinds of load.

use std::{io, time::Duration};

use anyhow::Context as _;
use reqwest::header::CONTENT_TYPE;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{REQUEST_DEADLINE, summary::Answer};

/// Sends orders to one address. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    url: reqwest::Url,
    connects_each_time: bool,
}

impl Client {
    /// `url` is the order service's address, without a path.
    pub fn new(url: &str) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            .timeout(REQUEST_DEADLINE)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            // A connection from before a fault is not used again after it: it would hide that the service is back.
            .pool_idle_timeout(Duration::from_secs(5))
            .build()?;
        let orders = format!("{}/orders", url.trim_end_matches('/'));
        let url = reqwest::Url::parse(&orders).with_context(|| format!("failed to read the URL `{url}`"))?;
        Ok(Self { http, url, connects_each_time: false })
    }

    /// With a new connection for each order.
    pub(crate) fn connecting_each_time(self, connects_each_time: bool) -> Self {
        Self { connects_each_time, ..self }
    }

    /// Sends one order. The client's deadline covers the answer's body too.
    pub async fn place(&self, order: String) -> Answer {
        if self.connects_each_time {
            return self.place_alone(&order).await;
        }
        let request = self.http.post(self.url.clone()).header(CONTENT_TYPE, "application/json");
        let answered = async {
            let response = request.body(order).send().await?;
            let status = response.status().as_u16();
            Ok::<_, reqwest::Error>((status, response.bytes().await?))
        };
        match answered.await {
            Ok((status, body)) => Answer::read(status, &body),
            Err(error) => Answer::Failed(reason(&error)),
        }
    }

    /// Sends one order on its own connection. By hand, which takes a third of the processor time of an HTTP client: thousands
    /// of clients share the cores with the service that they load.
    async fn place_alone(&self, order: &str) -> Answer {
        let host = self.url.authority();
        let request = format!(
            "POST {} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{order}",
            self.url.path(),
            order.len()
        );
        let answered = async {
            let mut stream = TcpStream::connect(host).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut answer = Vec::with_capacity(1024);
            stream.read_to_end(&mut answer).await?;
            io::Result::Ok(answer)
        };
        match timeout(REQUEST_DEADLINE, answered).await {
            Ok(Ok(answer)) => read_answer(&answer),
            Ok(Err(error)) => Answer::Failed(error.to_string()),
            Err(_) => Answer::Failed(format!("no answer within {} s", REQUEST_DEADLINE.as_secs())),
        }
    }
}

/// Reads an answer that ended with its connection.
fn read_answer(answer: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return Answer::Failed("the connection was closed before the answer was complete".into());
    };
    match head.split(' ').nth(1).and_then(|status| status.parse().ok()) {
        Some(status) => Answer::read(status, body.as_bytes()),
        None => Answer::Failed("the answer is not HTTP".into()),
    }
}

/// Describes a failure. Equal failures have equal descriptions, so that they can be counted.
fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    match error {
        _ if error.is_timeout() => format!("no answer within {} s", REQUEST_DEADLINE.as_secs()),
        _ if error.is_connect() => format!("failed to connect: {cause}"),
        _ => cause.to_string(),
    }
}
