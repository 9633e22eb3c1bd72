//! What one level plays on: a database, a virtual host, a fault proxy, and up to two instances of the entrant.

use std::{
    collections::{HashMap, HashSet},
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use fault_proxy::{Direction, Effect, Fault, MAX_FAULT_DURATION, Proxy, Route};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::{
    Postgres, RabbitmqCluster, RestartableProcess, TestVhost, eventually, longer, set_standby, sql, vhost_on,
};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    arrivals::{Arrivals, QUEUE},
    entrant::{Entrant, home},
    outbox::{Events, Outbox, StatementWriter, UNWANTED},
    verdict::{Breach, Fact},
};

/// What an instance prints when it relays.
const RELAYING: &str = "RELAYING";
const START_DEADLINE: Duration = Duration::from_secs(60);
/// How soon an instance that ended by itself is started again, as a supervisor does.
const RESTART_INTERVAL: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The longest wait for events that still arrive.
const LONGEST_WAIT: Duration = Duration::from_secs(240);
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long an event may be marked and not have arrived, until it counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(5);
pub(crate) const STOP_DEADLINE: Duration = Duration::from_secs(10);
const SERVER_DEADLINE: Duration = Duration::from_secs(60);

/// `basic.ack` begins with these bytes: class 60, method 80. (AMQP 0-9-1, 1.8.3.13)
pub(crate) const CONFIRM: &[u8] = &[0, 60, 0, 80];
/// A key of each event's body. What comes before the body is sent then: a publisher without confirms notices nothing.
pub(crate) const BODY: &[u8] = b"padding";

/// The role of entrants, and its password. It owns the database of a level, and may read the log.
const ROLE: &str = "entrant";

/// How a standby follows the database.
pub(crate) const STANDBY: &str = "standby";

/// The judge's PostgreSQL and RabbitMQ: all levels share them, and some levels kill them.
#[derive(Debug)]
pub struct Servers {
    pub(crate) postgres: Postgres,
    pub(crate) rabbitmq: RabbitmqCluster,
}

impl Servers {
    /// Sets up servers that were just started.
    pub async fn set_up((postgres, rabbitmq): (Postgres, RabbitmqCluster)) -> Result<Self> {
        // For relays that read the write-ahead log.
        postgres.set(&[("wal_level", "logical")]).await?;
        // Entrants are no superusers.
        let role = format!("create role {ROLE} login replication password '{ROLE}'");
        sql::execute(&postgres.admin_url("postgres"), &role, SERVER_DEADLINE).await?;
        Ok(Self { postgres, rabbitmq })
    }

    /// Starts what a level has left dead, and forgets its standby.
    async fn restore(&self) -> Result<()> {
        if self.rabbitmq.first().pid().await.is_none() {
            self.rabbitmq.first().start().await?;
        }
        if self.postgres.pid().await.is_none() {
            self.postgres.start().await?;
        }
        let admin = self.postgres.admin_url("postgres");
        set_standby(&admin, "= ''").await?;
        drop_slots(&admin, "slot_type = 'physical'").await
    }
}

/// Drops replication slots. A slot is in use until the server has noticed that its reader is gone.
async fn drop_slots(admin_url: &str, which: &str) -> Result<()> {
    let mut admin = PgConnection::connect(admin_url).await?;
    let drop = format!("select pg_drop_replication_slot(slot_name) from pg_replication_slots where {which}");
    eventually("the replication slots to be free", SERVER_DEADLINE, async || {
        sqlx::raw_sql(AssertSqlSafe(drop.clone())).execute(&mut admin).await?;
        Ok(Some(()))
    })
    .await
}

/// A running instance, or one that may be started.
#[derive(Debug)]
struct Instance {
    process: RestartableProcess,
    should_run: bool,
    started: Instant,
    /// How many times it has said that it relays, at the last start.
    said: usize,
}

impl Instance {
    fn start(&mut self) -> Result<()> {
        self.said = self.times_said();
        (self.should_run, self.started) = (true, Instant::now());
        self.process.start()
    }

    fn times_said(&self) -> usize {
        let log = fs::read(self.process.log()).unwrap_or_default();
        // Not the whole line: the process before may have been killed within one.
        String::from_utf8_lossy(&log).lines().filter(|line| line.trim_end().ends_with(RELAYING)).count()
    }
}

/// The stage of one level.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) servers: &'a Servers,
    pub(crate) outbox: Outbox,
    pub(crate) events: Events,
    pub(crate) arrivals: Arrivals,
    pub(crate) began: Instant,
    /// The standby that has taken over.
    promoted: Option<Postgres>,
    /// What the server answers when a mark is committed.
    pub(crate) commit: Vec<u8>,
    pub(crate) breaches: Vec<Breach>,
    pub(crate) facts: Vec<Fact>,
    pub(crate) restarts: u32,
    /// Events that had been published and marked before the first fault, and when that was seen: nothing can explain a later copy.
    pub(crate) calm: HashMap<Uuid, Instant>,
    has_fault: bool,
    proxy: Proxy,
    instances: [Instance; 2],
    vhost: TestVhost,
    /// The database.
    name: String,
    entrant: Entrant,
}

impl<'a> Stage<'a> {
    pub(crate) async fn set_up(servers: &'a Servers, entrant: &Entrant, level: &str) -> Result<Self> {
        servers.restore().await?;
        let name = format!("judge_{}", Uuid::now_v7().simple());
        let create = format!("create database {name} owner {ROLE}");
        let admin_url = servers.postgres.admin_url("postgres");
        sql::execute(&admin_url, &create, SERVER_DEADLINE).await?;
        if entrant.commits_asynchronously {
            let set = format!("alter role {ROLE} in database {name} set synchronous_commit = off");
            sql::execute(&admin_url, &set, SERVER_DEADLINE).await?;
        }
        let broker = servers.rabbitmq.first();
        let vhost = vhost_on(broker.base_url(), broker.api_url()).await?;

        let admin_url = servers.postgres.admin_url(&name);
        let database_url = servers.postgres.url(ROLE, ROLE, &name);
        let amqp_url = vhost.url();
        let id_header = entrant.id_header.clone();
        let arrivals = Arrivals::start(&amqp_url, &entrant.outbox.exchange, id_header).await?;
        let writer = entrant.insert_command()?.map(StatementWriter::start).transpose()?;
        let mut outbox = Outbox::new(entrant.outbox.clone(), writer, admin_url);
        if !entrant.set_up(&database_url, &amqp_url).await? {
            let sql = include_str!("outbox.sql");
            outbox.execute(&format!("set role {ROLE}; {sql}; reset role")).await?;
        }
        let mut routes = vec![Route::to(STANDBY, &database_url)?];
        for number in 1..=2 {
            routes.push(Route::to(format!("database-{number}"), &database_url)?);
            routes.push(Route::to(format!("broker-{number}"), &amqp_url)?);
        }
        let proxy = Proxy::start(routes).await?;
        let logs = home()?.join("logs");
        fs::create_dir_all(&logs)?;
        let instance = |number: u8| -> Result<Instance> {
            let mut command = entrant.command()?;
            command.env("DATABASE_URL", proxy.through(&format!("database-{number}"), &database_url)?);
            command.env("AMQP_URL", proxy.through(&format!("broker-{number}"), &amqp_url)?);
            command.env("INSTANCE", number.to_string());
            let log = logs.join(format!("{}-{level}-{number}.log", entrant.name));
            let _ = fs::remove_file(&log);
            let process = RestartableProcess::new(command, log);
            Ok(Instance { process, should_run: false, started: Instant::now(), said: 0 })
        };
        let instances = [instance(1)?, instance(2)?];
        Ok(Self {
            servers,
            outbox,
            arrivals,
            proxy,
            instances,
            vhost,
            name,
            events: Events::default(),
            began: Instant::now(),
            promoted: None,
            commit: format!("{}\0", entrant.outbox.commit).into_bytes(),
            breaches: vec![],
            facts: vec![],
            restarts: 0,
            calm: HashMap::new(),
            has_fault: false,
            entrant: entrant.clone(),
        })
    }

    /// Ends the instances and erases database and virtual host.
    pub(crate) async fn tear_down(mut self) -> Result<()> {
        for number in [1, 2] {
            self.kill(number).await?;
        }
        self.servers.restore().await?;
        // The broker answers now.
        drop(self.vhost);
        let admin_url = self.servers.postgres.admin_url("postgres");
        drop_slots(&admin_url, &format!("database = '{}'", self.name)).await?;
        sql::execute(&admin_url, &format!("drop database {} with (force)", self.name), SERVER_DEADLINE).await
    }

    /// Writes publishable events in one transaction, one of each aggregate in turn. Returns the id of the last.
    pub(crate) async fn write(&mut self, aggregates: &[Uuid], count: usize) -> Result<Uuid> {
        let events = self.events.wanted(aggregates, count);
        let last = events.last().context("no event was to be written")?.id;
        self.outbox.write(events).await?;
        Ok(last)
    }

    /// Starts an instance, and waits until it relays.
    pub(crate) async fn start(&mut self, number: usize) -> Result<()> {
        self.launch(number)?;
        let deadline = longer(START_DEADLINE);
        let relays = self
            .until(deadline, async |stage| {
                let instance = &stage.instances[number - 1];
                Ok(instance.times_said() > instance.said)
            })
            .await?;
        if !relays {
            let tail = self.instances[number - 1].process.log_tail();
            bail!("the entrant did not print {RELAYING} within {deadline:?}; {tail}");
        }
        Ok(())
    }

    /// Starts an instance.
    pub(crate) fn launch(&mut self, number: usize) -> Result<()> {
        self.instances[number - 1].start().context("failed to start the entrant")
    }

    /// Sends SIGKILL to an instance, if it runs.
    pub(crate) async fn kill(&mut self, number: usize) -> Result<()> {
        self.fault();
        let instance = &mut self.instances[number - 1];
        instance.should_run = false;
        if instance.process.pid().is_some() {
            instance.process.kill().await?;
        }
        Ok(())
    }

    /// Sends SIGTERM to an instance. False: it did not end in time.
    pub(crate) async fn terminate(&mut self, number: usize) -> Result<bool> {
        let instance = &mut self.instances[number - 1];
        instance.should_run = false;
        Ok(instance.process.stop("TERM", STOP_DEADLINE).await.is_ok())
    }

    /// Ends an instance, and starts it again, as an operator does who has changed its settings.
    pub(crate) async fn restart(&mut self, number: usize) -> Result<()> {
        if !self.terminate(number).await? {
            self.kill(number).await?;
        }
        self.start(number).await
    }

    /// The database is at another server. Instances use it when they start. It runs for as long as the stage.
    pub(crate) fn use_server(&mut self, server: Postgres) {
        let url = server.url(ROLE, ROLE, &self.name);
        for instance in &self.instances {
            instance.process.set("DATABASE_URL", &url);
        }
        self.outbox.move_to(server.admin_url(&self.name));
        // A relay may commit its marks without waiting for the standby.
        self.calm.clear();
        self.promoted = Some(server);
    }

    /// The name of the database.
    pub(crate) fn database(&self) -> &str {
        &self.name
    }

    /// Where the proxy listens for a route.
    pub(crate) fn address(&self, route: &str) -> Result<SocketAddr> {
        Ok(self.proxy.address(route)?)
    }

    /// Sends SIGSTOP to an instance.
    pub(crate) fn freeze(&mut self, number: usize) -> Result<()> {
        self.fault();
        self.instances[number - 1].process.pause()
    }

    /// Sends SIGCONT to an instance.
    pub(crate) fn thaw(&self, number: usize) -> Result<()> {
        self.instances[number - 1].process.resume()
    }

    /// Its process id, while it runs.
    pub(crate) fn pid(&self, number: usize) -> Option<u32> {
        self.instances[number - 1].process.pid()
    }

    /// Resets the connection of a route once, when it sees these bytes. Their receiver does not get them.
    pub(crate) fn reset_on(&mut self, route: &str, pattern: &[u8], toward: Direction) -> Result<u64> {
        self.fault();
        let effect = Effect::ResetOnPattern { pattern: pattern.to_vec(), forward: false };
        self.proxy.set(route, Fault::new(effect, toward, MAX_FAULT_DURATION).times(1))?;
        self.resets(route)
    }

    /// Sets another effect on a route.
    pub(crate) fn set(&mut self, route: &str, effect: Effect, toward: Direction) -> Result<()> {
        self.fault();
        Ok(self.proxy.set(route, Fault::new(effect, toward, MAX_FAULT_DURATION))?)
    }

    /// Lets the open connections of a route fall silent for good, without an end: what answers there is frozen. Later ones work.
    pub(crate) fn silence(&mut self, route: &str) -> Result<()> {
        self.fault();
        Ok(self.proxy.silence_open(route)?)
    }

    /// Ends the fault of a route.
    pub(crate) fn clear(&self, route: &str) -> Result<()> {
        Ok(self.proxy.clear(route)?)
    }

    /// How many connections of a route faults have reset.
    pub(crate) fn resets(&self, route: &str) -> Result<u64> {
        let stats = self.proxy.stats();
        Ok(stats.get(route).with_context(|| format!("there is no route {route}"))?.resets)
    }

    /// Waits until there are more resets than `before`, [`longer`] on a slow machine.
    pub(crate) async fn until_reset(&mut self, route: &str, before: u64, deadline: Duration) -> Result<bool> {
        self.until(self.deadline(deadline), async |stage| Ok(stage.resets(route)? > before)).await
    }

    /// A deadline, or the time that this relay may need if that is longer: [`longer`] on a slow machine.
    pub(crate) fn deadline(&self, deadline: Duration) -> Duration {
        longer(self.entrant.deadline(deadline))
    }

    /// Waits for a condition. Meanwhile instances that have ended by themselves are started again.
    pub(crate) async fn until(
        &mut self,
        deadline: Duration,
        mut condition: impl AsyncFnMut(&mut Self) -> Result<bool>,
    ) -> Result<bool> {
        let until = Instant::now() + deadline;
        loop {
            self.restart_ended()?;
            if condition(self).await? {
                return Ok(true);
            }
            if Instant::now() > until {
                return Ok(false);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits for a condition for as long as events arrive. False: none has arrived for `patience`.
    pub(crate) async fn until_idle(
        &mut self,
        patience: Duration,
        mut condition: impl AsyncFnMut(&mut Self) -> Result<bool>,
    ) -> Result<bool> {
        let patience = self.entrant.deadline(patience);
        let (mut arrived, mut progress, mut met) = (0, Instant::now(), false);
        self.until(LONGEST_WAIT.max(3 * patience), async |stage| {
            met = condition(stage).await?;
            let now = stage.arrivals.record().all.len();
            if now > arrived {
                (arrived, progress) = (now, Instant::now());
            }
            Ok(met || progress.elapsed() > patience)
        })
        .await?;
        Ok(met)
    }

    /// Passes time, and starts instances again that end meanwhile.
    pub(crate) async fn pass(&mut self, time: Duration) -> Result<()> {
        self.until(time, async |_| Ok(false)).await.map(drop)
    }

    /// Waits until all publishable events have arrived and are no longer pending, for as long as there is progress. False: there
    /// was none for twice `patience`, or some are lost. In between, the relay is slow or the machine is: nothing is proven.
    pub(crate) async fn settle(&mut self, patience: Duration) -> Result<bool> {
        let patience = self.entrant.deadline(patience);
        let all: HashSet<_> = self.outbox.publishable().map(|(event, _)| event.id).collect();
        let mut missing = all.clone();
        let (mut looked, mut progress, mut lost_since) = (Instant::now(), Instant::now(), None);
        let mut longest = Duration::ZERO;
        self.until(LONGEST_WAIT.max(3 * patience), async |stage| {
            let before = missing.len();
            {
                let record = stage.arrivals.record();
                missing.retain(|id| !record.first.contains_key(id));
            }
            if missing.len() < before {
                longest = longest.max(progress.elapsed());
                progress = Instant::now();
            }
            // Not more often: the query takes processor time from the entrant.
            if missing.is_empty() || looked.elapsed() < LOOK_INTERVAL {
                return Ok(missing.is_empty() || progress.elapsed() > 2 * patience);
            }
            looked = Instant::now();
            let are_lost = stage.outbox.pending().await?.is_disjoint(&missing);
            lost_since = lost_since.filter(|_| are_lost).or(are_lost.then_some(looked));
            Ok(lost_since.is_some_and(|since: Instant| since.elapsed() > LOST_AFTER))
        })
        .await?;
        let all_are_marked = async |stage: &mut Self| {
            sleep(POLL_INTERVAL).await;
            Ok(stage.outbox.pending().await?.is_disjoint(&all))
        };
        let arrived = Instant::now();
        let is_settled = missing.is_empty() && self.until(2 * patience, all_are_marked).await?;
        longest = longest.max(arrived.elapsed());
        if longest > patience {
            let seconds = patience.as_secs();
            let what = format!("published and marked within {seconds} s ({} s passed)", longest.as_secs());
            self.felt(what, false);
        }
        if is_settled && !self.has_fault {
            let now = Instant::now();
            all.into_iter().for_each(|id| _ = self.calm.entry(id).or_insert(now));
        }
        Ok(is_settled)
    }

    /// Lets the judge's queue take so many messages and refuse others, and nobody read from it. `None`: as before.
    pub(crate) async fn limit_queue(&mut self, messages: Option<u32>) -> Result<()> {
        self.fault();
        let full = messages.map(|most| format!(r#"{{"max-length": {most}, "overflow": "reject-publish"}}"#));
        self.arrivals.pause(messages.is_some());
        self.vhost.set_policy(QUEUE, full.as_deref()).await
    }

    /// From now on the judge's queue wants all events. Does what an operator does then.
    pub(crate) async fn want_all(&mut self) -> Result<()> {
        self.arrivals.bind(UNWANTED).await?;
        self.outbox.all_are_wanted = true;
        self.outbox.release().await
    }

    /// Says that a fault follows: from here on an event may be published twice.
    pub(crate) fn fault(&mut self) {
        self.has_fault = true;
    }

    /// Kills the broker. What the judge has received it may deliver again then.
    pub(crate) async fn kill_broker(&mut self) -> Result<()> {
        self.fault();
        self.calm.clear();
        self.servers.rabbitmq.first().kill().await
    }

    /// Records whether something was felt.
    pub(crate) fn felt(&mut self, what: impl Into<String>, observed: bool) {
        self.facts.push(Fact { what: what.into(), observed });
    }

    /// A moment of this level, as evidence shows it.
    pub(crate) fn time(&self, at: Instant) -> String {
        format!("{:.3} s", at.duration_since(self.began).as_secs_f64())
    }

    fn restart_ended(&mut self) -> Result<()> {
        for instance in &mut self.instances {
            let has_ended = instance.should_run && instance.process.pid().is_none();
            if has_ended && instance.started.elapsed() > RESTART_INTERVAL {
                (self.restarts, instance.started) = (self.restarts + 1, Instant::now());
                instance.process.start()?;
            }
        }
        Ok(())
    }
}
