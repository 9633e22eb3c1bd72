//! An invalid setting ends the start with one line and exit code 78, and the line shows no secret.

use std::{net::TcpListener, process::Stdio};

use crate::support::{NO_BROKER, command};

/// Runs the service with these settings until it ends, and returns its exit code and its standard error.
fn run(settings: &[(&str, &str)]) -> (Option<i32>, String) {
    // The default port may be in use.
    let mut service = command();
    service.env("ORDERS_HTTP_ADDRESS", "127.0.0.1:0").envs(settings.iter().copied());
    let output = service.stderr(Stdio::piped()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn invalid_settings_end_the_start_with_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let database = ("ORDERS_DATABASE_URL", "postgres://orders:s3cret@127.0.0.1:1/shop");
    let broker = ("ORDERS_AMQP_URL", NO_BROKER);
    let cases: Vec<(&str, Vec<(&str, &str)>)> = vec![
        ("ORDERS_DATABASE_URL is missing: The database, with the service's own login", vec![broker]),
        ("ORDERS_AMQP_URL is missing: The broker", vec![database]),
        (
            "ORDERS_DATABASE_URL: it must begin with postgres://",
            vec![("ORDERS_DATABASE_URL", "mysql://root:s3cret@db/shop"), broker],
        ),
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
        ("ORDERS_RELAY_POLL", vec![database, broker, ("ORDERS_RELAY_POLL", "-1s")]),
        ("ORDERS_RELAY_POLL", vec![database, broker, ("ORDERS_RELAY_POLL", "2h")]),
        ("ORDERS_RELAY_POLL", vec![database, broker, ("ORDERS_RELAY_POLL", "5")]),
        ("ORDERS_CONFIRM_DEADLINE", vec![database, broker, ("ORDERS_CONFIRM_DEADLINE", "18s")]),
        ("ORDERS_KEEP_PUBLISHED", vec![database, broker, ("ORDERS_KEEP_PUBLISHED", "0days")]),
        ("ORDERS_KEEP_PUBLISHED", vec![database, broker, ("ORDERS_KEEP_PUBLISHED", "59s")]),
        ("ORDERS_KEEP_PUBLISHED", vec![database, broker, ("ORDERS_KEEP_PUBLISHED", "forever")]),
        // The inequalities of docs/retention.md, over the defaults: 7 days, 14 and 30.
        ("ORDERS_KEEP_PUBLISHED", vec![database, broker, ("ORDERS_KEEP_PUBLISHED", "15days")]),
        ("ORDERS_KEEP_PUBLISHED", vec![database, broker, ("ORDERS_ANSWER_WITHIN", "8days")]),
        ("ORDERS_KEEP_PROCESSED", vec![database, broker, ("ORDERS_KEEP_PROCESSED", "14days")]),
        ("ORDERS_KEEP_PROCESSED", vec![database, broker, ("ORDERS_REPLAY_WITHIN", "30days")]),
        ("ORDERS_KEEP_PROCESSED", vec![database, broker, ("ORDERS_KEEP_PROCESSED", "23h")]),
        ("ORDERS_KEEP_PROCESSED", vec![database, broker, ("ORDERS_KEEP_PROCESSED", "3651days")]),
        ("ORDERS_ANSWER_WITHIN", vec![database, broker, ("ORDERS_ANSWER_WITHIN", "999ms")]),
        ("ORDERS_RELAY_FULL_SCAN", vec![database, broker, ("ORDERS_RELAY_FULL_SCAN", "1day")]),
        ("ORDERS_LOG", vec![database, broker, ("ORDERS_LOG", "loud=very")]),
        ("ORDERS_LOG_FORMAT", vec![database, broker, ("ORDERS_LOG_FORMAT", "xml")]),
        ("ORDERS_ADMIN_TOKEN", vec![database, broker, ("ORDERS_ADMIN_ADDRESS", "127.0.0.1:0")]),
        ("ORDERS_ADMIN_TOKEN", vec![database, broker, ("ORDERS_ADMIN_TOKEN", "fifteen-s3crets")]),
        ("ORDERS_ADMIN_TOKEN", vec![database, broker, ("ORDERS_ADMIN_TOKEN", "a s3cret with blanks")]),
        (
            "ORDERS_ADMIN_TOKEN",
            vec![database, broker, ("ORDERS_ADMIN_TOKEN", "sixteen-letters-1,fifteen-s3crets")],
        ),
        (
            "ORDERS_AMQP_URL and ORDERS_AMQP_URL_FILE are set: only one may be",
            vec![database, broker, ("ORDERS_AMQP_URL_FILE", "/dev/null")],
        ),
        (
            "ORDERS_AMQP_URL_FILE: failed to read /no/such/file: No such file",
            vec![database, ("ORDERS_AMQP_URL_FILE", "/no/such/file")],
        ),
        ("ORDERS_AMQP_URL: ", vec![database, ("ORDERS_AMQP_URL_FILE", "/dev/null")]),
        // Only what is secret can be in a file.
        ("ORDERS_LOG_FILE is not a setting", vec![database, broker, ("ORDERS_LOG_FILE", "/dev/null")]),
        ("ORDERS_ADMIN_ADDRESS", vec![database, broker, ("ORDERS_ADMIN_ADDRESS", "localhost")]),
        ("ORDERS_REPLAY_WITHIN", vec![database, broker, ("ORDERS_REPLAY_WITHIN", "14")]),
        (
            "ORDERS_RELAY_BACTH is not a setting; is ORDERS_RELAY_BATCH meant?",
            vec![database, broker, ("ORDERS_RELAY_BACTH", "500")],
        ),
        // Enough for Rust's own threads, and not for a message with deeply nested headers.
        ("RUST_MIN_STACK is \"2097152\"", vec![database, broker, ("RUST_MIN_STACK", "2097152")]),
    ];
    for (expected, settings) in cases {
        let (code, stderr) = run(&settings);
        assert_eq!(code, Some(78), "{settings:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{settings:?}: {stderr}");
        assert!(stderr.contains(expected), "{settings:?}: {stderr}");
        assert!(!stderr.contains("s3cret"), "{settings:?}: {stderr}");
    }
}

/// `ps` shows the options of a process to every user of the machine.
#[test]
fn secret_on_the_command_line_is_refused() {
    for (option, variable) in [
        ("--database-url=postgres://orders:s3cret@127.0.0.1:1/shop", "ORDERS_DATABASE_URL"),
        ("--amqp-url=amqp://shop:s3cret@127.0.0.1:1/shop", "ORDERS_AMQP_URL"),
        ("--admin-token=a-s3cret-of-sixteen", "ORDERS_ADMIN_TOKEN"),
    ] {
        let mut service = command();
        service.envs([
            ("ORDERS_DATABASE_URL", "postgres://o:o@127.0.0.1:1/shop"),
            ("ORDERS_AMQP_URL", NO_BROKER),
        ]);
        let output = service.arg(option).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{stderr}");
        assert!(stderr.contains(&format!("{variable}: not as an option")), "{stderr}");
        assert!(!stderr.contains("s3cret"), "{stderr}");
    }
}

#[tokio::test]
async fn database_that_refuses_the_login_is_an_invalid_setting() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let good = database.url("orders");
    let (head, tail) = good.split_once('@').unwrap();
    let other_database = format!("{head}@{}/no_such_database", tail.split_once('/').unwrap().0);
    for url in [other_database, good.replacen("orders", "no_such_login", 1)] {
        let (code, stderr) = run(&[("ORDERS_DATABASE_URL", &url), ("ORDERS_AMQP_URL", NO_BROKER)]);
        assert_eq!(code, Some(78), "{stderr}");
        assert!(stderr.contains("ORDERS_DATABASE_URL") && stderr.lines().count() == 1, "{stderr}");
    }
    Ok(())
}
