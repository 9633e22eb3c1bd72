use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::support::{Answer, Provider, SOON, kind};

/// Sends all requests while somebody else holds the charge, and lets go once all of them wait for it: their snapshots are
/// older than any of their commits.
async fn race<const N: usize>(
    provider: &Provider,
    charge: &str,
    requests: [(Option<&str>, i64); N],
) -> anyhow::Result<Vec<Answer>> {
    let mut holder = PgConnection::connect(&provider.database.url("provider")).await?;
    let mut holding = holder.begin().await?;
    sqlx::query("select from charges where id = $1::text::uuid for update")
        .bind(charge)
        .execute(&mut *holding)
        .await?;
    // Only a superuser is told what others wait for.
    let mut admin = PgConnection::connect(&provider.database.admin_url()).await?;
    let sending = requests.iter().map(|&(key, amount)| provider.refund(key, charge, amount));
    let letting_go = async {
        testbed::eventually("all refunds to wait for the charge", SOON, async || {
            let sql = "select count(*) from pg_stat_activity
                       where datname = current_database() and usename = 'provider' and wait_event_type = 'Lock'";
            let waiting: i64 = sqlx::query_scalar(sql).fetch_one(&mut admin).await?;
            Ok((usize::try_from(waiting)? == N).then_some(()))
        })
        .await?;
        anyhow::Ok(holding.rollback().await?)
    };
    let (answers, ()) = tokio::try_join!(futures_util::future::try_join_all(sending), letting_go)?;
    Ok(answers)
}

#[tokio::test]
async fn refunds_add_up_to_the_charge_and_not_to_a_cent_more() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let charge = provider.captured(1_000).await?;
    let (status, _, problem) = provider.refund(None, &charge, 1_001).await?;
    assert_eq!((status, kind(&problem)), (422, "refund-exceeds-charge"));
    let (status, again, refund) = provider.refund(None, &charge, 600).await?;
    assert_eq!((status, again, refund["status"].as_str().unwrap()), (201, false, "refunded"));
    assert_eq!((refund["charge"].as_str().unwrap(), &refund["amount"]), (charge.as_str(), &600.into()));
    for too_much in [401, i64::MAX] {
        let (status, _, problem) = provider.refund(Some("k"), &charge, too_much).await?;
        assert_eq!((status, kind(&problem)), (422, "refund-exceeds-charge"));
    }
    let (status, again, _) = provider.refund(Some("k"), &charge, 400).await?;
    assert_eq!((status, again), (201, false), "a refund that was refused does not use up its key");
    assert_eq!(provider.refund(None, &charge, 1).await?.0, 422);
    assert_eq!(provider.rows().await?, (1, 2, 1));

    let (status, _, problem) = provider.refund(None, &Uuid::new_v4().to_string(), 1).await?;
    assert_eq!((status, kind(&problem)), (404, "no-such-charge"));
    Ok(())
}

#[tokio::test]
async fn of_two_refunds_at_once_that_are_too_much_together_one_is_refused() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    for _ in 0..5 {
        let charge = provider.captured(1_000).await?;
        let answers = race(&provider, &charge, [(None, 600), (None, 600)]).await?;
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
async fn a_refund_is_made_once_for_each_key_even_when_it_leaves_nothing_for_a_second() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    // With room for all of them, and with room for one: the others must not be told that it was too much.
    for (round, amount) in [(1, 100), (2, 1_000)] {
        let charge = provider.captured(1_000).await?;
        let key = format!("k{round}");
        let answers = race(&provider, &charge, [(Some(key.as_str()), amount); 5]).await?;
        let first: Vec<_> = answers.iter().filter(|(_, again, _)| !again).collect();
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
        assert_eq!(left, 1_000 - amount, "the sum counts each refund once");
    }
    Ok(())
}

#[tokio::test]
async fn a_key_that_comes_with_another_refund_is_refused() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let (one, two) = (provider.captured(1_000).await?, provider.captured(1_000).await?);
    let (_, _, first) = provider.refund(Some("k"), &one, 100).await?;
    for (charge, amount) in [(&one, 101), (&two, 100)] {
        let (status, _, problem) = provider.refund(Some("k"), charge, amount).await?;
        assert_eq!((status, kind(&problem)), (422, "key-reused"));
    }
    let (status, _, problem) = provider.charge(Some("k"), &crate::support::charge()).await?;
    assert_eq!((status, kind(&problem)), (422, "key-reused"), "a charge is another request too");
    assert_eq!(provider.rows().await?, (2, 1, 1));
    assert_eq!(provider.refund(Some("k"), &one, 100).await?, (201, true, first));
    Ok(())
}
