//! Invalid settings end the start of billing with one line and exit code 78. The order service's tests check those that all share.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails with a message")]

use std::process::Command;

#[test]
fn invalid_settings_of_the_provider_are_refused_with_one_line() {
    let url = |url| ("BILLING_PROVIDER_URL", url);
    for (name, value) in [
        url(""),
        url("provider:8083"),
        url("https://provider:8083"),
        url("file:///etc/passwd"),
        url("http://"),
        ("BILLING_PROVIDER_DEADLINE", "7s"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_billing"))
            .env("BILLING_DATABASE_URL", "postgres://billing:s3cret@127.0.0.1:1/shop")
            .env("BILLING_AMQP_URL", "amqp://shop:s3cret@127.0.0.1:1/shop")
            .env("BILLING_PROVIDER_URL", "http://127.0.0.1:1")
            .env(name, value)
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{name}={value}: {stderr}");
        assert!(stderr.contains(name) && stderr.lines().count() == 1, "{name}={value}: {stderr}");
    }
}
