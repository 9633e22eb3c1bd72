//! A memory that is too short to be one ends the start.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and end")]

use std::process::Command;

#[test]
fn a_memory_shorter_than_an_outage_is_refused_in_one_line() {
    for remember in ["23h", "0days", "30", "1 fortnight", "3651days"] {
        let output = Command::new(env!("CARGO_BIN_EXE_billing"))
            .env("BILLING_DATABASE_URL", "postgres://billing:s3cret@127.0.0.1:1/shop")
            .env("BILLING_AMQP_URL", "amqp://shop:s3cret@127.0.0.1:1/shop")
            .env("BILLING_PROVIDER_URL", "http://127.0.0.1:1")
            .env("BILLING_REMEMBER", remember)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{remember}: {said}");
        assert!(said.contains("BILLING_REMEMBER") && said.lines().count() == 1, "{remember}: {said}");
    }
}

#[test]
fn a_provider_that_is_none_is_refused_in_one_line() {
    for url in ["", "provider:8083", "https://provider:8083", "file:///etc/passwd", "http://"] {
        let output = Command::new(env!("CARGO_BIN_EXE_billing"))
            .env("BILLING_DATABASE_URL", "postgres://billing:s3cret@127.0.0.1:1/shop")
            .env("BILLING_AMQP_URL", "amqp://shop:s3cret@127.0.0.1:1/shop")
            .env("BILLING_PROVIDER_URL", url)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{url}: {said}");
        assert!(said.contains("BILLING_PROVIDER_URL") && said.lines().count() == 1, "{url}: {said}");
    }
}
