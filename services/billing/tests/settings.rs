//! Invalid settings end the start of billing with one line and exit code 78.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails with a message")]

use std::process::Command;

#[test]
fn records_kept_for_less_than_an_outage_are_refused_with_one_line() {
    for keep in ["23h", "0days", "30", "1 fortnight", "3651days"] {
        let output = Command::new(env!("CARGO_BIN_EXE_billing"))
            .env("BILLING_DATABASE_URL", "postgres://billing:s3cret@127.0.0.1:1/shop")
            .env("BILLING_AMQP_URL", "amqp://shop:s3cret@127.0.0.1:1/shop")
            .env("BILLING_PROVIDER_URL", "http://127.0.0.1:1")
            .env("BILLING_KEEP_PROCESSED", keep)
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{keep}: {stderr}");
        assert!(stderr.contains("BILLING_KEEP_PROCESSED") && stderr.lines().count() == 1, "{keep}: {stderr}");
    }
}

#[test]
fn invalid_provider_url_is_refused_with_one_line() {
    for url in ["", "provider:8083", "https://provider:8083", "file:///etc/passwd", "http://"] {
        let output = Command::new(env!("CARGO_BIN_EXE_billing"))
            .env("BILLING_DATABASE_URL", "postgres://billing:s3cret@127.0.0.1:1/shop")
            .env("BILLING_AMQP_URL", "amqp://shop:s3cret@127.0.0.1:1/shop")
            .env("BILLING_PROVIDER_URL", url)
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{url}: {stderr}");
        assert!(stderr.contains("BILLING_PROVIDER_URL") && stderr.lines().count() == 1, "{url}: {stderr}");
    }
}
