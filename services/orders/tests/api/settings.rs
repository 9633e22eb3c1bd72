//! A wrong setting ends the start with one line and exit code 78, and never shows a secret.

use std::{net::TcpListener, process::Stdio};

use crate::support::{NO_BROKER, command};

/// Runs the service with these settings, and returns its exit code and what it said on standard error.
fn run(settings: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = command().envs(settings.iter().copied()).stderr(Stdio::piped()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn wrong_settings_are_told_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let database = ("ORDERS_DATABASE_URL", "postgres://orders:s3cret@127.0.0.1:1/shop");
    let broker = ("ORDERS_AMQP_URL", NO_BROKER);
    let cases: Vec<(&str, Vec<(&str, &str)>)> = vec![
        ("ORDERS_DATABASE_URL", vec![broker]),
        ("ORDERS_AMQP_URL", vec![database]),
        ("ORDERS_DATABASE_URL", vec![("ORDERS_DATABASE_URL", "mysql://root:s3cret@db/shop"), broker]),
        ("ORDERS_DATABASE_URL", vec![("ORDERS_DATABASE_URL", "postgres://orders:s3cret@:x/shop"), broker]),
        ("ORDERS_AMQP_URL", vec![database, ("ORDERS_AMQP_URL", "http://shop:s3cret@localhost")]),
        ("ORDERS_AMQP_URL", vec![database, ("ORDERS_AMQP_URL", "amqp://shop:s3cret@localhost:5672/")]),
        ("ORDERS_HTTP_ADDRESS", vec![database, broker, ("ORDERS_HTTP_ADDRESS", "localhost")]),
        ("ORDERS_HTTP_ADDRESS", vec![database, broker, ("ORDERS_HTTP_ADDRESS", &taken)]),
        ("ORDERS_RELAY_BATCH", vec![database, broker, ("ORDERS_RELAY_BATCH", "0")]),
        ("ORDERS_RELAY_BATCH", vec![database, broker, ("ORDERS_RELAY_BATCH", "70000")]),
        ("ORDERS_RELAY_WORKERS", vec![database, broker, ("ORDERS_RELAY_WORKERS", "many")]),
        ("ORDERS_RELAY_POLL", vec![database, broker, ("ORDERS_RELAY_POLL", "1 fortnight")]),
        ("ORDERS_RELAY_POLL", vec![database, broker, ("ORDERS_RELAY_POLL", "0s")]),
        ("ORDERS_CONFIRM_DEADLINE", vec![database, broker, ("ORDERS_CONFIRM_DEADLINE", "60s")]),
        ("ORDERS_KEEP_PUBLISHED", vec![database, broker, ("ORDERS_KEEP_PUBLISHED", "0days")]),
        ("ORDERS_KEEP_PUBLISHED", vec![database, broker, ("ORDERS_KEEP_PUBLISHED", "for ever")]),
        ("ORDERS_RELAY_FULL_LOOK", vec![database, broker, ("ORDERS_RELAY_FULL_LOOK", "1day")]),
        ("ORDERS_LOG", vec![database, broker, ("ORDERS_LOG", "loud=very")]),
        ("ORDERS_LOG_FORMAT", vec![database, broker, ("ORDERS_LOG_FORMAT", "xml")]),
        ("ORDERS_ADMIN_TOKEN", vec![database, broker, ("ORDERS_ADMIN_ADDRESS", "127.0.0.1:0")]),
        ("ORDERS_ADMIN_TOKEN", vec![database, broker, ("ORDERS_ADMIN_TOKEN", "s3cret")]),
        ("ORDERS_ADMIN_ADDRESS", vec![database, broker, ("ORDERS_ADMIN_ADDRESS", "localhost")]),
        ("ORDERS_REPLAY_WITHIN", vec![database, broker, ("ORDERS_REPLAY_WITHIN", "14")]),
        ("ORDERS_RELAY_BACTH", vec![database, broker, ("ORDERS_RELAY_BACTH", "500")]),
    ];
    for (variable, settings) in cases {
        let (code, said) = run(&settings);
        assert_eq!(code, Some(78), "{settings:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{settings:?}: {said}");
        assert!(said.contains(variable), "{settings:?}: {said}");
        assert!(!said.contains("s3cret"), "{settings:?}: {said}");
    }
}

#[tokio::test]
async fn a_database_that_refuses_us_is_a_wrong_setting() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let good = database.url("orders");
    let (head, tail) = good.split_once('@').unwrap();
    let elsewhere = format!("{head}@{}/there_is_none", tail.split_once('/').unwrap().0);
    for url in [elsewhere, good.replacen("orders", "nobody", 1)] {
        let settings = [("ORDERS_DATABASE_URL", url.as_str()), ("ORDERS_AMQP_URL", NO_BROKER)];
        let settings = [settings.as_slice(), &[("ORDERS_HTTP_ADDRESS", "127.0.0.1:0")]].concat();
        let (code, said) = run(&settings);
        assert_eq!(code, Some(78), "{said}");
        assert!(said.contains("ORDERS_DATABASE_URL") && said.lines().count() == 1, "{said}");
    }
    Ok(())
}

#[tokio::test]
async fn a_schema_that_is_newer_than_the_binary_is_refused() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let pool = sqlx::PgPool::connect(&database.url("orders")).await?;
    outbox::MIGRATIONS.run(&pool).await?;
    sqlx::query(
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
         values (9999, 'from the future', true, '', 0)",
    )
    .execute(&pool)
    .await?;
    let url = database.url("orders");
    let settings = [("ORDERS_DATABASE_URL", url.as_str()), ("ORDERS_AMQP_URL", NO_BROKER)];
    let (code, said) = run(&[settings.as_slice(), &[("ORDERS_HTTP_ADDRESS", "127.0.0.1:0")]].concat());
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("schema"), "{said}");
    Ok(())
}
