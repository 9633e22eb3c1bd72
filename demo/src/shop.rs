//! The running system, wherever it runs: what commands and drills may ask of it and do to it.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::Home;
use tokio::time::timeout;
use uuid::Uuid;

use crate::audit::{self, Audit, Dropped};
use crate::choice::Choice;
use crate::compose::Compose;
use crate::control::Control;
use crate::interrupt::interrupted;
use crate::local_shop::LocalShop;
use crate::paths;
use crate::state::{AdminUrls, State};
use crate::target::{Faults, Target, Verb};
use crate::terminal::Terminal;
use crate::variant::Variant;

const ANSWER_WITHIN: Duration = Duration::from_secs(20);

pub(crate) struct Shop {
    orders_url: String,
    access: Access,
    faults: Mutex<Faults>,
    /// Whether this command started it, and so has to stop it.
    own: bool,
}

enum Access {
    /// Children of ours.
    Local(Box<LocalShop>),
    /// Children of a `demo up` in another terminal.
    Elsewhere(Box<State>, Control),
    Containers(Compose),
}

impl Shop {
    /// The system that is running already, if there is one. With `home`, only one of that kind counts.
    pub(crate) async fn find(home: Option<Home>) -> Result<Option<Self>> {
        if home != Some(Home::Docker)
            && let Some(state) = State::read()
            && let Ok(control) = Control::connect(&state.control, &state.token).await
        {
            let orders_url = state.orders_url.clone();
            return Ok(Some(Self::new(orders_url, Access::Elsewhere(Box::new(state), control), false)));
        }
        if home != Some(Home::Local)
            && let Ok(compose) = Compose::new()
            // An error means that there is no engine: then nothing runs in it.
            && let Ok(Some(orders_url)) = compose.orders_url().await
        {
            return Ok(Some(Self::new(orders_url, Access::Containers(compose), false)));
        }
        Ok(None)
    }

    /// Starts one, and returns when it takes orders.
    pub(crate) async fn start(home: Home, terminal: &Terminal) -> Result<Self> {
        match home {
            Home::Local => {
                let shop = LocalShop::start(terminal, home, None).await?;
                Ok(Self::new(shop.system.orders_url(), Access::Local(Box::new(shop)), true))
            }
            Home::Docker => {
                let compose = Compose::new()?;
                compose.up(terminal).await?;
                let orders_url = compose.orders_url().await?.context("the orders container does not run")?;
                Ok(Self::new(orders_url, Access::Containers(compose), true))
            }
        }
    }

    /// A system of its own, beside any that is running, with a variant in the order service's place. `None` if interrupted
    /// meanwhile.
    pub(crate) async fn start_variant(
        choice: Choice,
        variant: Variant,
        terminal: &Terminal,
    ) -> Result<Option<Self>> {
        tokio::select! {
            shop = async {
                // Only the servers may be containers: the variants are in no image.
                let home = choice.of_servers(terminal).await?;
                let shop = LocalShop::start(terminal, home, Some(variant)).await?;
                Ok(Some(Self::new(shop.system.orders_url(), Access::Local(Box::new(shop)), true)))
            } => shop,
            stop = interrupted() => stop.map(|()| None),
        }
    }

    /// What takes the orders in the real service's place, if anything does.
    pub(crate) fn variant(&self) -> Option<Variant> {
        match &self.access {
            Access::Local(shop) => shop.variant,
            Access::Elsewhere(..) | Access::Containers(_) => None,
        }
    }

    /// The one that runs, else a new one; `None` if interrupted meanwhile, and then nothing is left behind.
    pub(crate) async fn find_or_start(choice: Choice, terminal: &Terminal) -> Result<Option<Self>> {
        if let Some(shop) = Self::find(choice.wanted()).await? {
            terminal.say(format!("Using the system that is running at {}.", shop.orders_url()));
            return Ok(Some(shop));
        }
        let home = tokio::select! {
            home = choice.of_system(terminal) => home?,
            stop = interrupted() => return stop.map(|()| None),
        };
        tokio::select! {
            shop = Self::start(home, terminal) => shop.map(Some),
            stop = interrupted() => {
                stop?;
                // Processes of ours were gone with the future. Containers are not ours, but the engine's.
                if home == Home::Docker {
                    Compose::new()?.down(true).await?;
                }
                Ok(None)
            }
        }
    }

    fn new(orders_url: String, access: Access, own: bool) -> Self {
        Self { orders_url, access, faults: Mutex::default(), own }
    }

    pub(crate) fn orders_url(&self) -> &str {
        &self.orders_url
    }

    /// Does something to a part, and keeps account of it for [`Shop::heal`].
    pub(crate) async fn act(&self, verb: Verb, target: &Target) -> Result<()> {
        // Before it is done: we may be interrupted while it happens.
        if verb.undone_by().is_some() {
            self.note(verb, target);
        }
        match &self.access {
            Access::Local(shop) => shop.act(verb, target).await?,
            Access::Elsewhere(_, control) => control.ask(&format!("{verb} {target}")).await.map(drop)?,
            Access::Containers(compose) => compose.act(verb, target).await?,
        }
        if verb.undone_by().is_none() {
            self.note(verb, target);
        }
        Ok(())
    }

    fn note(&self, verb: Verb, target: &Target) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).note(verb, target);
    }

    /// Undoes every fault that is still in force.
    pub(crate) async fn heal(&self) -> Result<()> {
        let remedies = self.faults.lock().unwrap_or_else(PoisonError::into_inner).remedies();
        for (remedy, target) in remedies {
            // Interrupted before the kill took place, or mended by somebody else.
            if remedy == Verb::Start && self.pid(&target).await?.is_some() {
                self.note(remedy, &target);
                continue;
            }
            self.act(remedy, &target).await.with_context(|| format!("cannot {remedy} the {target} again"))?;
        }
        Ok(())
    }

    /// A part's process id, or `None` while it is down. An error means that nobody knows.
    pub(crate) async fn pid(&self, target: &Target) -> Result<Option<u32>> {
        match &self.access {
            Access::Local(shop) => Ok(shop.pid(target).await),
            Access::Elsewhere(_, control) => Ok(control.ask(&format!("pid {target}")).await?.parse().ok()),
            Access::Containers(compose) => compose.pid(target).await,
        }
    }

    /// A query that answers one value, as the auditor, who reads everything and writes nothing.
    pub(crate) async fn read(&self, query: &str) -> Result<String> {
        match &self.access {
            Access::Local(shop) => ask(&shop.urls.auditor, query).await,
            Access::Elsewhere(state, _) => ask(&state.auditor_url, query).await,
            Access::Containers(compose) => compose.sql("auditor", query).await,
        }
    }

    /// Statements as the administrator.
    pub(crate) async fn administer(&self, statements: &'static str) -> Result<()> {
        let admin_url = match &self.access {
            Access::Local(shop) => shop.postgres.admin_url("shop"),
            Access::Elsewhere(state, _) => state.admin_url.clone(),
            Access::Containers(compose) => return compose.sql("postgres", statements).await.map(drop),
        };
        let done = timeout(ANSWER_WITHIN, async {
            let mut connection = PgConnection::connect(&admin_url).await?;
            sqlx::raw_sql(statements).execute(&mut connection).await?;
            connection.close().await
        });
        Ok(done.await.context("the database does not answer")??)
    }

    /// The conservation sum, now.
    pub(crate) async fn audit(&self, acknowledged: &[Uuid]) -> Result<Audit> {
        Audit::parse(&self.read(&audit::query(acknowledged, self.variant())).await?)
    }

    /// Where the acknowledgements for this system's orders are kept.
    pub(crate) async fn ledger_path(&self) -> Result<PathBuf> {
        let identity = self.read("select system_identifier::text from pg_control_system()").await?;
        Ok(paths::ledger(&identity))
    }

    /// How many duplicates each service has dropped since it started; `None` where it does not say.
    pub(crate) async fn duplicates_dropped(&self) -> Dropped {
        let sum = async |service: &str, port: u16| {
            let page = match &self.access {
                Access::Local(shop) => match shop.system.url(service) {
                    Ok(url) => crate::http::get(&format!("{url}/metrics")).await,
                    Err(error) => Err(error),
                },
                Access::Elsewhere(state, _) => {
                    let url = match service {
                        "orders" => &state.orders_url,
                        "inventory" => &state.inventory_url,
                        _ => &state.billing_url,
                    };
                    crate::http::get(&format!("{url}/metrics")).await
                }
                Access::Containers(compose) => compose.metrics(service, port).await,
            };
            page.ok().map(|page| crate::http::counter(&page, "inbox_duplicates_total"))
        };
        let (orders, inventory, billing) =
            tokio::join!(sum("orders", 8080), sum("inventory", 8081), sum("billing", 8082));
        Dropped { orders, inventory, billing }
    }

    /// A question to a service's operators' door, and its answer as JSON. What is refused is an error, in the service's
    /// own words.
    pub(crate) async fn admin(&self, service: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string);
        let body = body.as_deref();
        let (status, answer) = match &self.access {
            Access::Local(shop) => {
                let url = format!("{}{path}", shop.system.admin_url(service)?);
                crate::http::ask_admin(&url, shop.system.admin_token(), body).await?
            }
            Access::Elsewhere(state, _) => {
                let AdminUrls { orders, inventory, billing } = &state.admin;
                let url = match service {
                    "orders" => orders,
                    "inventory" => inventory,
                    _ => billing,
                };
                crate::http::ask_admin(&format!("{url}{path}"), &state.admin_token, body).await?
            }
            Access::Containers(compose) => compose.admin(service, path, body).await?,
        };
        let answer: Value = serde_json::from_str(&answer)
            .with_context(|| format!("{service} answered {status} with something that is no JSON"))?;
        if status == 200 {
            return Ok(answer);
        }
        let word = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
        bail!("{service} answered {status}: {}. {}", word("title"), word("detail"))
    }

    /// Stops what this command started; leaves everything else as it found it.
    pub(crate) async fn stop(self, terminal: &Terminal) -> Result<()> {
        if !self.own {
            return self.heal().await;
        }
        terminal.say("Stopping everything that was started …");
        match self.access {
            Access::Local(shop) => shop.stop().await,
            Access::Containers(compose) => compose.down(true).await,
            Access::Elsewhere(..) => Ok(()),
        }
    }
}

async fn ask(url: &str, query: &str) -> Result<String> {
    let answer = timeout(ANSWER_WITHIN, async {
        let mut connection = PgConnection::connect(url).await?;
        let value: String = sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut connection).await?;
        connection.close().await?;
        anyhow::Ok(value)
    });
    answer.await.context("the database does not answer")?
}
