//! Invalid settings end the start of inventory with one line and exit code 78.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails with a message")]

use std::process::Command;

#[test]
fn records_kept_for_less_than_an_outage_are_refused_with_one_line() {
    for keep in ["23h", "0days", "30", "1 fortnight", "3651days"] {
        let output = Command::new(env!("CARGO_BIN_EXE_inventory"))
            .env("INVENTORY_DATABASE_URL", "postgres://inventory:s3cret@127.0.0.1:1/shop")
            .env("INVENTORY_AMQP_URL", "amqp://shop:s3cret@127.0.0.1:1/shop")
            .env("INVENTORY_KEEP_PROCESSED", keep)
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{keep}: {stderr}");
        assert!(
            stderr.contains("INVENTORY_KEEP_PROCESSED") && stderr.lines().count() == 1,
            "{keep}: {stderr}"
        );
    }
}
