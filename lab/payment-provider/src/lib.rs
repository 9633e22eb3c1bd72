//! A stand-in for the payment provider: another company, whose HTTP API billing calls to charge and refund customers.
//!
//! It behaves as real providers do where it matters here. A request without an `Idempotency-Key` is a new charge, however
//! often it is sent. With a key the customer is charged once, and every repetition gets the first answer. It also fails as
//! real providers fail, on demand. Reading order: `charges`, `refunds`, `faults`.

mod charges;
mod faults;
mod idempotency_key;
mod refunds;

use std::net::SocketAddr;

use axum::{
    Router,
    http::StatusCode,
    routing::{get, post},
};
use clap::Parser;
use database::{DatabaseUrl, Pool};
use service::{
    problem::Problem,
    telemetry::{self, LogFormat},
};
use sqlx::migrate::Migrator;

pub use charges::DECLINED_CUSTOMERS;

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/provider");

/// All tables of the provider's schema.
pub static MIGRATIONS: [&Migrator; 1] = [&OWN_MIGRATIONS];

/// What the handlers share. Cheap to clone.
#[derive(Clone)]
pub struct Provider {
    pool: Pool,
    faults: faults::Faults,
}

impl Provider {
    /// A provider without faults.
    pub fn new(pool: Pool) -> Self {
        Self { pool, faults: faults::Faults::default() }
    }
}

/// The routes of the payment provider.
pub fn router(provider: Provider) -> Router {
    Router::new()
        .route("/charges", post(charges::charge).get(charges::read_charges))
        .route("/refunds", post(refunds::refund))
        .route("/faults", get(faults::show).put(faults::replace))
        .with_state(provider)
}

/// The body is JSON, and asks for something that does not exist.
fn invalid_request(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-request", "Invalid request").detail(detail)
}

/// Settings of the payment provider, from environment variables.
#[derive(Debug, Clone, Parser)]
#[command(name = "payment-provider", version)]
pub struct Settings {
    /// The database, as the login `provider`: postgres://provider:password@host:5432/shop.
    #[arg(long, hide_env_values = true)]
    pub database_url: DatabaseUrl,

    /// The address of the API, health and metrics.
    #[arg(long, default_value = "127.0.0.1:8083")]
    pub http_address: SocketAddr,

    /// The log filter: a level, or a filter such as warn,payment_provider=debug. At info each charge and each refund is a
    /// line.
    #[arg(long, default_value = "info", value_parser = telemetry::filter)]
    pub log: String,

    /// The format of log lines.
    #[arg(long, default_value = "json")]
    pub log_format: LogFormat,

    /// Connections to the database. A request uses one at a time, and none while a fault makes it wait.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=100))]
    pub database_connections: u32,
}
