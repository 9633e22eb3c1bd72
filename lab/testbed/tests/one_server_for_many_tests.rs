//! Each test gets its own database and virtual host on shared servers.

use anyhow::Result;
use sqlx::{Connection as _, PgConnection};
use testbed::{DatabaseUrls, Passwords, Postgres, bootstrap, database, servers, vhost};

#[tokio::test]
async fn test_databases_are_isolated_and_have_the_service_logins() -> Result<()> {
    let (one, two) = tokio::try_join!(database(), database())?;
    assert_ne!(one.name(), two.name());
    let mut orders = PgConnection::connect(&one.url("orders")).await?;
    sqlx::raw_sql("create table mine (id int); insert into mine values (1)").execute(&mut orders).await?;

    let mut elsewhere = PgConnection::connect(&two.url("orders")).await?;
    assert!(sqlx::raw_sql("select * from mine").execute(&mut elsewhere).await.is_err());

    // Another service cannot read the table. The auditor can read it, but not write to it.
    let mut billing = PgConnection::connect(&one.url("billing")).await?;
    assert!(sqlx::raw_sql("select * from orders.mine").execute(&mut billing).await.is_err());
    let mut auditor = PgConnection::connect(&one.url("auditor")).await?;
    let read: i32 = sqlx::query_scalar("select id from orders.mine").fetch_one(&mut auditor).await?;
    assert_eq!(read, 1);
    assert!(sqlx::raw_sql("insert into orders.mine values (2)").execute(&mut auditor).await.is_err());
    PgConnection::connect(&one.url("inventory")).await?;
    Ok(())
}

#[tokio::test]
async fn dropping_a_test_database_removes_it_from_the_server() -> Result<()> {
    let database = database().await?;
    let (name, server) = (database.name().to_owned(), servers().await?);
    drop(database);
    let mut admin = PgConnection::connect(&server.postgres_url).await?;
    let left: i64 = sqlx::query_scalar("select count(*) from pg_database where datname = $1")
        .bind(name)
        .fetch_one(&mut admin)
        .await?;
    assert_eq!(left, 0);
    Ok(())
}

#[tokio::test]
async fn second_bootstrap_replaces_the_passwords() -> Result<()> {
    // On a private server, because logins and passwords are shared by all databases of a server.
    let server = Postgres::private().await?;
    let url = server.admin_url("postgres");
    bootstrap(&url, &Passwords::all("first")).await?;
    bootstrap(&url, &Passwords::all("it's \"second\"")).await?;
    let urls = DatabaseUrls::new(&url, &Passwords::all("it's \"second\""))?;
    PgConnection::connect(&urls.orders).await?;
    PgConnection::connect(&urls.auditor).await?;
    let old = DatabaseUrls::new(&url, &Passwords::all("first"))?;
    assert!(PgConnection::connect(&old.orders).await.is_err());
    Ok(())
}

#[tokio::test]
async fn virtual_hosts_differ_and_are_deleted_when_dropped() -> Result<()> {
    let (one, two) = tokio::try_join!(vhost(), vhost())?;
    assert_ne!(one.url(), two.url());
    let address = format!("{}/api/vhosts/{}", one.api_url(), one.name());
    assert!(reqwest::get(&address).await?.status().is_success());
    drop(one);
    assert_eq!(reqwest::get(&address).await?.status(), 404);
    Ok(())
}
