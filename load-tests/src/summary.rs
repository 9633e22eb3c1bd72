//! The outcome of each request, and the sum of all.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use hdrhistogram::Histogram;
use serde::Serialize;
use uuid::Uuid;

/// The outcome of one request.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its place in the run, from 0. In an open-loop run this and the rate give the moment at which it was due.
    pub number: u64,
    /// When it was due; in a closed-loop run, when it was sent.
    pub due: SystemTime,
    /// When the answer was complete, or the attempt failed. Its distance from `due` is taken from the monotonic clock.
    pub finished: SystemTime,
    /// The answer, or why there is none.
    pub answer: Answer,
}

/// The answer to one request, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// 201: the service has acknowledged the order with this id, and must not lose it from now on.
    Accepted(Uuid),
    /// Any other status: the service has written nothing.
    Refused(u16),
    /// No answer, or an unreadable one: whether the order exists is *unknown*.
    Failed(String),
    /// Not sent: as many requests as allowed were waiting for their answers.
    Shed,
}

impl Answer {
    pub(crate) fn read(status: u16, body: &[u8]) -> Self {
        #[derive(serde::Deserialize)]
        struct Accepted {
            id: Uuid,
        }
        match status {
            201 => match serde_json::from_slice::<Accepted>(body) {
                Ok(order) => Answer::Accepted(order.id),
                Err(error) => Answer::Failed(format!("201 without a readable id: {error}")),
            },
            _ => Answer::Refused(status),
        }
    }
}

/// The sum of a run: `due = sent + shed` and `sent = accepted + refused + failed`.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Requests that were sent.
    pub sent: u64,
    /// Answered with 201 and an order id.
    pub accepted: u64,
    /// Answered with another status: how many, by status.
    pub refused: BTreeMap<u16, u64>,
    /// Without a readable answer: whether these orders exist is unknown.
    pub failed: u64,
    /// The reasons of the failed ones, at most `KEPT_REASONS` different ones.
    pub failures: BTreeMap<String, u64>,
    /// Not sent, because too many were in flight. If there are any, the latencies below are too low.
    pub shed: u64,
    /// From due (closed loop: from sent) to finished, of all requests that were sent. Failed ones are included: they
    /// took longest, and without them the latencies would be too low. `None` if nothing was sent.
    pub latency: Option<Latency>,
    /// From the first request to the end of the last.
    #[serde(rename = "tookSeconds", serialize_with = "seconds")]
    pub took: Duration,
}

/// How many different reasons of failures a [`Summary`] keeps; the rest are counted only.
const KEPT_REASONS: usize = 10;

/// Four quantiles of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// Half were at least as fast.
    #[serde(rename = "p50Seconds", serialize_with = "seconds")]
    pub p50: Duration,
    /// Nine of ten were at least as fast.
    #[serde(rename = "p90Seconds", serialize_with = "seconds")]
    pub p90: Duration,
    /// 99 of a hundred were at least as fast.
    #[serde(rename = "p99Seconds", serialize_with = "seconds")]
    pub p99: Duration,
    /// The slowest one.
    #[serde(rename = "maxSeconds", serialize_with = "seconds")]
    pub max: Duration,
}

fn seconds<S: serde::Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(duration.as_secs_f64())
}

impl Summary {
    /// Counts the requests that were answered with another status than 201.
    pub fn refused_in_all(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Passes the summary on if every request that was due was accepted.
    ///
    /// # Errors
    /// When one was not; names the failures.
    pub fn all_accepted(self) -> anyhow::Result<Self> {
        anyhow::ensure!(
            self.accepted == self.sent && self.shed == 0 && self.accepted > 0,
            "failed to place every order: {self} {:?}",
            self.failures
        );
        Ok(self)
    }

    /// Accepted orders per second of the run.
    pub fn accepted_per_second(&self) -> f64 {
        // Counts of requests are far below 2^52, where floating point numbers begin to lose units.
        self.accepted as f64 / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { sent, accepted, failed, shed, .. } = self;
        write!(to, "sent {sent}, accepted {accepted}, refused {}", self.refused_in_all())?;
        if !self.refused.is_empty() {
            let by_status: Vec<String> =
                self.refused.iter().map(|(status, count)| format!("{status}: {count}")).collect();
            write!(to, " ({})", by_status.join(", "))?;
        }
        write!(to, ", failed {failed}, shed {shed}")?;
        match self.latency {
            Some(latency) => write!(to, "; {latency}"),
            None => write!(to, "; latency unknown"),
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p90, p99, max] =
            [self.p50, self.p90, self.p99, self.max].map(|value| value.as_secs_f64() * 1e3);
        write!(to, "p50 {p50:.1} ms, p90 {p90:.1} ms, p99 {p99:.1} ms, max {max:.1} ms")
    }
}

/// Reports each outcome of a run, from many tasks at once, and sums them up.
pub(crate) struct Recorder<F> {
    on_outcome: F,
    tally: Mutex<Tally>,
}

struct Tally {
    /// Without its latency and its duration, until the end.
    summary: Summary,
    /// Microseconds, up to an hour, to three digits.
    latencies: Histogram<u64>,
}

impl<F: Fn(Outcome)> Recorder<F> {
    pub(crate) fn new(on_outcome: F) -> anyhow::Result<Self> {
        let latencies = Histogram::new_with_max(3_600_000_000, 3)?;
        Ok(Self { on_outcome, tally: Mutex::new(Tally { summary: Summary::default(), latencies }) })
    }

    /// Records the answer to request `number`, so long after it was due. A request that was shed has no latency.
    pub(crate) fn record(&self, number: u64, due: SystemTime, latency: Duration, answer: Answer) {
        let counted = answer.clone();
        (self.on_outcome)(Outcome { number, due, finished: due + latency, answer });
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).add(&counted, latency);
    }

    /// The sum of what was recorded so far.
    pub(crate) fn summary(&self, took: Duration) -> Summary {
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |quantile| Duration::from_micros(tally.latencies.value_at_quantile(quantile));
        let latency = (!tally.latencies.is_empty()).then(|| Latency {
            p50: at(0.50),
            p90: at(0.90),
            p99: at(0.99),
            max: Duration::from_micros(tally.latencies.max()),
        });
        Summary { latency, took, ..tally.summary.clone() }
    }
}

impl Tally {
    fn add(&mut self, answer: &Answer, latency: Duration) {
        let summary = &mut self.summary;
        match answer {
            Answer::Shed => {
                summary.shed += 1;
                return;
            }
            Answer::Accepted(_) => summary.accepted += 1,
            Answer::Refused(status) => *summary.refused.entry(*status).or_default() += 1,
            Answer::Failed(reason) => {
                summary.failed += 1;
                if summary.failures.len() < KEPT_REASONS || summary.failures.contains_key(reason) {
                    *summary.failures.entry(reason.clone()).or_default() += 1;
                }
            }
        }
        summary.sent += 1;
        self.latencies.saturating_record(latency.as_micros().try_into().unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_nothing_sent_the_latency_is_unknown_and_not_zero() {
        let summary = Recorder::new(drop).unwrap().summary(Duration::from_secs(1));
        assert_eq!(summary.latency, None);
        assert!(summary.to_string().ends_with("latency unknown"));
    }

    #[test]
    fn reasons_of_failures_are_bounded_but_all_are_counted() {
        let recorder = Recorder::new(drop).unwrap();
        for number in 0..50 {
            let answer = Answer::Failed(number.to_string());
            recorder.record(number, SystemTime::now(), Duration::ZERO, answer);
        }
        let summary = recorder.summary(Duration::from_secs(1));
        assert_eq!((summary.failed, summary.failures.len()), (50, KEPT_REASONS));
    }

    #[test]
    fn only_a_201_that_names_its_order_is_accepted() {
        let id = Uuid::from_u128(5);
        assert_eq!(
            Answer::read(201, format!(r#"{{"id":"{id}","more":1}}"#).as_bytes()),
            Answer::Accepted(id)
        );
        assert!(matches!(Answer::read(201, b"{}"), Answer::Failed(_)));
        assert_eq!(Answer::read(200, format!(r#"{{"id":"{id}"}}"#).as_bytes()), Answer::Refused(200));
    }
}
