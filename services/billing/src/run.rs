use std::{net::SocketAddr, process::ExitCode, time::Duration};

use clap::Parser;
use messaging::SharedHandler;
use reqwest::Url;
use service::{
    ConsumerTasks, Health, Needed, Parts, Process, RelayTasks,
    environment::duration,
    settings::{CommonSettings, ConsumerSettings, PublisherSettings, ServiceSettings},
};

use crate::{
    HttpPaymentProvider, INBOX, PaymentHandler, PaymentProvider, PaymentWorker, ProviderCalls, SERVICE,
};

/// Runs the billing service until it is stopped: it charges each order once, and publishes the answer. `provider` is given the
/// product's payment provider and returns the one to call.
///
/// # Errors
/// When the process cannot start.
pub async fn run<P: PaymentProvider>(
    parts: impl Parts,
    provider: impl FnOnce(HttpPaymentProvider) -> P,
) -> anyhow::Result<ExitCode> {
    let settings: Settings = service::load(&SERVICE, &parts).await?;
    let mut process = Process::start(&SERVICE, settings.http_address, settings.common.clone())?;
    let http = HttpPaymentProvider::new(settings.provider_url.clone(), settings.provider_deadline)?;
    let relays = RelayTasks::new(&process, settings.publisher.clone());
    let consumer = ConsumerTasks::new(&process, INBOX, settings.consumer.clone());
    let health = Health::new()
        .with("database", Needed::Yes, parts.database(process.database()))
        .with("broker", Needed::Yes, consumer.probe())
        .with("relays", Needed::No, relays.probe())
        .with("dead letters", Needed::No, consumer.collector_probe());
    process.serve_health(health);

    if process.prepare().await {
        let calls = ProviderCalls::new(settings.provider_calls, settings.provider_deadline * 2);
        let handler = SharedHandler::new(PaymentHandler::new(consumer.pool(), calls.clone()));
        process.watch_database();
        process.serve_admin(consumer.admin_routes(handler.clone()).merge(relays.admin_routes()));
        let worker = PaymentWorker::new(&settings, provider(http), relays.wake(), calls);
        process.spawn("pending payments", worker.clone().observe(process.stop()));
        process.spawn("payment worker", worker.run(process.stop()));
        parts.start_relays(relays, &mut process).await?;
        parts.start_consumer(consumer, handler, &mut process).await;
    }
    Ok(process.run().await)
}

/// Settings of the billing service, from environment variables.
#[derive(Clone, Parser)]
#[command(name = "billing", version)]
pub struct Settings {
    /// The address of health and metrics.
    #[arg(long, default_value = "127.0.0.1:8082")]
    pub http_address: SocketAddr,

    /// The payment provider: http://host:port.
    #[arg(long, value_parser = base_url)]
    pub provider_url: Url,

    /// How long one call to the provider may take. After that its outcome is unknown, and the worker repeats it with the
    /// same key.
    #[arg(long, default_value = "3s", value_parser = duration)]
    pub provider_deadline: Duration,

    /// The most calls to the provider at the same time. Divided by the seconds that a call takes, it is the most payments a
    /// second; a provider that limits its callers says how many it allows.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub provider_calls: u16,

    #[command(flatten)]
    pub common: CommonSettings,

    #[command(flatten)]
    pub publisher: PublisherSettings,

    #[command(flatten)]
    pub consumer: ConsumerSettings,
}

/// A stop waits for calls in progress, and the process has only so long.
const MAX_PROVIDER_DEADLINE: Duration = Duration::from_secs(6);

impl ServiceSettings for Settings {
    fn common(&mut self) -> &mut CommonSettings {
        &mut self.common
    }

    fn check(&self, prefix: &str) -> Result<(), String> {
        self.publisher.check(prefix, &self.common)?;
        self.consumer.check(prefix, &self.common)?;
        if self.provider_deadline > MAX_PROVIDER_DEADLINE {
            return Err(format!(
                "{prefix}PROVIDER_DEADLINE: at most 6s, because a stop waits for calls in progress"
            ));
        }
        Ok(())
    }
}

/// Parses the URL under which `charges` and `refunds` are found.
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
