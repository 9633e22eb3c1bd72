//! A publisher that reports what is not true yet.

use flaws::Flaw;
use messaging::{BrokerUnavailable, Outgoing, PublishOutcome, Publisher, Refusal};
use tokio::sync::mpsc;
use uuid::Uuid;

const UNROUTABLE: PublishOutcome = PublishOutcome::Refused(Refusal::Unroutable);
const NACKED: PublishOutcome = PublishOutcome::Refused(Refusal::Nacked);

/// The product's publisher with one part left out, or none.
pub enum FlawedPublisher<P> {
    Waiting {
        inner: P,
        flaw: Option<Flaw>,
        /// Reported as confirmed, and published at the next step: only with `mark-before-confirm`.
        pending: Vec<Outgoing>,
    },
    /// With `confirms-ignored`: hands batches to a task that publishes them, and reports them as confirmed at once.
    Detached(mpsc::UnboundedSender<Vec<Outgoing>>),
}

impl<P: Publisher + 'static> FlawedPublisher<P> {
    pub fn new(mut inner: P, flaw: Option<Flaw>) -> Self {
        if flaw != Some(Flaw::ConfirmsIgnored) {
            return Self::Waiting { inner, flaw, pending: vec![] };
        }
        let (batches, mut received) = mpsc::unbounded_channel::<Vec<Outgoing>>();
        tokio::spawn(async move {
            while let Some(batch) = received.recv().await {
                if inner.ready().await.is_ok() {
                    publish_all(&mut inner, &batch).await;
                }
            }
        });
        Self::Detached(batches)
    }
}

impl<P: Publisher + 'static> Publisher for FlawedPublisher<P> {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        if let Self::Waiting { inner, pending, .. } = self {
            inner.ready().await?;
            publish_all(inner, &std::mem::take(pending)).await;
        }
        Ok(())
    }

    async fn publish(&mut self, batch: &[&Outgoing]) -> Vec<PublishOutcome> {
        let copies = || batch.iter().copied().cloned();
        match self {
            Self::Detached(batches) => {
                let _ = batches.send(copies().collect());
                vec![PublishOutcome::Confirmed; batch.len()]
            }
            Self::Waiting { flaw: Some(Flaw::MarkBeforeConfirm), pending, .. } => {
                // The relay marks and commits first.
                pending.extend(copies());
                vec![PublishOutcome::Confirmed; batch.len()]
            }
            Self::Waiting { inner, flaw: Some(Flaw::NewIdPerAttempt), .. } => {
                publish_all(inner, &copies().map(with_new_id).collect::<Vec<_>>()).await
            }
            Self::Waiting { inner, flaw: Some(Flaw::UnconsumedDropped), .. } => {
                let is_consumed = |message: &&Outgoing| message.event_type != "OrderConfirmed";
                let mut outcomes =
                    publish_all(inner, &copies().filter(|it| is_consumed(&it)).collect::<Vec<_>>())
                        .await
                        .into_iter();
                let outcome = |message| match is_consumed(message) {
                    true => outcomes.next().unwrap_or(PublishOutcome::Unknown),
                    false => PublishOutcome::Confirmed,
                };
                batch.iter().map(outcome).collect()
            }
            Self::Waiting { inner, flaw, .. } => {
                let outcomes = inner.publish(batch).await;
                match flaw {
                    // As a publisher without `mandatory` would.
                    Some(Flaw::UnroutableIgnored) => report(outcomes, UNROUTABLE, PublishOutcome::Confirmed),
                    Some(Flaw::NackTakenForConfirm) => report(outcomes, NACKED, PublishOutcome::Confirmed),
                    Some(Flaw::RefusalsBackOff) => report(outcomes, UNROUTABLE, NACKED),
                    Some(Flaw::ReturnTrustedToItsConfirm) => shift_returns(&outcomes),
                    _ => outcomes,
                }
            }
        }
    }
}

async fn publish_all(inner: &mut impl Publisher, batch: &[Outgoing]) -> Vec<PublishOutcome> {
    if batch.is_empty() {
        return vec![];
    }
    inner.publish(&batch.iter().collect::<Vec<_>>()).await
}

/// Gives a message a new id, in its properties and in its body.
fn with_new_id(message: Outgoing) -> Outgoing {
    let id = Uuid::now_v7();
    let body = String::from_utf8_lossy(&message.body).replace(&message.id.to_string(), &id.to_string());
    Outgoing { id, body: body.into_bytes(), ..message }
}

fn report(
    outcomes: Vec<PublishOutcome>,
    what: PublishOutcome,
    as_what: PublishOutcome,
) -> Vec<PublishOutcome> {
    outcomes.into_iter().map(|outcome| if outcome == what { as_what } else { outcome }).collect()
}

/// Attributes each return to the next message of the batch, and takes the returned message for confirmed.
///
/// lapin was measured to hand up to 35 of 1,000 returns to the confirm of another message. This always does, so that an
/// experiment needs no luck to see what trusting the confirm leads to.
fn shift_returns(outcomes: &[PublishOutcome]) -> Vec<PublishOutcome> {
    let mut shifted = outcomes.to_owned();
    for index in 1..outcomes.len() {
        if outcomes[index - 1] == UNROUTABLE && outcomes[index] == PublishOutcome::Confirmed {
            shifted.swap(index - 1, index);
        }
    }
    shifted
}
