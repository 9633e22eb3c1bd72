//! Databases and virtual hosts of one's own on a server that is shared.

use anyhow::Result;
use sqlx::{Connection as _, PgConnection};
use testbed::{Passwords, bootstrap, database, servers, vhost};

#[tokio::test]
async fn each_database_is_isolated_and_has_the_four_logins() -> Result<()> {
    let (one, two) = tokio::try_join!(database(), database())?;
    assert_ne!(one.name(), two.name());
    let mut orders = PgConnection::connect(&one.url("orders")).await?;
    sqlx::raw_sql("create table mine (id int); insert into mine values (1)").execute(&mut orders).await?;

    let mut elsewhere = PgConnection::connect(&two.url("orders")).await?;
    assert!(sqlx::raw_sql("select * from mine").execute(&mut elsewhere).await.is_err());

    // Another service sees nothing of it; the auditor reads it and cannot write.
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
async fn a_dropped_database_is_gone() -> Result<()> {
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
async fn bootstrapping_again_changes_nothing_but_the_passwords() -> Result<()> {
    // On a server of its own: passwords belong to the whole server.
    let server = testbed::Postgres::private().await?;
    let url = server.admin_url("postgres");
    bootstrap(&url, &Passwords::all("first")).await?;
    bootstrap(&url, &Passwords::all("it's \"second\"")).await?;
    let urls = testbed::DatabaseUrls::new(&url, &Passwords::all("it's \"second\""))?;
    PgConnection::connect(&urls.orders).await?;
    PgConnection::connect(&urls.auditor).await?;
    let old = testbed::DatabaseUrls::new(&url, &Passwords::all("first"))?;
    assert!(PgConnection::connect(&old.orders).await.is_err());
    Ok(())
}

#[tokio::test]
async fn each_virtual_host_is_its_own_and_is_deleted_with_its_value() -> Result<()> {
    let (one, two) = tokio::try_join!(vhost(), vhost())?;
    assert_ne!(one.url(), two.url());
    let address = format!("{}/api/vhosts/{}", one.api_url(), one.name());
    assert!(reqwest::get(&address).await?.status().is_success());
    drop(one);
    assert_eq!(reqwest::get(&address).await?.status(), 404);
    Ok(())
}
