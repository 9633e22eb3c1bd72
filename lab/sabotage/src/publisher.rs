//! Publishers that report what is not true yet.

use messaging::{BrokerUnavailable, Outgoing, PublishOutcome, Publisher, Refusal};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::Sabotage;

/// The product's publisher with one part left out, or none.
pub enum LabPublisher<P> {
    Whole(P),
    PublishLater(PublishLater<P>),
    IgnoreConfirms(IgnoreConfirms),
    ReportReturns(ReportReturns<P>),
    ShiftReturns(ShiftReturns<P>),
    NewIds(NewIds<P>),
}

impl<P: Publisher + 'static> LabPublisher<P> {
    pub fn new(inner: P, sabotage: Option<Sabotage>) -> Self {
        match sabotage {
            Some(Sabotage::MarkBeforeConfirm) => Self::PublishLater(PublishLater { inner, pending: vec![] }),
            Some(Sabotage::ConfirmsIgnored) => Self::IgnoreConfirms(IgnoreConfirms::new(inner)),
            Some(Sabotage::UnroutableIgnored) => {
                Self::ReportReturns(ReportReturns(inner, PublishOutcome::Confirmed))
            }
            Some(Sabotage::RefusalsBackOff) => {
                Self::ReportReturns(ReportReturns(inner, PublishOutcome::Refused(Refusal::Nacked)))
            }
            Some(Sabotage::ReturnTrustedToItsConfirm) => Self::ShiftReturns(ShiftReturns(inner)),
            Some(Sabotage::NewIdPerAttempt) => Self::NewIds(NewIds(inner)),
            _ => Self::Whole(inner),
        }
    }
}

impl<P: Publisher + 'static> Publisher for LabPublisher<P> {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        match self {
            Self::Whole(publisher) => publisher.ready().await,
            Self::PublishLater(publisher) => publisher.ready().await,
            Self::IgnoreConfirms(publisher) => publisher.ready().await,
            Self::ReportReturns(publisher) => publisher.ready().await,
            Self::ShiftReturns(publisher) => publisher.ready().await,
            Self::NewIds(publisher) => publisher.ready().await,
        }
    }

    async fn publish(&mut self, batch: &[&Outgoing]) -> Vec<PublishOutcome> {
        match self {
            Self::Whole(publisher) => publisher.publish(batch).await,
            Self::PublishLater(publisher) => publisher.publish(batch).await,
            Self::IgnoreConfirms(publisher) => publisher.publish(batch).await,
            Self::ReportReturns(publisher) => publisher.publish(batch).await,
            Self::ShiftReturns(publisher) => publisher.publish(batch).await,
            Self::NewIds(publisher) => publisher.publish(batch).await,
        }
    }
}

/// Reports a batch as confirmed, and publishes it at the next step: the relay marks and commits first.
pub struct PublishLater<P> {
    inner: P,
    pending: Vec<Outgoing>,
}

impl<P: Publisher> Publisher for PublishLater<P> {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        self.inner.ready().await?;
        if !self.pending.is_empty() {
            let pending = std::mem::take(&mut self.pending);
            self.inner.publish(&pending.iter().collect::<Vec<_>>()).await;
        }
        Ok(())
    }

    async fn publish(&mut self, batch: &[&Outgoing]) -> Vec<PublishOutcome> {
        self.pending.extend(batch.iter().copied().cloned());
        vec![PublishOutcome::Confirmed; batch.len()]
    }
}

/// Hands batches to a task that publishes them, and reports them as confirmed at once: no confirm is awaited.
pub struct IgnoreConfirms {
    batches: mpsc::UnboundedSender<Vec<Outgoing>>,
}

impl IgnoreConfirms {
    fn new(mut inner: impl Publisher + 'static) -> Self {
        let (batches, mut received) = mpsc::unbounded_channel::<Vec<Outgoing>>();
        tokio::spawn(async move {
            while let Some(batch) = received.recv().await {
                if inner.ready().await.is_ok() {
                    inner.publish(&batch.iter().collect::<Vec<_>>()).await;
                }
            }
        });
        Self { batches }
    }
}

impl Publisher for IgnoreConfirms {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        Ok(())
    }

    async fn publish(&mut self, batch: &[&Outgoing]) -> Vec<PublishOutcome> {
        let _ = self.batches.send(batch.iter().copied().cloned().collect());
        vec![PublishOutcome::Confirmed; batch.len()]
    }
}

/// Reports returned messages as something else: as confirmed, as a publisher without `mandatory` would, or as refused by a
/// full queue.
pub struct ReportReturns<P>(P, PublishOutcome);

impl<P: Publisher> Publisher for ReportReturns<P> {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        self.0.ready().await
    }

    async fn publish(&mut self, batch: &[&Outgoing]) -> Vec<PublishOutcome> {
        let outcomes = self.0.publish(batch).await;
        outcomes.into_iter().map(|outcome| if outcome == UNROUTABLE { self.1 } else { outcome }).collect()
    }
}

const UNROUTABLE: PublishOutcome = PublishOutcome::Refused(Refusal::Unroutable);

/// Attributes each return to the next message of the batch, and takes the returned message for confirmed.
///
/// lapin was measured to hand up to 35 of 1,000 returns to the confirm of another message. This always does, so that an
/// experiment needs no luck to see what trusting the confirm leads to.
pub struct ShiftReturns<P>(P);

impl<P: Publisher> Publisher for ShiftReturns<P> {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        self.0.ready().await
    }

    async fn publish(&mut self, batch: &[&Outgoing]) -> Vec<PublishOutcome> {
        let outcomes = self.0.publish(batch).await;
        let mut shifted = outcomes.clone();
        for index in 1..outcomes.len() {
            if outcomes[index - 1] == UNROUTABLE && outcomes[index] == PublishOutcome::Confirmed {
                shifted.swap(index - 1, index);
            }
        }
        shifted
    }
}

/// Gives every message a new id, in its properties and in its body.
pub struct NewIds<P>(P);

impl<P: Publisher> Publisher for NewIds<P> {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        self.0.ready().await
    }

    async fn publish(&mut self, batch: &[&Outgoing]) -> Vec<PublishOutcome> {
        let renamed: Vec<_> = batch.iter().copied().map(with_new_id).collect();
        self.0.publish(&renamed.iter().collect::<Vec<_>>()).await
    }
}

fn with_new_id(message: &Outgoing) -> Outgoing {
    let id = Uuid::now_v7();
    let body = String::from_utf8_lossy(&message.body).replace(&message.id.to_string(), &id.to_string());
    Outgoing { id, body: body.into_bytes(), ..message.clone() }
}
