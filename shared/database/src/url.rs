//! Where the database is: one server, or several of which one accepts writes.

use std::{
    fmt, io,
    str::FromStr,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use percent_encoding::percent_decode_str;
use sqlx::{ConnectOptions as _, Error, PgConnection, postgres::PgConnectOptions};
use tokio::{
    net::lookup_host,
    sync::Mutex,
    time::{sleep, timeout},
};

/// How long one of several servers may take to accept a connection. A frozen one never does, and the others must get their
/// turn before the caller gives up.
const SERVER_DEADLINE: Duration = Duration::from_millis(1_500);

/// The pause after a search that found no server. One task of a process searches at a time, and the others wait as long. When
/// all searched at once, the connections that looked for a primary kept the standby from becoming one: thirty of them opened
/// 300 a second there.
const SEARCH_INTERVAL: Duration = Duration::from_millis(100);

/// Where the database is. Its password is never shown. With several hosts, as libpq has them
/// (`postgres://login:password@host1:5432,host2:5432/shop`), connections go to the one that accepts writes: after a
/// fail-over that is another one.
#[derive(Clone)]
pub struct DatabaseUrl {
    servers: Vec<PgConnectOptions>,
    search: Arc<Search>,
}

/// One server, and a login. Without `Debug`: nothing can print the password.
pub struct ServerLogin {
    pub host: String,
    pub port: u16,
    pub user: String,
    pub password: String,
    pub database: String,
}

/// What all clones of a URL share: what one connection finds out helps the others.
#[derive(Debug, Default)]
struct Search {
    /// Where the next attempt begins: at the address that was found to accept writes last.
    first: AtomicUsize,
    /// That address and its port. `None`: there is one address only.
    found: std::sync::Mutex<Option<(String, u16)>>,
    /// Whether the last attempt found no server. Then one connection at a time looks.
    is_lost: AtomicBool,
    turn: Mutex<()>,
}

impl DatabaseUrl {
    /// The same servers, with other options of their connections.
    #[must_use]
    pub fn with(&self, change: impl Fn(PgConnectOptions) -> PgConnectOptions) -> Self {
        Self { servers: self.servers.iter().cloned().map(change).collect(), search: self.search.clone() }
    }

    /// The options for the server that was found to accept writes last.
    pub fn options(&self) -> PgConnectOptions {
        let found = self.search.found.lock().unwrap_or_else(PoisonError::into_inner);
        let options = self.servers[0].clone();
        found.as_ref().map_or(options.clone(), |(host, port)| options.host(host).port(*port))
    }

    fn set_found(&self, server: Option<&PgConnectOptions>) {
        let found = server.map(|server| (server.get_host().to_owned(), server.get_port()));
        *self.search.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// Every address of every server, in an order that stays. The system's own client would try the addresses of a name one
    /// after the other, each until the kernel gives up: behind a dead one no other gets its turn before the caller's deadline.
    async fn addresses(&self) -> Vec<PgConnectOptions> {
        let mut all = vec![];
        for server in &self.servers {
            let (host, port) = (server.get_host(), server.get_port());
            let is_name = server.get_socket().is_none() && !host.starts_with(['/', '[']);
            let looked_up = async { if is_name { lookup_host((host, port)).await.ok() } else { None } };
            let looked_up = timeout(SERVER_DEADLINE, looked_up).await.ok().flatten();
            let mut addresses: Vec<_> = looked_up.into_iter().flatten().map(|address| address.ip()).collect();
            addresses.sort_unstable();
            addresses.dedup();
            match addresses[..] {
                // What cannot be looked up is left to the client, which says why.
                [] | [_] => all.push(server.clone()),
                _ => all.extend(addresses.iter().map(|address| server.clone().host(&address.to_string()))),
            }
        }
        all
    }

    /// The server that was found to accept writes last, for a client that is not sqlx.
    pub fn server(&self) -> ServerLogin {
        let options = self.options();
        let url = options.to_url_lossy();
        let password = url.password().unwrap_or_default();
        ServerLogin {
            host: options.get_host().into(),
            port: options.get_port(),
            user: options.get_username().into(),
            password: percent_decode_str(password).decode_utf8_lossy().into(),
            database: options.get_database().unwrap_or_default().into(),
        }
    }

    /// Connects to the server; of several, or of several addresses, to the first that answers and accepts writes.
    ///
    /// # Errors
    /// If there is none, with the reason of the first that was tried.
    pub async fn connect(&self) -> Result<PgConnection, Error> {
        let servers = self.addresses().await;
        if let [only] = &servers[..] {
            self.set_found(None);
            return only.connect().await;
        }
        let Search { is_lost, turn, .. } = &*self.search;
        // Nobody queues for the turn: the longest waiting caller would get it, and give up in the middle of its search.
        let turn = turn.try_lock();
        if is_lost.load(Relaxed) && turn.is_err() {
            sleep(SEARCH_INTERVAL).await;
            return Err(io::Error::other("no server was found yet that accepts writes").into());
        }
        let found = self.search(&servers).await;
        is_lost.store(found.is_err(), Relaxed);
        if found.is_err() {
            sleep(SEARCH_INTERVAL).await;
        }
        found
    }

    async fn search(&self, servers: &[PgConnectOptions]) -> Result<PgConnection, Error> {
        let (first, count) = (&self.search.first, servers.len());
        let begin = first.load(Relaxed);
        let mut failure = None;
        for index in (begin..begin + count).map(|index| index % count) {
            let server = &servers[index];
            let reason = match timeout(SERVER_DEADLINE, connect_for_writes(server)).await {
                Ok(Ok(connection)) => {
                    self.set_found(Some(server));
                    if first.swap(index, Relaxed) != index {
                        let (host, port) = (server.get_host(), server.get_port());
                        tracing::info!(host, port, "connected to another database server");
                    }
                    return Ok(connection);
                }
                Ok(Err(reason)) => reason,
                Err(_) => {
                    // A caller with less patience than there are frozen servers begins behind this one next time.
                    let _ = first.compare_exchange(index, (index + 1) % count, Relaxed, Relaxed);
                    unusable(server, "does not answer")
                }
            };
            failure.get_or_insert(reason);
        }
        Err(failure.unwrap_or(Error::PoolClosed))
    }
}

async fn connect_for_writes(server: &PgConnectOptions) -> Result<PgConnection, Error> {
    let mut connection = server.connect().await?;
    if is_read_only(&mut connection).await? { Err(unusable(server, "is read-only")) } else { Ok(connection) }
}

fn unusable(server: &PgConnectOptions, why: &str) -> Error {
    io::Error::other(format!("{}:{} {why}", server.get_host(), server.get_port())).into()
}

/// Whether the server refuses writes: it is a standby, or was set to read-only.
pub(crate) async fn is_read_only(connection: &mut PgConnection) -> Result<bool, Error> {
    let setting: String = sqlx::query_scalar("show transaction_read_only").fetch_one(connection).await?;
    Ok(setting == "on")
}

impl FromStr for DatabaseUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err("it must begin with postgres://".into());
        }
        // Without TLS in this build, the client would wait for a server that lets it in without.
        let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
        let wants_tls = |parameter: &str| {
            parameter
                .strip_prefix("sslmode=")
                .is_some_and(|mode| !["disable", "allow", "prefer"].contains(&mode))
        };
        if parameters.split('&').any(wants_tls) {
            return Err("sslmode must be disable, allow or prefer: this build has no TLS".into());
        }
        // The driver knows URLs with one host only.
        let address = &address[scheme.len() + "://".len()..];
        let path = address.find('/').unwrap_or(address.len());
        let hosts = address[..path].rfind('@').map_or(0, |at| at + 1);
        let server = |host: &str| {
            let url = format!("{scheme}://{}{host}{}", &rest[..hosts], &rest[path..]);
            // The cause may quote the URL, and the URL holds the password.
            let options = PgConnectOptions::from_str(&url).map_err(|_| {
                "not a URL like postgres://user:password@host:5432/database (percent-encode special characters)"
            });
            // PgBouncer refuses this parameter, and no server that is new enough needs it.
            options.map(|options| options.extra_float_digits(None))
        };
        let servers: Vec<_> = address[hosts..path].split(',').collect();
        if servers.len() > 1 && servers.contains(&"") {
            return Err("a host between two commas is missing".into());
        }
        let servers = servers.into_iter().map(server).collect::<Result<_, _>>()?;
        Ok(Self { servers, search: Arc::default() })
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = |server: &PgConnectOptions| format!("{}:{}", server.get_host(), server.get_port());
        let addresses: Vec<_> = self.servers.iter().map(address).collect();
        write!(f, "postgres://{}@{}", self.options().get_username(), addresses.join(","))
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, net::ToSocketAddrs as _};

    use super::*;

    #[test]
    fn a_url_that_this_build_cannot_honor_is_refused() {
        for (url, why) in [
            ("http://localhost/shop", "must begin with"),
            ("postgres:localhost/shop", "must begin with"),
            ("postgres://orders:secret@localhost/shop?sslmode=require", "no TLS"),
            ("postgres://orders:secret@one,,two/shop", "is missing"),
            ("postgres://localhost:port/shop", "not a URL"),
            ("postgres://orders:secret@one,two:port/shop", "not a URL"),
        ] {
            let refused = url.parse::<DatabaseUrl>().unwrap_err();
            assert!(refused.contains(why) && !refused.contains("secret"), "{url}: {refused}");
        }
    }

    #[test]
    fn a_url_names_one_host_or_several_with_one_login_and_database() {
        for (url, shown) in [
            ("postgres://orders:a%2Cb@localhost/shop", "postgres://orders@localhost:5432"),
            ("postgres://orders@localhost/shop?sslmode=prefer", "postgres://orders@localhost:5432"),
            (
                "postgresql://orders:pw@one:1,two,[::1]:3/shop?sslmode=disable",
                "postgres://orders@one:1,two:5432,[::1]:3",
            ),
        ] {
            let parsed = url.parse::<DatabaseUrl>().unwrap();
            assert_eq!(format!("{parsed:?}"), shown);
            assert!(parsed.servers.iter().all(|server| server.get_database() == Some("shop")), "{url}");
            let (encoded, server) = (url.contains("%2C"), parsed.server());
            assert_eq!((server.password == "a,b", server.user), (encoded, "orders".into()), "{url}");
        }
    }

    #[tokio::test]
    async fn each_address_of_a_name_is_tried_by_itself() {
        let url: DatabaseUrl = "postgres://orders:pw@localhost:5,127.0.0.1:6,[::1]:7/shop".parse().unwrap();
        let names =
            "localhost:0".to_socket_addrs().unwrap().map(|address| address.ip()).collect::<BTreeSet<_>>();
        let expected = match names.len() {
            1 => vec!["localhost:5".to_owned()],
            _ => names.iter().map(|address| format!("{address}:5")).collect(),
        };
        let addresses = url.addresses().await;
        let shown: Vec<_> =
            addresses.iter().map(|it| format!("{}:{}", it.get_host(), it.get_port())).collect();
        assert_eq!(shown, [expected, vec!["127.0.0.1:6".into(), "[::1]:7".into()]].concat());
        url.set_found(addresses.first());
        assert_eq!((url.server().port, url.server().password), (5, "pw".into()));
    }
}
