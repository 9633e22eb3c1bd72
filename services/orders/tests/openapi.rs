//! `docs/openapi.json` is generated from the code. After a change,
//! `UPDATE_CONTRACTS=1 cargo test -p orders --test openapi` writes it again.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue fails with a message")]

use std::{fs, path::Path};

#[test]
fn committed_openapi_document_matches_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let generated = orders::pretty(&orders::api::openapi()).unwrap();
    if std::env::var_os("UPDATE_CONTRACTS").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    assert!(
        fs::read_to_string(&path).is_ok_and(|committed| committed == generated),
        "docs/openapi.json does not match the code: UPDATE_CONTRACTS=1 cargo test -p orders --test openapi"
    );
}
