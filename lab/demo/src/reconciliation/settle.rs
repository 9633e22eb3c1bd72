//! The wait before a verdict. What is missing is lost when it is nowhere, not when it is late.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep, timeout};

use super::result::{Finding, Reconciliation};

/// The pause between two readings. A reading that took longer is followed by a pause as long as itself, so that the
/// query never takes more than half of the time of a busy database.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The pause between two looks at the queues and the processes.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long one reading may take: a frozen database does not answer.
const READ_DEADLINE: Duration = Duration::from_secs(30);

/// An effect whose event is in no outbox and in no queue for this long is lost. The broker's numbers of a quorum queue are up
/// to five seconds old, on a slow machine too.
const NOWHERE_FOR: Duration = Duration::from_secs(15);

/// A system in which nothing moves for this long, with every part ready, does not go on by itself. A payment backs off for up
/// to half a minute, and so long may RabbitMQ 3.10 deliver nothing from a quorum queue after a kill. [Longer](testbed::longer) on
/// a slow machine.
const STILL_FOR: Duration = Duration::from_secs(40);

/// So much of a time in which nobody looked counts: a machine that stood still has shown nothing.
const MOST_COUNTED: Duration = Duration::from_secs(5);

/// What a wait waits for.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    deadline: Duration,
    until_decided: bool,
    still_for: Option<Duration>,
}

impl Wait {
    /// Waits until the system is quiescent, or a promise is broken for good.
    pub const fn until_decided(deadline: Duration) -> Self {
        Self { deadline, until_decided: true, still_for: None }
    }

    /// Ends the wait also once nothing has moved for this long, with every part ready, where that is known to be long enough.
    #[must_use]
    pub const fn or_still_for(self, still_for: Duration) -> Self {
        Self { still_for: Some(still_for), ..self }
    }

    /// Waits until nothing moves any more. For a system without an outbox, in which no record shows what is still to come: it
    /// can look quiescent, or violated in one way only, too early.
    pub const fn until_still(deadline: Duration) -> Self {
        Self { deadline, until_decided: false, still_for: None }
    }
}

/// What the records do not show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transit {
    /// Messages in the services' queues: ready, or held by a consumer. `None`: unknown.
    pub queued: Option<u64>,
    /// A part that is not ready, in words.
    pub not_ready: Option<String>,
}

/// Why a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nothing is in progress. There may be findings.
    Quiescent,
    /// A promise is broken for good: no effect that is still to come can repair it.
    Violated,
    /// The effects of published events are missing, and their messages are in no queue.
    Lost,
    /// Nothing moves any more, although every part is ready.
    Still,
    /// The deadline passed while something moved, waited in a queue, or was not ready: the reason, in words.
    InProgress(String),
}

/// The last reading of a wait.
#[derive(Clone, Debug)]
pub struct Settled {
    pub reconciliation: Reconciliation,
    pub ending: Ending,
}

impl Settled {
    /// The broken promises in words, as [`Reconciliation::broken`]. A missing effect counts only if it can no longer arrive.
    pub fn broken(&self) -> Option<String> {
        match self.ending {
            Ending::Quiescent | Ending::Lost | Ending::Still => self.reconciliation.broken(),
            Ending::Violated | Ending::InProgress(_) => self.reconciliation.broken_for_good(),
        }
    }

    /// Why nothing is known about what is in progress.
    pub fn undecided(&self) -> Option<&str> {
        match &self.ending {
            Ending::InProgress(why) => Some(why),
            _ => None,
        }
    }
}

/// Reads the reconciliation again and again until the wait ends, and looks meanwhile at what the records do not show. Every
/// judge of a system uses this function.
///
/// A reading that fails is repeated: the database may still be recovering from a fault.
///
/// # Errors
/// When the last reading before the deadline failed.
pub async fn settle(
    wait: Wait,
    mut read: impl AsyncFnMut() -> Result<Reconciliation>,
    mut look: impl AsyncFnMut() -> Transit,
) -> Result<Settled> {
    let deadline = Instant::now() + wait.deadline;
    let mut seen: Option<Seen> = None;
    loop {
        let began = Instant::now();
        let reading = timeout(READ_DEADLINE, read()).await.context("the database does not answer").flatten();
        match reading {
            Ok(reconciliation) => {
                if let Some(ending) = wait.decided(&reconciliation) {
                    return Ok(Settled { reconciliation, ending });
                }
                let mut now = Seen::after(seen.take(), reconciliation);
                if now.looked.is_none_or(|at| at.elapsed() >= LOOK_INTERVAL) {
                    now.look(look().await);
                }
                if let Some(ending) = now.ending(wait, Instant::now() >= deadline) {
                    return Ok(Settled { reconciliation: now.records, ending });
                }
                seen = Some(now);
            }
            Err(error) if Instant::now() >= deadline => return Err(error),
            // Without its database the system could change nothing: that does not count as still.
            Err(_) => seen = None,
        }
        sleep(POLL_INTERVAL.max(began.elapsed())).await;
    }
}

impl Wait {
    fn decided(self, records: &Reconciliation) -> Option<Ending> {
        if !self.until_decided {
            return None;
        }
        if records.is_quiescent() {
            return Some(Ending::Quiescent);
        }
        records.is_violated().then_some(Ending::Violated)
    }
}

/// The last reading, and for how long it has been the same.
struct Seen {
    at: Instant,
    records: Reconciliation,
    transit: Transit,
    looked: Option<Instant>,
    /// For how long nothing has moved, with every part ready.
    still: Duration,
    /// For how long the same effects are missing, with every part ready and nothing in a queue.
    nowhere: Duration,
}

impl Seen {
    fn after(before: Option<Self>, records: Reconciliation) -> Self {
        let at = Instant::now();
        let first = Self {
            at,
            records: Reconciliation::default(),
            transit: Transit::default(),
            looked: None,
            still: Duration::ZERO,
            nowhere: Duration::ZERO,
        };
        let before = before.unwrap_or(first);
        let passed = (at - before.at).min(MOST_COUNTED);
        let longer = |same: bool, so_far: Duration| if same { so_far + passed } else { Duration::ZERO };
        let still = longer(before.records == records, before.still);
        let nowhere = longer(before.records.findings == records.findings, before.nowhere);
        Self { at, records, still, nowhere, ..before }
    }

    fn look(&mut self, transit: Transit) {
        if transit != self.transit || transit.not_ready.is_some() {
            self.still = Duration::ZERO;
        }
        if transit.queued != Some(0) || transit.not_ready.is_some() {
            self.nowhere = Duration::ZERO;
        }
        (self.transit, self.looked) = (transit, Some(Instant::now()));
    }

    fn ending(&self, wait: Wait, late: bool) -> Option<Ending> {
        let Self { still, nowhere, .. } = *self;
        let is_missing = self.records.findings.iter().any(Finding::may_arrive);
        if wait.until_decided && is_missing && nowhere >= NOWHERE_FOR {
            return Some(Ending::Lost);
        }
        let is_empty = !wait.until_decided && still.min(nowhere) >= NOWHERE_FOR;
        if is_empty || still >= wait.still_for.unwrap_or_else(|| testbed::longer(STILL_FOR)) {
            return Some(Ending::Still);
        }
        late.then(|| Ending::InProgress(self.why()))
    }

    fn why(&self) -> String {
        let progress = self.records.progress();
        match &self.transit {
            Transit { not_ready: Some(part), .. } => format!("{part} ({progress})"),
            Transit { queued: Some(0), .. } => {
                format!("{progress}, and not all has been still for long enough")
            }
            Transit { queued: Some(1), .. } => format!("a message waits in a queue ({progress})"),
            Transit { queued: Some(queued), .. } => format!("{queued} messages wait in queues ({progress})"),
            Transit { queued: None, .. } => format!("the broker says nothing about its queues ({progress})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::super::result::Kind;
    use super::*;

    // The clock advances only while a wait sleeps: a stalled machine makes no reading late.
    const LONG: Duration = Duration::from_secs(3_600);
    const SHORT: Duration = Duration::from_secs(5);

    fn pending(pending: u64) -> Reconciliation {
        Reconciliation { pending, ..Reconciliation::default() }
    }

    fn finding(kind: Kind, place: &str) -> Reconciliation {
        let (place, what) = (place.to_owned(), String::new());
        let findings = vec![Finding { kind, place, what, count: 1, first: vec![] }];
        Reconciliation { findings, ..Reconciliation::default() }
    }

    fn queued(queued: u64) -> Transit {
        Transit { queued: Some(queued), not_ready: None }
    }

    fn not_ready() -> Transit {
        Transit { not_ready: Some("inventory does not answer".to_owned()), ..queued(0) }
    }

    /// Settles on readings and looks that are given one after the other; the last ones are repeated. Returns also the number
    /// of readings, and how long it took.
    async fn settle_on(
        wait: Wait,
        readings: &[Reconciliation],
        looks: &[Transit],
    ) -> Result<(Ending, usize, Duration)> {
        let (began, mut read, mut looked) = (Instant::now(), 0, 0);
        let next = async || {
            read += 1;
            Ok(readings[(read - 1).min(readings.len() - 1)].clone())
        };
        let look = async || {
            looked += 1;
            looks[(looked - 1).min(looks.len() - 1)].clone()
        };
        let ending = settle(wait, next, look).await?.ending;
        Ok((ending, read, began.elapsed()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_with_the_first_quiescent_reading() -> Result<()> {
        let readings = [pending(2), pending(1), pending(0), pending(1)];
        let (ending, count, _) = settle_on(Wait::until_decided(LONG), &readings, &[queued(1)]).await?;
        assert_eq!((ending, count), (Ending::Quiescent, 3));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_at_once_when_no_wait_can_repair_what_is_wrong() -> Result<()> {
        for (kind, place) in [(Kind::Missing, "orders"), (Kind::Doubled, "provider")] {
            let violated = Reconciliation { pending: 1, ..finding(kind, place) };
            let readings = [pending(1), violated, pending(0)];
            let (ending, count, _) = settle_on(Wait::until_decided(LONG), &readings, &[queued(1)]).await?;
            assert_eq!((ending, count), (Ending::Violated, 2));
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn an_effect_is_lost_once_its_message_is_in_no_queue() -> Result<()> {
        let missing = [finding(Kind::Missing, "billing")];
        for looks in [vec![queued(0)], vec![queued(3), not_ready(), queued(0)]] {
            let (ending, _, took) = settle_on(Wait::until_decided(LONG), &missing, &looks).await?;
            assert_eq!(ending, Ending::Lost);
            let later = if looks.len() == 1 { Duration::ZERO } else { LOOK_INTERVAL };
            let least = NOWHERE_FOR + later;
            assert!(took >= least && took < least * 2, "{took:?}");
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn an_effect_is_not_lost_while_another_one_arrives() -> Result<()> {
        let mut readings = vec![finding(Kind::Missing, "billing"); 100];
        readings.push(Reconciliation { pending: 1, ..finding(Kind::Missing, "inventory") });
        readings.push(pending(0));
        let (ending, count, _) = settle_on(Wait::until_decided(LONG), &readings, &[queued(0)]).await?;
        assert_eq!((ending, count), (Ending::Quiescent, readings.len()));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn an_effect_whose_message_waits_or_whose_consumer_is_not_ready_is_in_progress() -> Result<()> {
        let missing = [finding(Kind::Missing, "inventory")];
        let wait = Wait::until_decided(SHORT);
        let unknown = Transit::default();
        for (look, why) in [
            (queued(3), "3 messages wait"),
            (not_ready(), "inventory does not answer"),
            (unknown, "says nothing"),
        ] {
            let (ending, ..) = settle_on(wait, &missing, &[look]).await?;
            assert!(matches!(&ending, Ending::InProgress(text) if text.contains(why)), "{ending:?}");
        }
        // Also after a time in which it would be lost otherwise.
        let (ending, ..) = settle_on(Wait::until_decided(LONG), &missing, &[not_ready()]).await?;
        assert!(matches!(ending, Ending::InProgress(_)), "{ending:?}");
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_system_that_is_ready_and_does_not_move_is_still() -> Result<()> {
        for look in [queued(0), queued(4)] {
            let readings = [pending(3), pending(3), pending(2)];
            let (ending, _, took) = settle_on(Wait::until_decided(LONG), &readings, &[look]).await?;
            assert!(
                ending == Ending::Still && took >= testbed::longer(STILL_FOR),
                "{ending:?} after {took:?}"
            );
        }
        let wait = Wait::until_decided(LONG).or_still_for(SHORT);
        let (ending, _, took) = settle_on(wait, &[pending(1)], &[queued(0)]).await?;
        assert!(ending == Ending::Still && took < SHORT * 2, "{ending:?} after {took:?}");
        // Messages that leave a queue move.
        let moving: Vec<_> = (0..500).map(queued).collect();
        let (.., took) = settle_on(Wait::until_decided(LONG), &[pending(1)], &moving).await?;
        assert!(took > LOOK_INTERVAL * 500, "{took:?}");
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_in_which_the_machine_stood_still_is_not_counted() -> Result<()> {
        let (began, mut count) = (Instant::now(), 0);
        let missing = async || {
            count += 1;
            if count == 2 {
                tokio::time::advance(STILL_FOR * 100).await;
            }
            Ok(finding(Kind::Missing, "billing"))
        };
        let ending = settle(Wait::until_decided(LONG * 100), missing, async || queued(0)).await?.ending;
        assert_eq!(ending, Ending::Lost);
        assert!(began.elapsed() >= STILL_FOR * 100 + NOWHERE_FOR - MOST_COUNTED, "{:?}", began.elapsed());
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_outbox_quiescence_and_violations_end_no_wait() -> Result<()> {
        let readings = [pending(0), finding(Kind::Phantom, "billing"), finding(Kind::Doubled, "billing")];
        let (ending, count, took) =
            settle_on(Wait::until_still(LONG), &readings, &[queued(1), queued(0)]).await?;
        assert!(ending == Ending::Still && count > readings.len(), "{ending:?} after {count}");
        assert!(took >= NOWHERE_FOR, "{took:?}");
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_arrive_counts_as_broken_only_when_it_cannot() {
        let mut settled = Settled { reconciliation: finding(Kind::Missing, "billing"), ending: Ending::Lost };
        settled.reconciliation.affected.insert(Kind::Missing, 1);
        assert!(settled.broken().is_some());
        settled.ending = Ending::InProgress("a message waits".to_owned());
        assert!(settled.broken().is_none() && settled.undecided().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_reading_is_repeated_and_is_an_error_only_at_the_deadline() -> Result<()> {
        let mut count = 0;
        let recovering = async || {
            count += 1;
            if count < 3 { bail!("recovering") } else { Ok(pending(0)) }
        };
        let look = async || queued(0);
        assert_eq!(settle(Wait::until_decided(LONG), recovering, look).await?.ending, Ending::Quiescent);
        let error = settle(Wait::until_decided(SHORT), async || bail!("down"), look).await.map(drop);
        assert_eq!(error.unwrap_err().to_string(), "down");
        Ok(())
    }
}
