use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{Provider, SOON, charge, kind};

#[tokio::test]
async fn an_error_after_the_charge_charges_once_under_one_key() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    provider.put_faults(&json!([{ "fault": "error-after", "times": 1 }])).await?;
    let body = charge();
    let (status, again, problem) = provider.charge(Some("k"), &body).await?;
    assert_eq!((status, again, kind(&problem)), (500, false, "internal"));
    assert_eq!(provider.rows().await?, (1, 0, 1), "the money is taken all the same");
    let (status, again, _) = provider.charge(Some("k"), &body).await?;
    assert_eq!((status, again), (201, true));
    assert_eq!(provider.rows().await?, (1, 0, 1));
    Ok(())
}

#[tokio::test]
async fn an_error_after_the_charge_charges_twice_without_a_key() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    provider.put_faults(&json!([{ "fault": "error-after", "times": 1 }])).await?;
    let body = charge();
    assert_eq!(provider.charge(None, &body).await?.0, 500);
    assert_eq!(provider.charge(None, &body).await?.0, 201);
    assert_eq!(provider.rows().await?, (2, 0, 0));
    Ok(())
}

#[tokio::test]
async fn a_caller_that_gives_up_on_a_provider_that_hangs_asks_again_and_is_charged_once() -> anyhow::Result<()>
{
    let provider = Provider::start().await?;
    provider.put_faults(&json!([{ "fault": "hang-after", "times": 1 }])).await?;
    let body = charge();
    let mut hanging = tokio::spawn(provider.request("/charges", Some("k"), &body).send());
    testbed::eventually("the money to be taken", SOON, async || {
        Ok((provider.rows().await? == (1, 0, 1)).then_some(()))
    })
    .await?;
    assert!(timeout(Duration::from_millis(300), &mut hanging).await.is_err(), "it is not answered");
    hanging.abort();
    let (status, again, _) = provider.charge(Some("k"), &body).await?;
    assert_eq!((status, again), (201, true));
    assert_eq!(provider.rows().await?, (1, 0, 1));
    Ok(())
}

#[tokio::test]
async fn an_error_before_the_charge_takes_nothing_and_leaves_the_key_free() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    provider.put_faults(&json!([{ "fault": "error-before", "times": 1 }])).await?;
    let body = charge();
    assert_eq!(provider.charge(Some("k"), &body).await?.0, 500);
    assert_eq!(provider.rows().await?, (0, 0, 0));
    let (status, again, _) = provider.charge(Some("k"), &body).await?;
    assert_eq!((status, again), (201, false));
    Ok(())
}

#[tokio::test]
async fn a_charge_that_is_declined_on_demand_stays_declined_and_one_that_was_captured_stays_captured()
-> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let (captured, declined) = (charge(), charge());
    let (_, _, first) = provider.charge(Some("captured"), &captured).await?;
    provider.put_faults(&json!([{ "fault": "decline", "times": 2 }])).await?;
    assert_eq!(provider.charge(Some("captured"), &captured).await?, (201, true, first.clone()));
    let (status, again, problem) = provider.charge(Some("declined"), &declined).await?;
    assert_eq!((status, again, kind(&problem)), (402, false, "declined"));
    // The fault is used up, and the answer stays.
    assert_eq!(provider.get("/faults").await?, (200, json!([])));
    assert_eq!(provider.charge(Some("declined"), &declined).await?, (402, true, problem));
    assert_eq!(provider.rows().await?, (2, 0, 2));
    Ok(())
}

#[tokio::test]
async fn refunds_are_struck_too_and_made_once_under_one_key() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let charge = provider.captured(1_000).await?;
    let list = json!([{ "fault": "decline" }, { "fault": "error-after", "times": 1 }]);
    provider.put_faults(&list).await?;
    assert_eq!(provider.refund(Some("k"), &charge, 600).await?.0, 500);
    let (status, again, _) = provider.refund(Some("k"), &charge, 600).await?;
    assert_eq!((status, again), (201, true));
    assert_eq!(provider.rows().await?, (1, 1, 1));
    Ok(())
}

#[tokio::test]
async fn a_slow_charge_is_a_charge_after_its_time() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    provider.put_faults(&json!([{ "fault": "slow", "times": 1, "milliseconds": 400 }])).await?;
    let began = Instant::now();
    assert_eq!(provider.charge(None, &charge()).await?.0, 201);
    assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn faults_run_out_in_their_order_and_are_shown_and_counted() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let list = json!([{ "fault": "error-before", "times": 2 }, { "fault": "error-after", "times": 1 },
                      { "fault": "slow", "percent": 1, "times": 1 }]);
    let shown = |before: Option<u32>| {
        let before = before.map(|times| json!({ "fault": "error-before", "percent": 100, "times": times }));
        let others = [
            json!({ "fault": "error-after", "percent": 100, "times": 1 }),
            json!({ "fault": "slow", "percent": 1, "times": 1, "milliseconds": 2_000 }),
        ];
        Value::from_iter(before.into_iter().chain(others))
    };
    assert_eq!(provider.put_faults(&list).await?, (200, false, shown(Some(2))));
    // A request that is refused anyhow uses nothing up.
    assert_eq!(provider.charge(None, &json!({})).await?.0, 422);
    assert_eq!(provider.get("/faults").await?, (200, shown(Some(2))));
    for left in [Some(1), None] {
        assert_eq!(provider.charge(None, &charge()).await?.0, 500);
        assert_eq!(provider.get("/faults").await?, (200, shown(left)));
    }
    assert_eq!(provider.rows().await?, (0, 0, 0));
    assert_eq!(provider.charge(None, &charge()).await?.0, 500);
    assert_eq!(provider.rows().await?, (1, 0, 0));
    assert_eq!(provider.put_faults(&json!([])).await?, (200, false, json!([])));
    assert_eq!(provider.charge(None, &charge()).await?.0, 201);

    let metrics = provider.client.get(format!("{}/metrics", provider.url)).send().await?.text().await?;
    for (fault, count) in [("error-before", 2), ("error-after", 1)] {
        let line = format!("provider_faults_struck_total{{fault=\"{fault}\"}} {count}");
        assert!(metrics.lines().any(|other| other == line), "{line} is not in\n{metrics}");
    }
    Ok(())
}

#[tokio::test]
async fn a_wrong_list_of_faults_is_a_problem_and_the_last_one_stays() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let good = json!([{ "fault": "decline", "percent": 50 }]);
    provider.put_faults(&good).await?;
    for wrong in [
        json!({ "fault": "slow" }),
        json!([{}]),
        json!([{ "fault": "explode" }]),
        json!([{ "fault": "slow", "colour": "red" }]),
        json!([{ "fault": "slow", "percent": 0 }]),
        json!([{ "fault": "slow", "percent": 101 }]),
        json!([{ "fault": "slow", "percent": 300 }]),
        json!([{ "fault": "slow", "times": 0 }]),
        json!([{ "fault": "slow", "times": -1 }]),
        json!([{ "fault": "slow", "milliseconds": 0 }]),
        json!([{ "fault": "slow", "milliseconds": 60_001 }]),
        json!([{ "fault": "decline" }, { "fault": "hang-after", "milliseconds": 10 }]),
    ] {
        let (status, _, problem) = provider.put_faults(&wrong).await?;
        assert_eq!((status, kind(&problem)), (422, "invalid-request"), "{wrong}");
        assert_eq!(provider.get("/faults").await?, (200, good.clone()), "{wrong}");
    }
    Ok(())
}

#[tokio::test]
async fn when_all_places_are_taken_the_next_is_turned_away_and_faults_can_still_be_ended()
-> anyhow::Result<()> {
    let provider = Provider::start().await?;
    provider.put_faults(&json!([{ "fault": "hang-after" }])).await?;
    let hanging: Vec<_> =
        (0..256).map(|_| tokio::spawn(provider.request("/charges", None, &charge()).send())).collect();
    testbed::eventually("256 charges to hang", SOON, async || {
        Ok((provider.rows().await? == (256, 0, 0)).then_some(()))
    })
    .await?;
    let refused = provider.request("/charges", None, &charge()).send().await?;
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (503, &"1".parse()?));
    assert_eq!(kind(&refused.json().await?), "unavailable");
    assert_eq!(provider.put_faults(&json!([])).await?.0, 200);

    // Those that were struck go on hanging, until their callers give up.
    hanging.iter().for_each(tokio::task::JoinHandle::abort);
    testbed::eventually("a place to be free", SOON, async || {
        Ok((provider.charge(None, &charge()).await?.0 == 201).then_some(()))
    })
    .await
}
