//! How each fault is injected.

use std::time::Duration;

use anyhow::Result;
use fault_proxy::{Effect, Fault as ProxyFault};
use serde_json::json;
use sqlx::PgConnection;
use testbed::{eventually, hang_commits};
use tokio::time::Instant;

use super::operations::{FULL, lock_table, pids, process, queue, reach_crash_point, set_provider};
use super::statements::{APPLICATIONS, TERMINATE_SESSIONS, add_defect, refuse_dead_letter};
use super::{Fact, Fault};
use crate::lab::{BrokerApi, CONDITION_DEADLINE};
use crate::part::{Action, SERVICES, title};
use crate::running_system::RunningSystem;
use crate::state::LOGINS;

/// `basic.ack` begins with these bytes: class 60, method 80. The broker sends it as a confirm, a consumer as an
/// acknowledgement. (AMQP 0-9-1, 1.8.3.13)
const ACK: &[u8] = &[0, 60, 0, 80];
/// How many connections lose one.
pub(crate) const LOST_ACKS: u32 = 5;
/// When resets end that did not happen.
const LOST_ACKS_DEADLINE: Duration = Duration::from_secs(60);
/// The dead letter that cannot be saved.
const UNSAVED: &str = "cannot-be-saved";
/// Each service has one connection for each of three roles.
const CONNECTIONS: usize = 9;

/// A fault that was injected and is not repaired yet.
pub struct Injected<'a> {
    pub(super) fault: &'a Fault<'a>,
    /// In words, with the figures.
    pub(crate) what: String,
    pub(crate) facts: Vec<Fact>,
    pub(crate) at: Instant,
    /// The process that was killed: its name, and its id.
    pub(super) process: Option<(String, Option<u32>)>,
    pub(super) is_gone: bool,
    /// Access to a broker that refuses the services' password.
    pub(super) operator: Option<BrokerApi>,
    pub(super) lock: Option<PgConnection>,
    /// The processes that must not be restarted.
    pub(super) pids: Vec<Option<u32>>,
}

impl<'a> Fault<'a> {
    /// Injects the fault.
    pub async fn inject(&'a self, system: &RunningSystem) -> Result<Injected<'a>> {
        let mut injected = Injected {
            fault: self,
            what: String::new(),
            facts: vec![],
            at: Instant::now(),
            process: None,
            is_gone: false,
            operator: None,
            lock: None,
            pids: vec![],
        };
        injected.what = match self {
            Self::Kill(part) => {
                let pid = system.pid(part).await?;
                system.act(Action::Kill, part).await?;
                injected.at = Instant::now();
                injected.is_gone = system.pid(part).await?.is_none();
                injected.process = Some(((*part).to_owned(), pid));
                format!("killed {} ({}) with SIGKILL", title(part), process(pid))
            }
            Self::Freeze(part) => {
                system.act(Action::Pause, part).await?;
                format!("stopped {} with SIGSTOP", title(part))
            }
            Self::CutOff(number) => {
                system.own()?.rabbitmq.cut_off(*number).await?;
                injected.at = Instant::now();
                format!("cut node {number} of RabbitMQ off from the others")
            }
            Self::Crash => {
                let (name, pid) = reach_crash_point(system).await?;
                let processes = system.processes()?;
                eventually(&format!("{name} to be gone"), CONDITION_DEADLINE, async || {
                    Ok(processes.pid(&name).is_none().then_some(()))
                })
                .await?;
                let what = format!("process {pid} ({name}) has killed itself at the crash point");
                injected.process = Some((name, Some(pid)));
                what
            }
            Self::StallLogReader(name) => {
                system.processes()?.pause_log_reader(name)?;
                format!("stopped the reader of {name}'s log with SIGSTOP")
            }
            Self::Network { what, routes, effect, direction, lasts } => {
                for route in *routes {
                    let fault = ProxyFault::new(effect.clone(), *direction, *lasts);
                    system.proxies()?.set(route, fault).await?;
                }
                (*what).to_owned()
            }
            Self::LoseAcks(service, direction, what) => {
                let effect = Effect::ResetOnPattern { pattern: ACK.to_vec(), forward: false };
                let fault = ProxyFault::new(effect, *direction, LOST_ACKS_DEADLINE).times(LOST_ACKS);
                system.proxies()?.set(&format!("{service}-broker"), fault).await?;
                format!("each connection of {service} is reset before a {what} passes, {LOST_ACKS} times")
            }
            Self::Session { what, .. } => (*what).to_owned(),
            Self::Statements { what, begin, .. } => {
                system.execute_as("orders", begin).await?;
                (*what).to_owned()
            }
            Self::Lock(table) => {
                injected.lock = Some(lock_table(system, table).await?);
                format!("locked the table {table}")
            }
            Self::Defect => {
                for (service, table) in APPLICATIONS {
                    system.execute_as(service, &add_defect(table)).await?;
                }
                "inventory and billing fail over one order in a hundred".to_owned()
            }
            Self::HangCommits => {
                hang_commits(&system.addresses()?.admin_url).await?;
                "every commit waits for a standby that does not exist".to_owned()
            }
            Self::TerminateSessions => {
                let sessions = "select count(*)::text from pg_stat_activity
                                where usename in ('orders', 'inventory', 'billing', 'provider')";
                let sessions: u64 = system.number(sessions).await?;
                for login in LOGINS {
                    system.execute_as(login, TERMINATE_SESSIONS).await?;
                }
                injected.facts.push(Fact::new(format!("{sessions} sessions were terminated"), sessions > 4));
                "terminated all sessions of the services".to_owned()
            }
            Self::MemoryAlarm => {
                system.own()?.rabbitmq.first().set_memory_limit("1").await?;
                "RabbitMQ raised its memory alarm, and reads nothing from publishers".to_owned()
            }
            Self::FullQueue(service) => {
                let full = json!({ "max-length": 1, "overflow": "reject-publish" });
                let pattern = format!("^{service}.events$");
                let policy = json!({ "pattern": pattern, "definition": full, "apply-to": "queues" });
                system.broker_api()?.put(FULL, &policy).await?;
                format!("{service}'s queue is full at one message")
            }
            Self::BadMessages => {
                system.execute_as("billing", &refuse_dead_letter(UNSAVED)).await?;
                let api = system.broker_api()?;
                api.publish("inventory.events", "this is no event", "no-event").await?;
                api.publish("billing.events.dead", "this is no event", UNSAVED).await?;
                "sent a message that is no event, and a dead letter that cannot be saved".to_owned()
            }
            Self::SuspendQueue(service) => {
                system.own()?.rabbitmq.first().suspend_queue(&format!("{service}.events"), true).await?;
                format!("{service}'s queue takes and confirms nothing")
            }
            Self::CloseConnections { of_all } => {
                let api = system.broker_api()?;
                if *of_all {
                    api.await_connections().await?;
                }
                let closed = api.close_connections().await?;
                let fact = Fact::new(format!("{closed} connections were closed"), closed >= CONNECTIONS);
                injected.facts.push(fact);
                format!("closed {closed} connections")
            }
            Self::ChangePassword => {
                let mut api = system.broker_api()?;
                api.create_operator().await?;
                api.await_connections().await?;
                api.change_password().await?;
                injected.pids = pids(system)?;
                let closed = api.close_connections().await?;
                injected.operator = Some(api);
                format!("changed the password, and closed {closed} connections")
            }
            Self::DeleteBindings => {
                let processes = system.processes()?;
                SERVICES.iter().try_for_each(|name| processes.pause(name))?;
                system.broker_api()?.delete_bindings().await?;
                processes.resume("orders")?;
                "deleted all ten bindings while the services were frozen; orders continues".to_owned()
            }
            Self::DeleteExchange => {
                let processes = system.processes()?;
                ["inventory", "billing"].iter().try_for_each(|name| processes.pause(name))?;
                system.broker_api()?.delete("exchanges/shop/shop.events").await?;
                "deleted the exchange with its bindings, while only orders runs".to_owned()
            }
            Self::DeleteQueue(service) => {
                system.broker_api()?.delete(&queue(service)).await?;
                format!("deleted {service}'s queue")
            }
            Self::ReplaceQueue(service) => {
                let api = system.broker_api()?;
                api.delete(&queue(service)).await?;
                api.put(&queue(service), &json!({ "durable": true })).await?;
                format!("{service}'s queue is another one")
            }
            Self::Provider { what, faults } => {
                set_provider(system, serde_json::from_str(faults)?).await?;
                (*what).to_owned()
            }
        };
        Ok(injected)
    }
}
