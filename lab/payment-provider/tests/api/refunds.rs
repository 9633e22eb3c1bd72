use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::support::{Answer, DEADLINE, Provider, kind};

/// Sends all requests while the charge's row is locked, and releases the lock when all of them wait for it: their snapshots
/// are older than any of their commits.
async fn refund_at_once<const N: usize>(
    provider: &Provider,
    charge: &str,
    requests: [(Option<&str>, i64); N],
) -> anyhow::Result<Vec<Answer>> {
    let mut session = PgConnection::connect(&provider.database.url("provider")).await?;
    let mut lock = session.begin().await?;
    sqlx::query("select from charges where id = $1::text::uuid for update")
        .bind(charge)
        .execute(&mut *lock)
        .await?;
    // Only a superuser sees what other sessions wait for.
    let mut admin = PgConnection::connect(&provider.database.admin_url()).await?;
    // A request that has waited too long for the lock is answered with 409 and sent again.
    let sending = requests.iter().map(|&(key, amount)| {
        testbed::eventually("a final answer", DEADLINE, async move || {
            let answer = provider.refund(key, charge, amount).await?;
            Ok((answer.0 != 409).then_some(answer))
        })
    });
    let release = async {
        testbed::eventually("all refunds to wait for the charge", DEADLINE, async || {
            let sql = "select count(*) from pg_stat_activity
                       where datname = current_database() and usename = 'provider' and wait_event_type = 'Lock'";
            let waiting: i64 = sqlx::query_scalar(sql).fetch_one(&mut admin).await?;
            Ok((usize::try_from(waiting)? == N).then_some(()))
        })
        .await?;
        anyhow::Ok(lock.rollback().await?)
    };
    let (answers, ()) = tokio::try_join!(futures_util::future::try_join_all(sending), release)?;
    Ok(answers)
}

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
async fn one_of_two_concurrent_refunds_that_exceed_the_charge_is_refused() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    for _ in 0..5 {
        let charge = provider.captured(1_000).await?;
        let answers = refund_at_once(&provider, &charge, [(None, 600), (None, 600)]).await?;
        let mut statuses: Vec<_> = answers.iter().map(|(status, ..)| *status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 422], "{answers:?}");
    }
    let sums: Vec<i64> = sqlx::query_scalar("select sum(amount)::bigint from refunds group by charge_id")
        .fetch_all(&provider.auditor)
        .await?;
    assert_eq!(sums, [600; 5]);
    Ok(())
}

#[tokio::test]
async fn concurrent_refunds_with_one_key_refund_once_even_if_nothing_is_left() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    // First the charge covers all five refunds, then only one: the others still get the first answer, not a refusal.
    for (round, amount) in [(1, 100), (2, 1_000)] {
        let charge = provider.captured(1_000).await?;
        let key = format!("k{round}");
        let answers = refund_at_once(&provider, &charge, [(Some(key.as_str()), amount); 5]).await?;
        let first: Vec<_> = answers.iter().filter(|(_, repeated, _)| !repeated).collect();
        assert_eq!(first.len(), 1, "{answers:?}");
        for (status, _, answer) in &answers {
            assert_eq!((*status, answer), (201, &first[0].2));
        }
        assert_eq!(provider.refund(Some(&key), &charge, amount).await?, (201, true, first[0].2.clone()));
        assert_eq!(provider.rows().await?, (round, round, round));
        let left: i64 =
            sqlx::query_scalar("select amount - refunded from charges order by created_at desc limit 1")
                .fetch_one(&provider.auditor)
                .await?;
        assert_eq!(left, 1_000 - amount, "the sum counts the refund once");
    }
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
