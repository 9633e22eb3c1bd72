use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{
    fs, io,
    net::TcpStream,
    time::{Instant, sleep},
};

/// How long a peer that does not read may hold up a reset.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Waits until the peer has acknowledged all bytes that were written to `stream`.
///
/// A close with a linger time of zero discards what the kernel has not sent. So "exactly n bytes, then a reset" needs
/// this wait. Only Linux shows the send queue in `/proc`; other systems do not wait, and a peer that reads slowly may
/// get fewer bytes there.
pub(crate) async fn drained(stream: &TcpStream) {
    let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { return };
    let deadline = Instant::now() + DRAIN_DEADLINE;
    let mut missing_before = false;
    while Instant::now() < deadline {
        match queued_bytes(local, peer).await {
            Ok(Some(0)) | Err(_) => return,
            // The table may skip a line while it changes. A socket that is missing twice is gone.
            Ok(None) if missing_before => return,
            Ok(queued) => missing_before = queued.is_none(),
        }
        sleep(LOOK_EVERY).await;
    }
}

/// The length of a socket's send queue: bytes that the kernel has not sent, or the peer has not acknowledged.
async fn queued_bytes(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u64>> {
    let table = if local.is_ipv4() { "/proc/self/net/tcp" } else { "/proc/self/net/tcp6" };
    let text = fs::read_to_string(table).await?;
    Ok(find(&text, &hexadecimal(local), &hexadecimal(peer)))
}

/// The columns are: number, local address, peer address, state, send queue and receive queue in one.
fn find(table: &str, local: &str, peer: &str) -> Option<u64> {
    table.lines().find_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        if columns.next() != Some(local) || columns.next() != Some(peer) {
            return None;
        }
        let (queued, _) = columns.nth(1)?.split_once(':')?;
        u64::from_str_radix(queued, 16).ok()
    })
}

/// The kernel prints an address as 32-bit words in the byte order of the machine.
fn hexadecimal(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word));
    let ip: String = words.map(|word| format!("{word:08X}")).collect();
    format!("{ip}:{:04X}", address.port())
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_send_queue_of_a_full_socket_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let _peer = listener.accept().await.unwrap();
        let (local, peer) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        assert_eq!(queued_bytes(local, peer).await.unwrap(), Some(0));
        stream.writable().await.unwrap();
        while stream.try_write(&[0; 65536]).is_ok() {}
        assert!(queued_bytes(local, peer).await.unwrap() > Some(0));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn an_ipv6_socket_is_found() {
        // As the kernel prints it; IPv6 itself may be off on a test machine.
        let table = "   0: 00000000000000000000000001000000:1F90 00000000000000000000000001000000:A2B4 01 \
                     0000002A:00000007 00:00000000 00000000     0        0 23424";
        let address = |text: &str| hexadecimal(text.parse().unwrap());
        assert_eq!(find(table, &address("[::1]:8080"), &address("[::1]:41652")), Some(42));
        assert_eq!(find(table, &address("[::1]:8080"), &address("[::1]:41653")), None);
    }
}
