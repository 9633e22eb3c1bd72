use serde_json::{Value, json};

use crate::support::{Provider, charge, kind};

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
