use std::collections::HashSet;

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::support::{Provider, charge, kind};

#[tokio::test]
async fn repetition_under_the_same_key_gets_the_first_answer_and_charges_once() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let body = charge();
    let (status, repeated, first) = provider.charge(Some("k"), &body).await?;
    assert_eq!((status, repeated), (201, false));
    let fields: HashSet<_> = first.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, HashSet::from(["id", "status", "reference", "amount", "currency", "createdAt"]));
    assert_eq!(first["status"], "captured");
    for field in ["reference", "amount", "currency"] {
        assert_eq!(first[field], body[field]);
    }

    assert_eq!(provider.charge(Some("k"), &body).await?, (201, true, first.clone()));
    // The first answer, even after the charge was refunded.
    assert_eq!(provider.refund(None, first["id"].as_str().unwrap(), 2_500).await?.0, 201);
    assert_eq!(provider.charge(Some("k"), &body).await?, (201, true, first));
    assert_eq!(provider.rows().await?, (1, 1, 1));
    assert!(!provider.charge(Some("another"), &body).await?.1, "another key is another charge");
    assert_eq!(provider.rows().await?, (2, 1, 2));
    Ok(())
}

#[tokio::test]
async fn two_requests_without_a_key_charge_twice() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let body = charge();
    let (first, second) = (provider.charge(None, &body).await?, provider.charge(None, &body).await?);
    assert_eq!((first.0, first.1, second.0, second.1), (201, false, 201, false));
    assert_ne!(first.2["id"], second.2["id"]);
    provider.refund(None, second.2["id"].as_str().unwrap(), 700).await?;

    let (status, listed) =
        provider.get(&format!("/charges?reference={}", body["reference"].as_str().unwrap())).await?;
    let listed_entry = |charge: &Value, refunded: i64| {
        let mut entry = charge.clone();
        entry["customerId"] = body["customerId"].clone();
        entry["refunded"] = refunded.into();
        entry
    };
    assert_eq!(
        (status, listed),
        (200, json!({ "charges": [listed_entry(&first.2, 0), listed_entry(&second.2, 700)] }))
    );
    let unknown = provider.get(&format!("/charges?reference={}", Uuid::new_v4())).await?;
    assert_eq!(unknown, (200, json!({ "charges": [] })));
    Ok(())
}

#[tokio::test]
async fn reused_key_with_another_request_is_refused_and_writes_nothing() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let body = charge();
    let (_, _, first) = provider.charge(Some("k"), &body).await?;
    for (field, value) in [
        ("amount", json!(2_501)),
        ("reference", json!(Uuid::new_v4())),
        ("customerId", json!(Uuid::new_v4())),
    ] {
        let mut other = body.clone();
        other[field] = value;
        let (status, _, problem) = provider.charge(Some("k"), &other).await?;
        assert_eq!((status, kind(&problem)), (422, "key-reused"), "{field}");
    }
    let (status, _, problem) = provider.refund(Some("k"), first["id"].as_str().unwrap(), 1).await?;
    assert_eq!((status, kind(&problem)), (422, "key-reused"), "a refund is another request");
    let (status, _, problem) = provider.charge(Some("two words"), &body).await?;
    assert_eq!((status, kind(&problem)), (400, "bad-key"));
    assert_eq!(provider.rows().await?, (1, 0, 1));
    assert_eq!(provider.charge(Some("k"), &body).await?, (201, true, first));
    Ok(())
}

#[tokio::test]
async fn customer_without_money_is_declined_again_under_the_same_key() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let mut body = charge();
    let random = Uuid::new_v4().to_string();
    body["customerId"] = format!("{}{}", payment_provider::DECLINED_CUSTOMERS, &random[8..]).into();
    let (status, repeated, problem) = provider.charge(Some("k"), &body).await?;
    assert_eq!((status, repeated, kind(&problem)), (402, false, "declined"));
    assert_eq!(provider.charge(Some("k"), &body).await?, (402, true, problem));
    assert_eq!(provider.rows().await?, (1, 0, 1));

    // A declined charge is listed, and cannot be refunded.
    let (_, listed) =
        provider.get(&format!("/charges?reference={}", body["reference"].as_str().unwrap())).await?;
    let declined = &listed["charges"][0];
    assert_eq!(declined["status"], "declined");
    let (status, _, problem) = provider.refund(None, declined["id"].as_str().unwrap(), 1).await?;
    assert_eq!((status, kind(&problem)), (404, "no-such-charge"));
    Ok(())
}

#[tokio::test]
async fn key_of_an_unfinished_request_is_answered_with_409_and_is_free_after_its_rollback()
-> anyhow::Result<()> {
    let provider = Provider::start().await?;
    // To the database, this is a process that lost its connection in the middle of its statement.
    let mut other = PgConnection::connect(&provider.database.url("provider")).await?;
    let mut unfinished = other.begin().await?;
    sqlx::query(
        "with c as (insert into charges (id, reference, customer_id, amount, currency, status)
                    values (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1, 'EUR', 'captured') returning id)
         insert into known_keys (key, charge_id) select 'k', id from c",
    )
    .execute(&mut *unfinished)
    .await?;
    let body = charge();
    let (status, _, problem) = provider.charge(Some("k"), &body).await?;
    assert_eq!((status, kind(&problem)), (409, "contended"));
    unfinished.rollback().await?;
    let (status, repeated, _) = provider.charge(Some("k"), &body).await?;
    assert_eq!((status, repeated), (201, false));
    assert_eq!(provider.rows().await?, (1, 0, 1));
    Ok(())
}
