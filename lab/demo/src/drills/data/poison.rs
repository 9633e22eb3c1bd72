//! Messages that can never be applied.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::lab::BrokerApi;
use crate::own_system::OwnSystem;
use crate::set_aside::{GIVEN_UP, count_reasons, count_waiting, discard_all};

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "poison",
    group: Group::Data,
    teaches: "A message that can never be applied has to leave the queue, with its bytes and the reason, or it blocks it.",
    question: "One message in a hundred is not JSON, of an unknown type, about two things at once, or about an order that \
               does not exist. What happens to the ninety-nine?",
    claim: "Bad messages are set aside with their reason and bytes, and every good one is applied meanwhile.",
    outage: Duration::from_secs(15),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(poison(run)),
};

/// Each kind of bad message goes to each queue once.
const LEAST: usize = KINDS * QUEUES.len();
const KINDS: usize = 3;
const QUEUES: [&str; 3] = ["orders.events", "inventory.events", "billing.events"];

async fn poison(run: &DrillRun<'_>) -> Result<Report> {
    let api = BrokerApi::new(run.own()?.rabbitmq.api_url(), "shop")?;
    let load = run.steady().await;
    // An order makes five messages.
    let pause = Duration::from_secs_f64(100.0 / (5.0 * f64::from(run.rate)));
    run.phase("outage", "one message in a hundred can never be applied");
    let (end, mut sent) = (Instant::now() + run.outage, 0_usize);
    while Instant::now() < end || sent < LEAST {
        let id = Uuid::now_v7().to_string();
        let queue = QUEUES[sent % QUEUES.len()];
        let payload = match sent / QUEUES.len() % KINDS {
            0 => "not json".to_owned(),
            1 => event(&id, &id, "NoSuchType", &json!({})),
            _ => {
                let data = json!({ "reservationId": id, "orderId": Uuid::now_v7() });
                // Only the order service asks for the order. For the others the event is about two things at once.
                let subject = if queue == "orders.events" { id.clone() } else { Uuid::now_v7().to_string() };
                event(&id, &subject, "StockReserved", &data)
            }
        };
        api.publish(queue, &payload, &id).await?;
        sent += 1;
        sleep(pause).await;
    }
    let aside = run
        .felt(&format!("all {sent} bad messages are set aside"), async || {
            let waiting = count_waiting(run.system).await?;
            Ok((waiting == sent).then(|| format!("all {sent} bad messages are set aside")))
        })
        .await;
    let reasons = count_reasons(run.system).await?;
    let discarded = discard_all(run.system, "sent by the drill").await?.len();
    let listed: Vec<_> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    run.phase(
        "discard",
        format!("an operator has discarded {discarded} dead letters: {}", listed.join(", ")),
    );
    let summary = run.end(load).await?;
    let sent = Fact { what: format!("{sent} bad messages were sent"), observed: sent >= LEAST };
    let mut report = run.report(vec![sent, aside], summary, Refusals::BreakTheClaim).await?;
    for reason in GIVEN_UP {
        if let Some(count) = reasons.get(reason) {
            report.refute(format!(
                "{count} were set aside as \"{reason}\", and not for what is wrong with them"
            ));
        }
    }
    Ok(report)
}

fn event(id: &str, subject: &str, event_type: &str, data: &Value) -> String {
    json!({
        "specversion": "1.0", "id": id, "source": "/drill", "type": event_type, "subject": subject,
        "time": "2026-01-01T00:00:00Z", "datacontenttype": "application/json",
        "dataschema": format!("urn:shop:{event_type}:1"), "sequence": 1, "data": data,
    })
    .to_string()
}
