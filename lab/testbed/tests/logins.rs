//! What each login may do: no more than its own, nor through what another one reads.

use anyhow::Result;
use sqlx::postgres::PgListener;
use sqlx::{Connection as _, PgConnection};
use testbed::{DatabaseUrls, Postgres, TestDatabase, bootstrap, database};

/// What each trap calls: it reads another service's table with the rights of the reader, and sends what it has read.
const SPY: &str = "
    create function orders.spy() returns boolean language plpgsql as $$
    begin
        perform pg_notify('spy', current_user || ' reads ' || secret) from billing.secrets;
        return true;
    end $$";

async fn execute(database: &TestDatabase, login: &str, statements: &'static str) -> Result<()> {
    let mut session = PgConnection::connect(&database.url(login)).await?;
    sqlx::raw_sql(statements).execute(&mut session).await?;
    Ok(session.close().await?)
}

/// Lets the auditor read what a service has prepared, and returns what the service has learned.
async fn leaked(trap: &'static str, query: &'static str) -> Result<Option<String>> {
    let database = database().await?;
    execute(&database, "billing", "create table secrets as select 'a secret' as secret").await?;
    execute(&database, "orders", SPY).await?;
    execute(&database, "orders", trap).await?;
    let mut learned = PgListener::connect(&database.url("orders")).await?;
    learned.listen("spy").await?;
    // Whether the query is refused does not matter.
    let _ = execute(&database, "auditor", query).await;
    // A channel delivers in the order of commits.
    execute(&database, "orders", "select pg_notify('spy', '')").await?;
    let first = learned.recv().await?.payload().to_owned();
    Ok(Some(first).filter(|payload| !payload.is_empty()))
}

#[tokio::test]
async fn view_in_the_place_of_a_table_learns_nothing_from_the_auditor() -> Result<()> {
    let trap = "create view orders.orders as select orders.spy() as id";
    assert_eq!(leaked(trap, "select id from orders.orders").await?, None);
    Ok(())
}

#[tokio::test]
async fn row_security_policy_learns_nothing_from_the_auditor() -> Result<()> {
    let trap = "create table orders.orders as select 1 as id;
                alter table orders.orders enable row level security;
                create policy spy on orders.orders using (orders.spy())";
    assert_eq!(leaked(trap, "select id from orders.orders").await?, None);
    Ok(())
}

#[tokio::test]
async fn service_cannot_read_another_ones_tables_and_the_auditor_cannot_write() -> Result<()> {
    let database = database().await?;
    execute(&database, "orders", "create table mine as select 1 as id").await?;
    assert!(execute(&database, "billing", "select * from orders.mine").await.is_err());
    execute(&database, "auditor", "select * from orders.mine").await?;
    assert!(execute(&database, "auditor", "insert into orders.mine values (2)").await.is_err());
    Ok(())
}

#[tokio::test]
async fn service_sees_the_age_of_the_oldest_snapshot_of_any_login_and_nothing_more() -> Result<()> {
    const AGE: &str = "select oldest_snapshot_seconds()";
    let database = database().await?;
    let mut orders = PgConnection::connect(&database.url("orders")).await?;
    let mut report = PgConnection::connect(&database.url("billing")).await?;
    sqlx::raw_sql("begin isolation level repeatable read; select pg_sleep(1)").execute(&mut report).await?;
    let held: f64 = sqlx::query_scalar(AGE).fetch_one(&mut orders).await?;
    assert!(held >= 1.0, "{held}");
    let hidden = "select count(*) from pg_stat_activity where usename = 'billing' and xact_start is not null";
    assert_eq!(sqlx::query_scalar::<_, i64>(hidden).fetch_one(&mut orders).await?, 0);
    sqlx::raw_sql("commit").execute(&mut report).await?;
    assert!(sqlx::query_scalar::<_, f64>(AGE).fetch_one(&mut orders).await? < held);
    Ok(())
}

#[tokio::test]
async fn login_leaves_connections_to_the_others_and_reaches_no_other_database() -> Result<()> {
    let database = database().await?;
    let mut admin = PgConnection::connect(&database.admin_url()).await?;
    let most = "select max(rolconnlimit) filter (where min > 0) < current_setting('max_connections')::int
                from pg_roles, lateral (select min(rolconnlimit) from pg_roles where rolname = any($1)) limits
                where rolname = any($1)";
    let logins = ["orders", "inventory", "billing", "provider", "auditor"];
    assert!(
        sqlx::query_scalar::<_, Option<bool>>(most).bind(logins).fetch_one(&mut admin).await? == Some(true)
    );
    Ok(())
}

#[tokio::test]
async fn second_bootstrap_replaces_the_passwords() -> Result<()> {
    // On a private server, because logins and passwords are shared by all databases of a server.
    let server = Postgres::private().await?;
    let url = server.admin_url("postgres");
    let old = DatabaseUrls::new(&url, |_| Ok("first".to_owned()))?;
    let urls = DatabaseUrls::new(&url, |_| Ok("it's \"second\"".to_owned()))?;
    bootstrap(&old).await?;
    bootstrap(&urls).await?;
    PgConnection::connect(&urls.of("orders")).await?;
    PgConnection::connect(&urls.of("auditor")).await?;
    assert!(PgConnection::connect(&old.of("orders")).await.is_err());
    Ok(())
}
