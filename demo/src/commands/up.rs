//! `cargo demo up`: start and stay.

use std::sync::Arc;

use anyhow::{Result, bail};
use testbed::Home;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::{Duration, interval};
use uuid::Uuid;

use crate::choice::Choice;
use crate::compose::Compose;
use crate::control;
use crate::interrupt::{interrupted, or_interrupted};
use crate::local_shop::LocalShop;
use crate::shop::Shop;
use crate::state::{AdminUrls, State};
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// For the commands that need a running system.
pub(crate) const NOTHING_RUNS: &str = "no system is running: `cargo demo up` starts one";

/// Stays in the foreground; Ctrl-C stops all that it started.
pub(crate) async fn run(choice: Choice, terminal: &Terminal) -> Result<Verdict> {
    if let Some(shop) = Shop::find(choice.wanted()).await? {
        bail!("a system is running already, at {}; `cargo demo down` stops it", shop.orders_url());
    }
    match choice.of_system(terminal).await? {
        Home::Local => local(terminal).await,
        Home::Docker => containers(terminal).await,
    }
}

async fn local(terminal: &Terminal) -> Result<Verdict> {
    let shop = tokio::select! {
        shop = LocalShop::start(terminal, Home::Local, None) => shop?,
        stop = interrupted() => return stop.map(|()| Verdict::Interrupted),
    };
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let state = State {
        orders_url: shop.system.orders_url(),
        inventory_url: shop.system.url("inventory")?.to_owned(),
        billing_url: shop.system.url("billing")?.to_owned(),
        provider_url: shop.system.url("provider")?.to_owned(),
        auditor_url: shop.urls.auditor.clone(),
        admin_url: shop.postgres.admin_url("shop"),
        amqp_url: shop.rabbitmq.url(),
        rabbitmq_api: shop.rabbitmq.api_url(),
        admin: AdminUrls {
            orders: shop.system.admin_url("orders")?.to_owned(),
            inventory: shop.system.admin_url("inventory")?.to_owned(),
            billing: shop.system.admin_url("billing")?.to_owned(),
        },
        admin_token: shop.system.admin_token().to_owned(),
        control: listener.local_addr()?.to_string(),
        token: Uuid::new_v4().simple().to_string(),
    };
    state.write()?;
    say_where(terminal, &state.orders_url);
    terminal.say(format!("  inventory   {}/metrics", state.inventory_url));
    terminal.say(format!("  billing     {}/metrics", state.billing_url));
    terminal.say(format!("  provider    {}/faults", state.provider_url));
    terminal.say(format!("  database    psql {}", state.auditor_url));
    terminal.say(format!("  RabbitMQ    {}", state.rabbitmq_api));
    terminal.say(format!("              {}", state.amqp_url));
    terminal.say(format!("  logs        {}", shop.system.logs().display()));
    terminal.say("");
    terminal.say("Ctrl-C stops all of it.");
    terminal.document(&state)?;

    let (shop, stop) = (Arc::new(shop), Arc::new(Notify::new()));
    tokio::select! {
        asked = interrupted() => asked?,
        () = stop.notified() => {}
        () = control::serve(listener, state.token.clone(), shop.clone(), stop.clone()) => {}
        () = watch(&shop, terminal) => {}
    }
    terminal.say("Stopping …");
    // A client's connection may still hold it: then it is killed with this process.
    let stopped = match Arc::try_unwrap(shop) {
        Ok(shop) => shop.stop().await,
        Err(_) => Ok(()),
    };
    // Last: `demo down` takes the file for the sign that all of it is gone, and erases the logs.
    State::remove();
    stopped?;
    Ok(Verdict::Held)
}

/// A service that dies by itself is said at once; it stays as it is, for whoever wants to look into it.
async fn watch(shop: &LocalShop, terminal: &Terminal) {
    let mut every = interval(Duration::from_secs(1));
    let mut said = None;
    loop {
        every.tick().await;
        let now = shop.check_alive().err().map(|reason| format!("{reason:#}"));
        if now != said
            && let Some(reason) = &now
        {
            terminal.say(reason);
        }
        said = now;
    }
}

async fn containers(terminal: &Terminal) -> Result<Verdict> {
    let compose = Compose::new()?;
    let up = or_interrupted(async { compose.up(terminal).await.map(|()| Verdict::Held) }).await;
    if let Ok(Verdict::Held) = up {
        let url = compose.orders_url().await?.unwrap_or_default();
        say_where(terminal, &url);
        terminal.say("  everything else stays inside: `docker compose logs`, `docker compose exec postgres psql -U auditor shop`");
        terminal.say("");
        terminal.say("Ctrl-C stops all of it and keeps the data; `cargo demo down` erases it.");
        terminal.document(&serde_json::json!({ "ordersUrl": url }))?;
        interrupted().await?;
    }
    terminal.say("Stopping …");
    compose.down(false).await?;
    up
}

fn say_where(terminal: &Terminal, url: &str) {
    terminal.say("");
    terminal.say("Everything runs. Place an order:");
    terminal.say("");
    let order = r#"{"customerId": "3f8a4b52-0e0d-4a57-9a53-5b2a9c1f7e10", "lines": [{"sku": "TEA-001", "quantity": 2}]}"#;
    terminal.say(format!("  curl --json '{order}' {url}/orders"));
    terminal.say("");
    terminal
        .say("In another terminal: `cargo demo order`, `cargo demo drill broker-kill`, `cargo demo verify`.");
    terminal.say("");
    terminal.say(format!("  orders      {url}"));
}
