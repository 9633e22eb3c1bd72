use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep, timeout};

use super::result::Reconciliation;

/// The pause between two readings. A reading that took longer is followed by a pause as long as itself, so that the
/// query never takes more than half of the time of a busy database.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long one reading may take: a frozen database does not answer.
const READ_DEADLINE: Duration = Duration::from_secs(30);

/// What a wait waits for.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    deadline: Duration,
    unchanged_for: Option<Duration>,
    until_decided: bool,
}

impl Wait {
    /// Waits until the system is quiescent, or violated so that no wait can repair it.
    pub const fn until_decided(deadline: Duration) -> Self {
        Self { deadline, unchanged_for: None, until_decided: true }
    }

    /// Ends the wait also once nothing has changed for this long.
    #[must_use]
    pub const fn or_unchanged_for(self, unchanged_for: Duration) -> Self {
        Self { unchanged_for: Some(unchanged_for), ..self }
    }

    /// Waits until nothing has changed for this long, and for nothing else. For a system without an outbox, in which no
    /// record shows what is still to come: it can look quiescent, or violated in one way only, too early.
    pub const fn until_unchanged_for(unchanged_for: Duration, deadline: Duration) -> Self {
        Self { deadline, unchanged_for: Some(unchanged_for), until_decided: false }
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nothing is in progress. There may be findings.
    Quiescent,
    /// A promise is broken for good.
    Violated,
    /// Nothing has changed for as long as was requested.
    Unchanged,
    DeadlinePassed,
}

/// The last reading of a wait.
#[derive(Clone, Debug)]
pub struct Settled {
    pub reconciliation: Reconciliation,
    pub ending: Ending,
}

/// Reads the reconciliation again and again until the wait ends. Every judge of a system uses this function.
///
/// A reading that fails is repeated: the database may still be recovering from a fault.
///
/// # Errors
/// When the last reading before the deadline failed.
pub async fn settle(wait: Wait, mut read: impl AsyncFnMut() -> Result<Reconciliation>) -> Result<Settled> {
    let deadline = Instant::now() + wait.deadline;
    let mut last: Option<(Reconciliation, Instant)> = None;
    loop {
        let began = Instant::now();
        let reading = timeout(READ_DEADLINE, read()).await.context("the database does not answer").flatten();
        let now = Instant::now();
        match reading {
            Ok(reconciliation) => {
                let since = match last.take() {
                    Some((before, since)) if before == reconciliation => since,
                    _ => now,
                };
                if let Some(ending) = ending(&wait, &reconciliation, now - since, now >= deadline) {
                    return Ok(Settled { reconciliation, ending });
                }
                last = Some((reconciliation, since));
            }
            Err(error) if now >= deadline => return Err(error),
            // Without its database the system could change nothing: that does not count as unchanged.
            Err(_) => last = None,
        }
        sleep(POLL_INTERVAL.max(now - began)).await;
    }
}

fn ending(wait: &Wait, now: &Reconciliation, unchanged: Duration, late: bool) -> Option<Ending> {
    if wait.until_decided && now.is_quiescent() {
        return Some(Ending::Quiescent);
    }
    if wait.until_decided && now.is_violated() {
        return Some(Ending::Violated);
    }
    if wait.unchanged_for.is_some_and(|enough| unchanged >= enough) {
        return Some(Ending::Unchanged);
    }
    late.then_some(Ending::DeadlinePassed)
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::super::result::{Finding, Kind};
    use super::*;

    // The clock advances only while a wait sleeps: a stalled machine makes no reading late.
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(300);

    fn pending(pending: u64) -> Reconciliation {
        Reconciliation { pending, ..Reconciliation::default() }
    }

    fn finding(kind: Kind, place: &str) -> Reconciliation {
        let (place, what) = (place.to_owned(), String::new());
        let findings = vec![Finding { kind, place, what, count: 1, first: vec![] }];
        Reconciliation { findings, ..Reconciliation::default() }
    }

    /// Settles on readings that are given one after the other; the last one is repeated.
    async fn settle_on(wait: Wait, readings: &[Reconciliation]) -> Result<(Ending, usize)> {
        let mut count = 0;
        let read = async || {
            count += 1;
            Ok(readings[(count - 1).min(readings.len() - 1)].clone())
        };
        let ending = settle(wait, read).await?.ending;
        Ok((ending, count))
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_with_the_first_quiescent_reading() -> Result<()> {
        let readings = [pending(2), pending(1), pending(0), pending(1)];
        assert_eq!(settle_on(Wait::until_decided(LONG), &readings).await?, (Ending::Quiescent, 3));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_at_once_when_no_wait_can_repair_what_is_wrong() -> Result<()> {
        for (kind, place) in [(Kind::Missing, "orders"), (Kind::Doubled, "provider")] {
            let violated = Reconciliation { pending: 1, ..finding(kind, place) };
            let readings = [pending(1), violated, pending(0)];
            assert_eq!(settle_on(Wait::until_decided(LONG), &readings).await?, (Ending::Violated, 2));
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn an_effect_that_may_still_arrive_is_waited_for() -> Result<()> {
        let readings = [finding(Kind::Missing, "billing"), pending(0)];
        assert_eq!(settle_on(Wait::until_decided(LONG), &readings).await?, (Ending::Quiescent, 2));
        let (ending, _) = settle_on(Wait::until_decided(SHORT), &readings[..1]).await?;
        assert_eq!(ending, Ending::DeadlinePassed);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_when_nothing_changes_any_more_and_not_before() -> Result<()> {
        let readings = [pending(3), pending(3), pending(2), pending(2), pending(1)];
        let wait = Wait::until_decided(LONG).or_unchanged_for(SHORT);
        let (ending, count) = settle_on(wait, &readings).await?;
        assert!(ending == Ending::Unchanged && count > readings.len(), "{ending:?} after {count}");
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_outbox_quiescence_and_violations_end_no_wait() -> Result<()> {
        let readings = [pending(0), finding(Kind::Phantom, "billing"), finding(Kind::Doubled, "billing")];
        let (ending, count) = settle_on(Wait::until_unchanged_for(SHORT, LONG), &readings).await?;
        assert!(ending == Ending::Unchanged && count > readings.len(), "{ending:?} after {count}");
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_reading_is_repeated_and_is_an_error_only_at_the_deadline() -> Result<()> {
        let mut count = 0;
        let recovering = async || {
            count += 1;
            if count < 3 { bail!("recovering") } else { Ok(pending(0)) }
        };
        assert_eq!(settle(Wait::until_decided(LONG), recovering).await?.ending, Ending::Quiescent);
        let error = settle(Wait::until_decided(SHORT), async || bail!("down")).await.map(drop);
        assert_eq!(error.unwrap_err().to_string(), "down");
        Ok(())
    }
}
