//! `docs/openapi.json` is what the code says. After a change,
//! `UPDATE_CONTRACTS=1 cargo test --release -p orders --test openapi` writes it anew.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::{fs, path::Path};

#[test]
fn the_committed_document_is_the_one_that_is_generated() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let generated = orders::documents::pretty(&orders::api::openapi()).unwrap();
    if std::env::var_os("UPDATE_CONTRACTS").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    assert!(
        fs::read_to_string(&path).is_ok_and(|committed| committed == generated),
        "docs/openapi.json is not what the code says: UPDATE_CONTRACTS=1 cargo test --release -p orders --test openapi"
    );
}
