//! Ports for servers that are killed and restarted on the same port.

use std::collections::{HashSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use tokio::net::TcpSocket;

/// Below 32768, where the kernel takes the local ports of outgoing connections from. In that range a client could take
/// the port of a server that is down for a moment.
const RANGE: Range<u16> = 20_000..32_768;

/// How many reservations a process holds: several systems at once, and well below the open files that a process may have.
const MAX_HELD: usize = 100;

/// What this process has returned.
static PORTS: Mutex<Option<Ports>> = Mutex::new(None);

#[derive(Default)]
struct Ports {
    /// None is returned twice, also when its reservation is no longer held.
    returned: HashSet<u16>,
    /// The newest reservations: no other process returns these ports.
    held: VecDeque<UdpSocket>,
}

/// Whether no program listens on this port of the loopback address.
pub fn is_free(port: u16) -> bool {
    bind(port).is_ok()
}

/// Binds a port without listening on it, which fails while a program listens there, and keeps nobody from listening
/// afterwards. A listening socket would: a process that another thread forks holds a copy of it until it executes its
/// program.
fn bind(port: u16) -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    Ok(socket)
}

/// Returns a loopback port that is free now, outside the range of outgoing connections. This process gets each port only
/// once, and no other process gets it while this one holds the reservation: otherwise a server that starts could take the
/// port of one that has just been killed, and that one could not start again.
pub fn free_port() -> Result<u16> {
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    let Ports { returned, held } = ports.get_or_insert_default();
    let (port, reservation) = (0..1_000)
        .map(|_| fastrand::u16(RANGE))
        .filter(|port| !returned.contains(port))
        .find_map(|port| Some((port, reserve(port)?)))
        .with_context(|| format!("failed to find a free port between {} and {}", RANGE.start, RANGE.end))?;
    returned.insert(port);
    held.push_back(reservation);
    if held.len() > MAX_HELD {
        held.pop_front();
    }
    Ok(port)
}

/// Reserves a port by binding its number in UDP. The servers use TCP, whose ports are others, so this does not disturb
/// them. The kernel ends the reservation with the process, however that ends.
fn reserve(port: u16) -> Option<UdpSocket> {
    let reservation = UdpSocket::bind(("127.0.0.1", port)).ok()?;
    is_free(port).then_some(reservation)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn port_stays_reserved_while_its_server_is_down() {
        let port = free_port().unwrap();
        let server = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert!(!is_free(port));
        assert!(reserve(port).is_none(), "another process gets the port of a server that runs");
        drop(server);
        assert!(reserve(port).is_none(), "another process gets the port of a server that is down");
    }

    /// As when a process is forked while another thread looks whether a port is free.
    #[test]
    fn server_starts_while_a_copy_of_the_probe_is_open() {
        let port = free_port().unwrap();
        let copy = bind(port).unwrap();
        TcpListener::bind(("127.0.0.1", port)).unwrap();
        drop(copy);
    }
}
