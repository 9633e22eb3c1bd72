use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{DEADLINE, Provider, charge, kind};

#[tokio::test]
async fn error_after_the_charge_charges_once_with_a_key_and_twice_without() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    provider.put_faults(&json!([{ "fault": "error-after", "times": 1 }])).await?;
    let body = charge();
    let (status, repeated, problem) = provider.charge(Some("k"), &body).await?;
    assert_eq!((status, repeated, kind(&problem)), (500, false, "internal"));
    assert_eq!(provider.rows().await?, (1, 0, 1), "the customer is charged in spite of the error");
    let (status, repeated, _) = provider.charge(Some("k"), &body).await?;
    assert_eq!((status, repeated), (201, true));
    assert_eq!(provider.rows().await?, (1, 0, 1));

    // Without one, the retry charges again.
    provider.put_faults(&json!([{ "fault": "error-after", "times": 1 }])).await?;
    assert_eq!(provider.charge(None, &body).await?.0, 500);
    assert_eq!(provider.charge(None, &body).await?.0, 201);
    assert_eq!(provider.rows().await?, (3, 0, 1));
    Ok(())
}

#[tokio::test]
async fn retry_after_a_hanging_request_charges_once() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    provider.put_faults(&json!([{ "fault": "hang-after", "times": 1 }])).await?;
    let body = charge();
    let mut hanging = tokio::spawn(provider.request("/charges", Some("k"), &body).send());
    testbed::eventually("the customer to be charged", DEADLINE, async || {
        Ok((provider.rows().await? == (1, 0, 1)).then_some(()))
    })
    .await?;
    assert!(
        timeout(Duration::from_millis(300), &mut hanging).await.is_err(),
        "the request must get no answer"
    );
    hanging.abort();
    let (status, repeated, _) = provider.charge(Some("k"), &body).await?;
    assert_eq!((status, repeated), (201, true));
    assert_eq!(provider.rows().await?, (1, 0, 1));
    Ok(())
}

#[tokio::test]
async fn error_before_the_charge_writes_nothing_and_leaves_the_key_free() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    provider.put_faults(&json!([{ "fault": "error-before", "times": 1 }])).await?;
    let body = charge();
    assert_eq!(provider.charge(Some("k"), &body).await?.0, 500);
    assert_eq!(provider.rows().await?, (0, 0, 0));
    let (status, repeated, _) = provider.charge(Some("k"), &body).await?;
    assert_eq!((status, repeated), (201, false));
    Ok(())
}

#[tokio::test]
async fn charge_declined_on_demand_stays_declined_and_captured_one_stays_captured() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let (captured, declined) = (charge(), charge());
    let (_, _, first) = provider.charge(Some("captured"), &captured).await?;
    provider.put_faults(&json!([{ "fault": "decline", "times": 2 }])).await?;
    assert_eq!(provider.charge(Some("captured"), &captured).await?, (201, true, first.clone()));
    let (status, repeated, problem) = provider.charge(Some("declined"), &declined).await?;
    assert_eq!((status, repeated, kind(&problem)), (402, false, "declined"));
    // The fault is used up; the answer stays the same.
    assert_eq!(provider.get("/faults").await?, (200, json!([])));
    assert_eq!(provider.charge(Some("declined"), &declined).await?, (402, true, problem));
    assert_eq!(provider.rows().await?, (2, 0, 2));
    Ok(())
}

#[tokio::test]
async fn faults_apply_to_refunds_and_a_key_refunds_once() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let charge = provider.captured(1_000).await?;
    let list = json!([{ "fault": "decline" }, { "fault": "error-after", "times": 1 }]);
    provider.put_faults(&list).await?;
    assert_eq!(provider.refund(Some("k"), &charge, 600).await?.0, 500);
    let (status, repeated, _) = provider.refund(Some("k"), &charge, 600).await?;
    assert_eq!((status, repeated), (201, true));
    assert_eq!(provider.rows().await?, (1, 1, 1));
    Ok(())
}

#[tokio::test]
async fn faults_are_used_up_in_list_order_and_are_listed_and_counted() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let list = json!([{ "fault": "error-before", "times": 2 }, { "fault": "error-after", "times": 1 },
                      { "fault": "slow", "percent": 1, "times": 1 }]);
    let listed = |before: Option<u32>| {
        let before = before.map(|times| json!({ "fault": "error-before", "percent": 100, "times": times }));
        let others = [
            json!({ "fault": "error-after", "percent": 100, "times": 1 }),
            json!({ "fault": "slow", "percent": 1, "times": 1, "milliseconds": 2_000 }),
        ];
        Value::from_iter(before.into_iter().chain(others))
    };
    assert_eq!(provider.put_faults(&list).await?, (200, false, listed(Some(2))));
    // A request that is refused anyway uses up no fault.
    assert_eq!(provider.charge(None, &json!({})).await?.0, 422);
    assert_eq!(provider.get("/faults").await?, (200, listed(Some(2))));
    for left in [Some(1), None] {
        assert_eq!(provider.charge(None, &charge()).await?.0, 500);
        assert_eq!(provider.get("/faults").await?, (200, listed(left)));
    }
    assert_eq!(provider.rows().await?, (0, 0, 0));
    assert_eq!(provider.charge(None, &charge()).await?.0, 500);
    assert_eq!(provider.rows().await?, (1, 0, 0));
    assert_eq!(provider.put_faults(&json!([])).await?, (200, false, json!([])));
    assert_eq!(provider.charge(None, &charge()).await?.0, 201);

    let metrics =
        provider.client.get(format!("{}/metrics", provider.service.url())).send().await?.text().await?;
    for (fault, count) in [("error-before", 2), ("error-after", 1)] {
        let line = format!("provider_faults_struck_total{{fault=\"{fault}\"}} {count}");
        assert!(metrics.lines().any(|other| other == line), "{line} is not in\n{metrics}");
    }
    Ok(())
}
