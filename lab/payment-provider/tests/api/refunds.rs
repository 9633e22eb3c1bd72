use uuid::Uuid;

use crate::support::{Provider, kind};

#[tokio::test]
async fn refunds_never_exceed_the_charge() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let charge = provider.captured(1_000).await?;
    let (status, _, problem) = provider.refund(None, &charge, 1_001).await?;
    assert_eq!((status, kind(&problem)), (422, "refund-exceeds-charge"));
    let (status, repeated, refund) = provider.refund(None, &charge, 600).await?;
    assert_eq!((status, repeated, refund["status"].as_str().unwrap()), (201, false, "refunded"));
    assert_eq!((refund["charge"].as_str().unwrap(), &refund["amount"]), (charge.as_str(), &600.into()));
    for too_much in [401, i64::MAX] {
        let (status, _, problem) = provider.refund(Some("k"), &charge, too_much).await?;
        assert_eq!((status, kind(&problem)), (422, "refund-exceeds-charge"));
    }
    let (status, repeated, _) = provider.refund(Some("k"), &charge, 400).await?;
    assert_eq!((status, repeated), (201, false), "a refused refund does not use up its key");
    assert_eq!(provider.refund(None, &charge, 1).await?.0, 422);
    assert_eq!(provider.rows().await?, (1, 2, 1));

    let (status, _, problem) = provider.refund(None, &Uuid::new_v4().to_string(), 1).await?;
    assert_eq!((status, kind(&problem)), (404, "no-such-charge"));
    Ok(())
}

#[tokio::test]
async fn reused_key_with_another_refund_is_refused() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let (one, two) = (provider.captured(1_000).await?, provider.captured(1_000).await?);
    let (_, _, first) = provider.refund(Some("k"), &one, 100).await?;
    for (charge, amount) in [(&one, 101), (&two, 100)] {
        let (status, _, problem) = provider.refund(Some("k"), charge, amount).await?;
        assert_eq!((status, kind(&problem)), (422, "key-reused"));
    }
    let (status, _, problem) = provider.charge(Some("k"), &crate::support::charge()).await?;
    assert_eq!((status, kind(&problem)), (422, "key-reused"), "a charge is another request");
    assert_eq!(provider.rows().await?, (2, 1, 1));
    assert_eq!(provider.refund(Some("k"), &one, 100).await?, (201, true, first));
    Ok(())
}
