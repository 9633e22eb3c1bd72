//! The signs that a system feels a fault. A fault that was not felt proves nothing.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::drill_run::DrillRun;

/// Answers that were on their way when a server was killed have arrived after this time.
pub(super) const IN_FLIGHT: Duration = Duration::from_secs(1);

/// A sign.
pub(super) enum Felt {
    /// None: the faults last for the time of the outage.
    Lasts,
    /// Orders are accepted in the time of the outage.
    Accepted,
    /// No order is accepted in the time of the outage: that is part of the claim.
    NoneAccepted,
    /// A service reports the connections of a role to the broker as lost.
    Disconnected(&'static str, &'static str),
    /// A figure becomes larger than a limit: in words, with `{}` for the figure.
    More(Limit, Figure, &'static str),
    /// A figure has grown by more than a limit since before the fault.
    Grows(Limit, Figure, &'static str),
    /// A figure that may not be larger than a limit when everything else was felt.
    AtMost(Limit, Figure, &'static str),
}

#[derive(Clone, Copy)]
pub(super) enum Limit {
    Count(f64),
    /// As many as orders are placed in so many seconds.
    Seconds(f64),
}

/// A number that can be read from a system.
pub(super) enum Figure {
    /// A service's metric.
    Metric(&'static str, &'static str),
    /// The difference of two metrics of a service.
    Difference(&'static str, &'static str, &'static str),
    Sql(&'static str),
    /// How many connections of a route the proxy has reset.
    Resets(&'static str),
    /// How many connections of a route the proxy has refused.
    Refused(&'static str),
}

impl Felt {
    /// Whether it is looked at once the others were seen. These are waited for together.
    pub(super) fn is_at_the_end(&self) -> bool {
        matches!(self, Self::AtMost(..))
    }

    /// Reads the figure before the fault.
    pub(super) async fn before(&self, run: &DrillRun<'_>) -> Result<f64> {
        if let Self::Grows(_, figure, _) = self { figure.read(run).await } else { Ok(0.0) }
    }

    /// Waits for the sign, and records whether it was seen.
    pub(super) async fn observe(&self, run: &DrillRun<'_>, before: f64) -> Result<()> {
        match self {
            Self::Lasts => sleep(run.outage).await,
            Self::Accepted => run.accepted_meanwhile().await,
            Self::NoneAccepted => {
                sleep(IN_FLIGHT).await;
                let accepted = run.wait_outage().await;
                run.promised(format!("{accepted} orders were accepted without a database"), accepted == 0);
            }
            Self::Disconnected(service, role) => {
                let gauge = format!("broker_connected{{role=\"{role}\"}}");
                let sign = format!("{service} reports its {role} as disconnected");
                run.until_injected(&sign, async || Ok(run.system.metric(service, &gauge).await? == 0.0))
                    .await;
            }
            Self::More(limit, figure, sign) | Self::Grows(limit, figure, sign) => {
                let limit = limit.of(run);
                let more = async || {
                    let figure = figure.read(run).await? - before;
                    Ok((figure > limit).then(|| say(sign, &format!("{figure:.0}"))))
                };
                run.seen_injected(&say(sign, &format!("more than {limit:.0}")), more).await;
            }
            Self::AtMost(limit, figure, sign) => {
                let figure = figure.read(run).await?;
                // An unknown figure is NaN, which is not at most anything.
                run.promised(say(sign, &format!("{figure:.0}")), figure <= limit.of(run));
            }
        }
        Ok(())
    }
}

fn say(sign: &str, figure: &str) -> String {
    sign.replace("{}", figure)
}

impl Limit {
    fn of(self, run: &DrillRun<'_>) -> f64 {
        match self {
            Self::Count(count) => count,
            Self::Seconds(seconds) => seconds * f64::from(run.rate),
        }
    }
}

impl Figure {
    async fn read(&self, run: &DrillRun<'_>) -> Result<f64> {
        let system = run.system;
        match self {
            Self::Metric(service, name) => system.metric(service, name).await,
            Self::Difference(service, name, other) => {
                Ok(system.metric(service, name).await? - system.metric(service, other).await?)
            }
            Self::Sql(query) => system.number(query).await,
            Self::Resets(route) => Ok(system.proxies()?.stats(route).await?.resets as f64),
            Self::Refused(route) => Ok(system.proxies()?.stats(route).await?.refused as f64),
        }
    }
}
