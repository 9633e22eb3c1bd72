//! A minimal HTTP/1.1 client for the order service: one request at a time on one kept connection.
//!
//! Saturation runs on the same cores as the service, so every cycle of the client lowers the measured figure. A full
//! client costs about as much as the service's own HTTP side; pgbench, the baseline, costs next to nothing. This client
//! reads only what the service sends: a status line, headers with a `Content-Length`, a body.

use anyhow::{Context as _, bail, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// No answer of the order service is larger.
const LARGEST_ANSWER: usize = 256 * 1024;

pub(crate) struct Connection {
    stream: TcpStream,
    address: String,
    /// The request while it is written, and then the answer while it is read.
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("failed to connect")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, address: address.to_owned(), buffer: Vec::with_capacity(4096) })
    }

    /// Sends a request and returns the answer's status and body.
    ///
    /// After an error, or if this future is dropped, the connection is unusable.
    pub(crate) async fn post(&mut self, path: &str, json: &str) -> anyhow::Result<(u16, &[u8])> {
        let Self { stream, address, buffer } = self;
        buffer.clear();
        let length = json.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        buffer.extend_from_slice(head.as_bytes());
        buffer.extend_from_slice(json.as_bytes());
        stream.write_all(buffer).await.context("failed to send")?;
        buffer.clear();
        loop {
            ensure!(
                buffer.len() <= LARGEST_ANSWER,
                "failed to read the answer: it has more than {LARGEST_ANSWER} bytes"
            );
            if stream.read_buf(buffer).await.context("failed to read the answer")? == 0 {
                bail!("failed to read the answer: the connection was closed before it was complete");
            }
            if let Some(head) = Head::parse(buffer)? {
                let whole = head.length + head.content_length;
                if buffer.len() >= whole {
                    ensure!(
                        buffer.len() == whole,
                        "failed to read the answer: it has more bytes than its head says"
                    );
                    return Ok((head.status, &buffer[head.length..]));
                }
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    content_length: usize,
    length: usize,
}

impl Head {
    /// Reads the head of an answer. `None` until all of it has arrived.
    fn parse(bytes: &[u8]) -> anyhow::Result<Option<Self>> {
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            return Ok(None);
        };
        let head =
            std::str::from_utf8(&bytes[..end]).context("failed to read the answer: its head is not text")?;
        let mut lines = head.split("\r\n");
        let status = lines
            .next()
            .and_then(|line| line.strip_prefix("HTTP/1.1 "))
            .and_then(|rest| rest.get(..3))
            .and_then(|status| status.parse().ok())
            .context("failed to read the answer: it does not begin with a status line")?;
        let content_length = lines
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .and_then(|(_, value)| value.trim().parse().ok())
            .context("failed to read the answer: it has no content-length")?;
        Ok(Some(Self { status, content_length, length: end + 4 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_once_it_is_complete() {
        let head = b"HTTP/1.1 201 Created\r\nContent-Length: 12\r\nlocation: /orders/1\r\n\r\n";
        assert_eq!(Head::parse(&head[..head.len() - 1]).unwrap(), None);
        let read = Head::parse(head).unwrap().unwrap();
        assert_eq!(read, Head { status: 201, content_length: 12, length: head.len() });
    }

    #[test]
    fn an_answer_of_an_unknown_form_is_an_error() {
        assert!(Head::parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(Head::parse(b"ICY 200 OK\r\n\r\n").is_err());
    }
}
