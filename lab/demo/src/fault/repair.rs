//! How each fault is repaired.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use sqlx::Connection as _;
use testbed::{Rabbitmq, eventually};

use super::inject::Injected;
use super::operations::{FULL, pids, process, queue, set_provider};
use super::statements::{ACCEPT_MARKS, APPLICATIONS, ERASE_UNROUTABLE};
use super::{Fact, Fault};
use testbed::release_commits;

use crate::lab::CONDITION_DEADLINE;
use crate::part::{Action, title};
use crate::running_system::RunningSystem;
use crate::set_aside::{count_waiting, discard_all};

/// A fault that was repaired.
pub struct Repaired {
    /// The new process in words, if one was killed.
    pub(crate) process: Option<String>,
    pub(crate) facts: Vec<Fact>,
}

impl<'a> Injected<'a> {
    /// The part that was killed, if there is one.
    pub(crate) fn killed(&self) -> Option<&'a str> {
        if let Fault::Kill(part) = self.fault { Some(part) } else { None }
    }

    /// Executes the session of the fault, if it has one, which ends by itself after this time.
    pub(crate) async fn hold(&self, system: &RunningSystem, lasts: Duration) -> Result<()> {
        let Fault::Session { sql, .. } = self.fault else { return Ok(()) };
        let sql = sql.replace("{}", &lasts.as_secs().to_string());
        system.execute_as("orders", &ending_with_its_client(&sql)).await
    }

    /// Repairs the fault, and returns when what was killed runs again.
    pub async fn repair(self, system: &RunningSystem) -> Result<Repaired> {
        let mut repaired = Repaired { process: None, facts: vec![] };
        match self.fault {
            Fault::Kill(part) => {
                // Without an answer it is started all the same: what was killed must run again.
                let stayed_down = self.is_gone && matches!(system.pid(part).await, Ok(None));
                let pid = self.process.and_then(|(_, pid)| pid);
                let down = format!("{} of {} was killed and stayed down", process(pid), title(part));
                system.act(Action::Start, part).await?;
                let now = system.pid(part).await?;
                let again = format!("{} runs again, as {}", title(part), process(now));
                repaired.facts.push(Fact::new(down, pid.is_some() && stayed_down));
                repaired.facts.push(Fact::new(again, now.is_some() && now != pid));
                repaired.process = Some(process(now));
            }
            Fault::Freeze(part) => system.act(Action::Resume, part).await?,
            Fault::CutOff(number) => system.own()?.rabbitmq.reconnect(*number).await?,
            Fault::Crash => {
                let processes = system.processes()?;
                let (name, pid) = self.process.context("no process has crashed")?;
                processes.start_again(&name).await?;
                processes.wait_ready(CONDITION_DEADLINE).await?;
                let what = format!("{} of {name} killed itself, and another one was started", process(pid));
                repaired
                    .facts
                    .push(Fact::new(what, processes.pid(&name).is_some_and(|now| Some(now) != pid)));
            }
            Fault::StallLogReader(name) => system.processes()?.resume_log_reader(name)?,
            Fault::Network { routes, .. } => {
                for route in *routes {
                    system.proxies()?.clear(route).await?;
                }
            }
            Fault::LoseAcks(service, ..) => {
                system.proxies()?.clear(&format!("{service}-broker")).await?;
            }
            Fault::Session { .. } | Fault::TerminateSessions | Fault::CloseConnections { .. } => {}
            Fault::Statements { end, .. } => system.execute_as("orders", end).await?,
            Fault::Defect => {
                for (service, table) in APPLICATIONS {
                    system.execute_as(service, &format!("drop trigger defect on {table}")).await?;
                }
            }
            Fault::Lock(_) => self.lock.context("no table is locked")?.close().await?,
            Fault::FullQueue(_) => system.broker_api()?.delete(FULL).await?,
            Fault::BadMessages => {
                system.execute_as("billing", "drop trigger refuse_letter on dead_letters").await?;
                // Billing's comes into its table first, once it can be saved.
                eventually("the dead letters to be discarded", CONDITION_DEADLINE, async || {
                    discard_all(system, "sent by a fault").await?;
                    let left = system.metric("billing", "inbox_unsaved_dead_letters").await?;
                    Ok((left == 0.0 && count_waiting(system).await? == 0).then_some(()))
                })
                .await?;
            }
            Fault::HangCommits => release_commits(&system.addresses()?.admin_url).await?,
            Fault::MemoryAlarm => system.own()?.rabbitmq.first().set_memory_limit(Rabbitmq::NO_ALARM).await?,
            Fault::SuspendQueue(service) => {
                system.own()?.rabbitmq.first().suspend_queue(&format!("{service}.events"), false).await?;
            }
            Fault::ChangePassword => {
                self.operator.context("the password was not changed")?.restore_password().await?;
                let same = pids(system)? == self.pids;
                repaired.facts.push(Fact::new("the same three processes run as before", same));
            }
            Fault::DeleteBindings | Fault::DeleteExchange => {
                system.broker_api()?.await_bindings().await?;
                let processes = system.processes()?;
                ["inventory", "billing"].iter().try_for_each(|name| processes.resume(name))?;
                repaired.facts.push(Fact::new("the exchange and its ten bindings exist again", true));
            }
            Fault::DeleteQueue(_) => system.broker_api()?.await_bindings().await?,
            // The services declare their own.
            Fault::ReplaceQueue(service) => system.broker_api()?.delete(&queue(service)).await?,
            Fault::Provider { .. } => set_provider(system, json!([])).await?,
        }
        Ok(repaired)
    }
}

/// Repairs what a soak may have left behind when an injection failed half-way.
pub(crate) async fn repair_all(system: &RunningSystem) -> Result<()> {
    system.proxies()?.clear_all().await?;
    release_commits(&system.addresses()?.admin_url).await?;
    system.execute_as("orders", &format!("{ACCEPT_MARKS}; {ERASE_UNROUTABLE}")).await
}

/// Statements that the server also ends when their client is gone, after Ctrl-C. By itself it notices that at their end.
fn ending_with_its_client(sql: &str) -> String {
    format!("set client_connection_check_interval = '500ms'; {sql}")
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use sqlx::{AssertSqlSafe, PgConnection};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn session_that_holds_a_lock_ends_with_its_client() -> Result<()> {
        let database = testbed::database().await?;
        let mut administrator = PgConnection::connect(&database.admin_url()).await?;
        let mut is_held = async || {
            let held = "select exists (select from pg_locks where relation = to_regclass('orders.held') and granted)";
            sqlx::query_scalar::<_, bool>(held).fetch_one(&mut administrator).await
        };
        let sql = "begin; lock table held in access exclusive mode; select pg_sleep(600); commit";
        let mut session = PgConnection::connect(&database.url("orders")).await?;
        sqlx::raw_sql("create table held ()").execute(&mut session).await?;
        let holding = async {
            sqlx::raw_sql(AssertSqlSafe(ending_with_its_client(sql))).execute(&mut session).await?;
            anyhow::Ok(())
        };
        tokio::select! {
            ended = holding => bail!("the session has ended: {ended:?}"),
            held = eventually("the lock", DEADLINE, async || Ok(is_held().await?.then_some(()))) => held?,
        }
        drop(session);
        eventually("the end of the session", DEADLINE, async || Ok((!is_held().await?).then_some(()))).await
    }
}
