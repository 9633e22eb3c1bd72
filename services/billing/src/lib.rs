//! The billing service. `payment_handler` is where events become pending payments, once; `payment_worker` calls the payment
//! provider for them, with a limit (`due_payments`), and writes its answers; `payment_provider` is the provider's HTTP API.

mod due_payments;
mod payment_handler;
mod payment_provider;
mod payment_worker;

use std::{process::ExitCode, time::Duration};

use clap::Args;
use database::PoolKind;
use reqwest::Url;
use service::{Assembly, Parts, Service, environment::duration};
use sqlx::migrate::Migrator;

pub use due_payments::ProviderCalls;
pub use payment_handler::{INBOX, PaymentHandler};
pub use payment_provider::{HttpPaymentProvider, PaymentProvider, ProviderResponse};
pub use payment_worker::PaymentWorker;

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/billing");

/// All tables of the service's schema.
pub static MIGRATIONS: [&Migrator; 3] = [&outbox::MIGRATIONS, &inbox::MIGRATIONS, &OWN_MIGRATIONS];

pub static SERVICE: Service = Service {
    name: "billing",
    prefix: "BILLING_",
    http_port: 8082,
    migrations: &MIGRATIONS,
    own_queue: None,
};

/// Runs the billing service until it is stopped: it charges each order once, and publishes the answer.
pub async fn run(parts: impl Parts) -> anyhow::Result<ExitCode> {
    let (mut service, settings) = Assembly::start::<ProviderSettings>(&SERVICE, INBOX, parts)?;
    let ProviderSettings { provider_url, provider_deadline, provider_calls, restored } = settings.own;
    let provider = HttpPaymentProvider::new(provider_url, provider_deadline)?;
    service.serve_health();
    if !service.process.prepare().await {
        return Ok(service.process.run().await);
    }
    let calls = ProviderCalls::new(provider_calls, provider_deadline * 2);
    let handler = PaymentHandler::new(service.consumer.pool(), calls.clone(), restored);
    let pool = service.process.pool("payment worker", WORKER_CONNECTIONS, PoolKind::Statements);
    let worker = PaymentWorker::new(pool, provider, service.relays.wake.clone(), calls);
    let stop = service.process.stop();
    service.process.spawn("pending payments", worker.clone().observe(stop.clone()));
    service.process.spawn("payment worker", worker.run(stop));
    service.run(handler).await
}

/// The payment worker's connections: for its rounds, for the count, and one in place of a statement that was given up.
const WORKER_CONNECTIONS: u32 = 3;

/// The settings that only billing has.
#[derive(Debug, Clone, Args)]
pub struct ProviderSettings {
    /// The payment provider: http://host:port.
    #[arg(long, value_parser = base_url)]
    pub provider_url: Url,

    /// How long one call to the provider may take. After that its outcome is unknown, and the worker repeats it with the
    /// same key.
    #[arg(long, default_value = "3s", value_parser = provider_deadline)]
    pub provider_deadline: Duration,

    /// The most calls to the provider at the same time. Divided by the seconds that a call takes, it is the most payments a
    /// second; a provider that limits its callers says how many it allows.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub provider_calls: u16,

    /// Whether the database was restored from a backup, and events are being published again. The provider may know calls that
    /// the database does not, so the payment of a cancelled order is charged under its key and refunded, and not void.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub restored: bool,
}

/// For `value_parser`: a stop waits for calls in progress, and the process has only so long.
fn provider_deadline(text: &str) -> Result<Duration, String> {
    let deadline = duration(text)?;
    if deadline > Duration::from_secs(6) {
        return Err("at most 6s, because a stop waits for calls in progress".into());
    }
    Ok(deadline)
}

/// For `value_parser`: the URL under which `charges` and `refunds` are found.
fn base_url(text: &str) -> Result<Url, String> {
    let invalid = || "not a URL like http://provider:8083".to_owned();
    let url = Url::parse(text).map_err(|_| invalid())?;
    if url.scheme() != "http" || url.cannot_be_a_base() || !url.has_host() {
        return Err(invalid());
    }
    // Without the slash, joining would replace the last part of the path.
    let slashed = if text.ends_with('/') { text.to_owned() } else { format!("{text}/") };
    Url::parse(&slashed).map_err(|_| invalid())
}
