use fault_proxy::{Error, Proxy, Route};

async fn start(route: Route) -> Result<(), Error> {
    Proxy::start(vec![route]).await.map(drop)
}

#[tokio::test]
async fn public_upstreams_are_refused_at_start() {
    for upstream in ["8.8.8.8:53", "169.254.169.254:80", "0.0.0.0:5432", "[2001:4860:4860::8888]:53"] {
        let refused = start(Route::new("route", upstream)).await.unwrap_err();
        assert!(matches!(refused, Error::RefusedUpstream { .. }), "{refused}");
        let expected = "is neither a loopback nor a private address";
        assert!(refused.to_string().ends_with(expected), "{refused}");
    }
}

#[tokio::test]
async fn upstreams_without_an_address_are_refused_at_start() {
    for upstream in ["127.0.0.1", "", "does-not-exist.invalid:1"] {
        let refused = start(Route::new("route", upstream)).await.unwrap_err();
        assert!(matches!(refused, Error::UnresolvedUpstream { .. }), "{refused}");
    }
}

#[tokio::test]
async fn listen_addresses_outside_loopback_need_the_option() {
    let route = Route { listen: "0.0.0.0:0".parse().unwrap(), ..Route::new("route", "127.0.0.1:1") };
    let refused = start(route.clone()).await.unwrap_err();
    assert!(matches!(refused, Error::RefusedListenAddress { .. }), "{refused}");
    start(Route { container_network: true, ..route }).await.unwrap();
}

#[tokio::test]
async fn public_listen_addresses_are_refused_with_the_option_too() {
    for listen in ["8.8.8.8:0", "[2001:db8::1]:0"] {
        let listen = listen.parse().unwrap();
        let route = Route { listen, container_network: true, ..Route::new("route", "127.0.0.1:1") };
        let refused = start(route).await.unwrap_err();
        assert!(matches!(refused, Error::RefusedListenAddress { .. }), "{refused}");
    }
}

#[tokio::test]
async fn the_control_api_listens_on_loopback_only() {
    let mut proxy = Proxy::start(Vec::new()).await.unwrap();
    for address in ["0.0.0.0:0", "10.0.0.1:0", "[::]:0"] {
        let refused = proxy.serve_control(address.parse().unwrap()).await.unwrap_err();
        assert!(matches!(refused, Error::RefusedListenAddress { .. }), "{refused}");
    }
}

#[tokio::test]
async fn a_port_in_use_is_an_error_with_its_address() {
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = other.local_addr().unwrap();
    let failed = start(Route { listen, ..Route::new("route", "127.0.0.1:1") }).await.unwrap_err();
    assert!(failed.to_string().starts_with(&format!("failed to listen on {listen}: ")), "{failed}");
}

#[tokio::test]
async fn invalid_routes_are_refused() {
    let routes = || vec![Route::new("a", "127.0.0.1:1"), Route::new("a", "127.0.0.1:2")];
    assert!(matches!(Proxy::start(routes()).await, Err(Error::InvalidRoute { .. })));
    for name in ["", "a/b", "a b", "..", "ä", &"a".repeat(65)] {
        let refused = start(Route::new(name, "127.0.0.1:1")).await;
        assert!(matches!(refused, Err(Error::InvalidRoute { .. })), "{name}");
    }
    let none = Route { max_connections: 0, ..Route::new("route", "127.0.0.1:1") };
    assert!(matches!(start(none).await, Err(Error::InvalidRoute { .. })));
}

#[test]
fn a_route_is_read_from_text() {
    let route: Route = "postgres=127.0.0.1:15432,database:5432".parse().unwrap();
    assert_eq!((route.name.as_str(), route.upstream.as_str()), ("postgres", "database:5432"));
    assert_eq!(route.listen.to_string(), "127.0.0.1:15432");
    let route: Route = "rabbitmq=15672,[::1]:5672".parse().unwrap();
    assert_eq!(route.listen.to_string(), "127.0.0.1:15672");
    for invalid in ["", "name", "name=1", "name=localhost:1,upstream:1", "=1,upstream:1", "a b=1,upstream:1"]
    {
        assert!(matches!(invalid.parse::<Route>(), Err(Error::InvalidRoute { .. })), "{invalid}");
    }
}
