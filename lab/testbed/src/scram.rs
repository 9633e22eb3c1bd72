//! The verifier of a password, which PostgreSQL stores and compares with. The password itself would be in the server's log with
//! `log_statement = ddl`, and in `pg_stat_statements`, which the auditor may read.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// PostgreSQL's default (`scram_iterations`).
const ITERATIONS: u32 = 4096;

/// `SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey`, as `\password` in psql sends it (RFC 5803). Without SASLprep, which
/// changes no ASCII password.
pub(crate) fn verifier(password: &str) -> String {
    verifier_with(password, Uuid::new_v4().as_bytes())
}

fn verifier_with(password: &str, salt: &[u8]) -> String {
    // `Hi` of RFC 5802: PBKDF2 with one block.
    let mut block = hmac(password.as_bytes(), &[salt, &1_u32.to_be_bytes()].concat());
    let mut salted = block;
    for _ in 1..ITERATIONS {
        block = hmac(password.as_bytes(), &block);
        salted.iter_mut().zip(block).for_each(|(salted, byte)| *salted ^= byte);
    }
    let stored_key: [u8; 32] = Sha256::digest(hmac(&salted, b"Client Key")).into();
    let [salt, stored_key, server_key] =
        [salt, &stored_key, &hmac(&salted, b"Server Key")].map(|bytes| BASE64_STANDARD.encode(bytes));
    format!("SCRAM-SHA-256${ITERATIONS}:{salt}${stored_key}:{server_key}")
}

fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    // A key of any length is accepted.
    let mac = Hmac::<Sha256>::new_from_slice(key);
    let mut mac = mac.unwrap_or_else(|error| unreachable!("HMAC refuses a key: {error}"));
    mac.update(message);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7677, with the keys that follow from it.
    #[test]
    fn verifier_is_computed_as_the_standard_says() {
        let salt = BASE64_STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        assert_eq!(
            verifier_with("pencil", &salt),
            "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==\
             $WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
        );
        assert_ne!(verifier("pencil"), verifier("pencil"), "the salt is random");
    }
}
