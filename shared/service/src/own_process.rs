//! `<service> healthcheck`, `<service> get PATH` and `<service> post PATH`: HTTP to the process in the same container, whose
//! image has neither a shell nor `curl`.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

/// The admin API answers within thirty seconds.
const ANSWER_DEADLINE: Duration = Duration::from_secs(35);

/// Sends the request that the command line asks for, if it asks for one, prints the answer with its head, and exits.
/// `healthcheck` fails unless `/readyz` answers 200. `port` is the public one when no address is set.
pub fn request_if_asked(prefix: &str, port: u16) {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (method, path) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["healthcheck"] => ("GET", "/readyz"),
        ["get", path] => ("GET", path),
        ["post", path] => ("POST", path),
        _ => return,
    };
    let answer = request(prefix, port, method, path).unwrap_or_else(|error| error.to_string());
    let expected = if arguments.len() == 1 { "HTTP/1.0 200" } else { "HTTP/1.0 " };
    let printed = write!(io::stdout(), "{answer}");
    std::process::exit(i32::from(printed.is_err() || !answer.starts_with(expected)));
}

/// A path under `/admin` goes to the admin API, with the token of the environment: on a command line every user could read it. The
/// body of a POST is standard input.
fn request(prefix: &str, port: u16, method: &str, path: &str) -> io::Result<String> {
    let listener = if path.starts_with("/admin/") { "ADMIN" } else { "HTTP" };
    let variable = |name: &str| std::env::var(format!("{prefix}{name}")).unwrap_or_default();
    let address = variable(&format!("{listener}_ADDRESS")).parse();
    let body = if method == "POST" { io::read_to_string(io::stdin())? } else { String::new() };
    let address = address.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
    // HTTP/1.0: the answer comes in one piece and ends with the connection.
    let (token, length) = (variable(&format!("{listener}_TOKEN")), body.len());
    let head = format!("Host: localhost\r\nAuthorization: Bearer {token}\r\nX-Operator: demo");
    let head = format!("{head}\r\nContent-Type: application/json\r\nContent-Length: {length}");
    write!(stream, "{method} {path} HTTP/1.0\r\n{head}\r\n\r\n{body}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map(|_| answer)
}
