//! What an operator does with dead letters and with what was lost, for drills and the soak.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::running_system::RunningSystem;

/// Bounds the loops over pages, in case a service never answers with the last one.
const MAX_PAGES: usize = 1_000;
/// How many events or dead letters one request may name.
const MAX_IDS: usize = 100;

const SERVICES: [&str; 3] = ["orders", "inventory", "billing"];

/// The reasons that say only that a message was tried until a limit was reached.
pub(crate) const GIVEN_UP: [&str; 4] = ["unexpected", "attempt-limit", "delivery-limit", "rejected"];

/// Makes inventory and billing fail for good over the same one in a hundred orders.
pub(crate) async fn add_defect(system: &RunningSystem) -> Result<()> {
    for (service, table) in DEFECTS {
        let defect = format!(
            "create or replace function refuse() returns trigger language plpgsql as $$
             begin
                 if abs(hashtext(new.order_id::text)) % 100 = 0 then
                     raise exception 'a defect' using errcode = 'check_violation';
                 end if;
                 return new;
             end $$;
             create trigger defect before insert on {table} for each row execute function refuse()"
        );
        system.execute_as(service, &defect).await?;
    }
    Ok(())
}

/// Repairs it.
pub(crate) async fn repair_defect(system: &RunningSystem) -> Result<()> {
    for (service, table) in DEFECTS {
        system.execute_as(service, &format!("drop trigger defect on {table}")).await?;
    }
    Ok(())
}

const DEFECTS: [(&str, &str); 2] = [("inventory", "reservations"), ("billing", "payments")];

/// Replays all dead letters. Returns how many were applied.
pub(crate) async fn replay_all(system: &RunningSystem) -> Result<usize> {
    let mut applied = 0;
    for service in SERVICES {
        let mut after = json!(0);
        for _ in 0..MAX_PAGES {
            let body = json!({ "all": true, "after": after });
            let page = system.admin(service, "/admin/dead-letters/replay", Some(&body)).await?;
            let items = page["items"].as_array().context("a page has no items")?;
            applied += items.iter().filter(|item| item["outcome"] == "applied").count();
            after = page["next"].clone();
            if after.is_null() {
                break;
            }
        }
    }
    Ok(applied)
}

/// Publishes events of the order service again whose ids this query returns as one list. Returns how many.
pub(crate) async fn publish_again(system: &RunningSystem, ids: &str) -> Result<usize> {
    let ids: Vec<Uuid> = serde_json::from_str(&system.read(ids).await?)?;
    let mut again = 0;
    for ids in ids.chunks(MAX_IDS) {
        let body = json!({ "ids": ids });
        let answer = system.admin("orders", "/admin/published/replay", Some(&body)).await?;
        let items = answer["items"].as_array().context("a page has no items")?;
        again += items.iter().filter(|item| item["outcome"] == "pending").count();
    }
    Ok(again)
}

/// The dead letters that wait for an operator: the service, and the ids there.
pub(crate) async fn waiting(system: &RunningSystem) -> Result<Vec<(&'static str, Vec<i64>)>> {
    let mut letters = vec![];
    for service in SERVICES {
        let query = format!(
            "select coalesce(json_agg(id), '[]')::text from {service}.dead_letters where resolved_at is null"
        );
        letters.push((service, serde_json::from_str(&system.read(&query).await?)?));
    }
    Ok(letters)
}

/// How many dead letters wait for an operator.
pub(crate) async fn count_waiting(system: &RunningSystem) -> Result<usize> {
    Ok(waiting(system).await?.iter().map(|(_, ids)| ids.len()).sum())
}

/// How many dead letters wait for an operator, by their reason.
pub(crate) async fn count_reasons(system: &RunningSystem) -> Result<BTreeMap<String, u64>> {
    let letters = SERVICES
        .map(|service| format!("select reason from {service}.dead_letters where resolved_at is null"))
        .join(" union all ");
    let query = format!(
        "select coalesce(json_object_agg(reason, letters), '{{}}')::text
         from (select reason, count(*) as letters from ({letters}) waiting group by reason) counted"
    );
    Ok(serde_json::from_str(&system.read(&query).await?)?)
}

/// Discards all dead letters that wait. Returns their message ids.
pub(crate) async fn discard_all(system: &RunningSystem, note: &str) -> Result<Vec<String>> {
    let mut message_ids = vec![];
    for (service, ids) in waiting(system).await? {
        for ids in ids.chunks(MAX_IDS) {
            let query = format!(
                "select json_agg(coalesce(message_id, ''))::text from {service}.dead_letters
                 where id = any(array{ids:?}::bigint[])"
            );
            message_ids.append(&mut serde_json::from_str(&system.read(&query).await?)?);
            let body: Value = json!({ "ids": ids, "note": note });
            let answer = system.admin(service, "/admin/dead-letters/discard", Some(&body)).await?;
            ensure!(answer["untouched"] == json!([]), "a dead letter was not discarded: {answer}");
        }
    }
    Ok(message_ids)
}
