//! The soak: four order services, two of each consumer, orders that another instance cancels at once, one order in a
//! hundred that inventory and billing cannot apply before a defect is repaired at the end, and a random fault every few
//! seconds.

mod fault;
mod result;
mod sometimes;

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fastrand::Rng;
use load_tests::Load;
use tokio::time::{Instant, sleep};

use crate::cancelling_load::CancellingLoad;
use crate::choice::Choice;
use crate::fault::{Fault, repair_all};
use crate::lab::{Setup, Tap};
use crate::paths;
use crate::reconciliation::{Settled, Wait};
use crate::running_system::RunningSystem;
use crate::set_aside::{GIVEN_UP, count_reasons, count_waiting, discard_all, replay_all};
use crate::terminal::Terminal;

use fault::{Injector, KINDS};

pub(crate) use result::SoakResult;
pub(crate) use sometimes::Reached;

/// The pause between two faults, in milliseconds.
const PAUSE: Range<u64> = 1_500..5_000;
const REPORT_INTERVAL: Duration = Duration::from_secs(15);
/// How many orders there are for each that is cancelled at once.
const CANCELLED_ONE_IN: u32 = 2;
/// How long everything may take to come to rest after the last fault.
const REST: Wait = Wait::until_decided(Duration::from_secs(180));

/// A soak.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Soak {
    /// For how long.
    #[arg(long = "for", default_value = "10m", value_parser = humantime::parse_duration)]
    for_: Duration,
    /// Orders per second; every other order is cancelled at once.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(4..))]
    rate: u32,
    /// Decides which faults come when. How long each start and repair takes differs.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

impl Soak {
    /// Starts a system for it, breaks it, repairs it, and reads the records. `None`: interrupted.
    ///
    /// # Errors
    /// When the system cannot be set up. What is wrong in the end is part of the result.
    pub(crate) async fn run(self, choice: Choice, terminal: &Terminal) -> Result<Option<SoakResult>> {
        let own = Setup { piped_logs: true, ..Setup::default() }.with_instances(4, 2, 2).into();
        let logs = paths::home().join("soak/logs");
        let work = async |system: &RunningSystem| self.run_on(system, terminal).await;
        RunningSystem::with_own(choice, own, logs, terminal, work).await
    }

    async fn run_on(self, system: &RunningSystem, terminal: &Terminal) -> Result<SoakResult> {
        let ledger = system.ledger().await?;
        let defect = Fault::Defect.inject(system).await?;
        let mut tap = Tap::on(system.broker_api()?).await?;
        let processes = system.processes()?;
        let names = processes.names().filter(|name| name.starts_with("orders"));
        let urls = names.map(|name| Ok(processes.url(name)?.to_owned())).collect::<Result<Vec<_>>>()?;
        let (first, others) = urls.split_first().context("there is no order service")?;
        let load = Load::new(first, self.rate, Duration::MAX);
        let max_in_flight = load.max_in_flight * urls.len();
        let load = Load { others: others.to_vec(), max_in_flight, ..load };
        let load = CancellingLoad::start(load, urls, CANCELLED_ONE_IN, &ledger)?;

        let mut injector =
            Injector { system, random: Rng::with_seed(self.seed), poison: HashSet::new(), copies: 0 };
        let mut faults = KINDS.each_ref().map(|kind| (kind.name, 0_u32));
        let mut round = vec![];
        let began = Instant::now();
        let mut printed = began;
        while began.elapsed() < self.for_ {
            if round.is_empty() {
                round.extend(0..KINDS.len());
                injector.random.shuffle(&mut round);
            }
            let Some(index) = round.pop() else { break };
            match injector.inject(&KINDS[index], &tap).await {
                Ok(()) => faults[index].1 += 1,
                // For example a request to the provider while a process is killed. What was not injected does not count.
                Err(error) => terminal.print(format!("  not injected: {}: {error:#}", KINDS[index].name)),
            }
            let published = tap.drain().await?;
            if printed.elapsed() > REPORT_INTERVAL {
                printed = Instant::now();
                terminal.print(format!(
                    "  {:5.0} s  {} orders, {} cancelled, {} messages ({} copies, {} out of order), {} faults",
                    began.elapsed().as_secs_f64(),
                    ledger.recorded(),
                    load.cancelled(),
                    published.messages,
                    published.copies,
                    published.out_of_order.len(),
                    faults.iter().map(|(_, count)| count).sum::<u32>(),
                ));
            }
            let pause = injector.random.u64(PAUSE);
            sleep(Duration::from_millis(pause)).await;
        }
        let sent = load.stop().await?;
        terminal
            .print("  The load has ended. Repairing everything, and waiting until nothing is in progress …");
        repair(system).await?;
        // Everything that can be applied is, before the defect is repaired: what is replayed then comes last.
        system.settle(REST, &ledger).await?;
        let dead_letters = count_waiting(system).await?;
        let reasons = count_reasons(system).await?;
        defect.repair(system).await?;
        let replayed = replay_all(system).await?;
        let discarded = discard_all(system, "sent by the soak").await?;
        let Settled { reconciliation, ending } = system.settle(REST, &ledger).await?;
        Ok(SoakResult {
            lost_cancellations: system.lost_cancellations(&sent.cancelled).await?,
            sent,
            faults: faults.into_iter().filter(|(_, count)| *count > 0).collect(),
            foreign: discarded.iter().filter(|id| !injector.poison.contains(*id)).count(),
            republished: injector.copies,
            dead_letters,
            given_up: GIVEN_UP.iter().filter_map(|reason| reasons.get(*reason)).sum::<usize>() as u64,
            overtaken: count_overtaken(system).await?,
            replayed,
            discarded: discarded.len(),
            published: tap.drain().await?.clone(),
            ending,
            reconciliation,
            reached: sometimes::count(system, self.for_).await?,
        })
    }
}

/// Orders that a consumer saw cancelled before it saw them created. The reconciliation excuses those whose creation the broker
/// has set aside; here that must not happen.
async fn count_overtaken(system: &RunningSystem) -> Result<u64> {
    let overtaken = "select ((select count(*) from inventory.cancelled_orders where came_first)
                           + (select count(*) from billing.cancelled_orders where came_first))::text";
    Ok(system.read(overtaken).await?.trim().parse()?)
}

/// Repairs what is broken, starts what does not run, and waits until everything is ready.
async fn repair(system: &RunningSystem) -> Result<()> {
    // The servers first: the other repairs speak to them.
    system.repair().await?;
    repair_all(system).await?;
    system.revive().await
}
