//! The relay's claim statements, with the parameters of a full scan of all lanes.

use anyhow::Result;

use crate::product_sql::ProductSql;

/// For each lane the `seq` after which the relay scans. With zeros it scans everything that is pending.
const FULL_SCAN: (&str, &str) = ("Int8Array", "array_fill(0::bigint, array[16])");

/// Returns the two statements of one claim of the relay, by name: lock lanes, and read the due events of the locked lanes.
///
/// # Errors
/// When the product has no such statement, or one with other parameters.
pub(crate) fn statements(product: &ProductSql) -> Result<[(&'static str, String); 2]> {
    let lock = product.find(&["from outbox_lanes", "for update skip locked"])?;
    let read = product.find(&["as locked (lane)"])?;
    // The relay's defaults: 8 of 16 lanes, and its batch of 500 divided by 8.
    let lanes = ("Int2Array", "array[0, 1, 2, 3, 4, 5, 6, 7]");
    Ok([
        ("lock lanes", lock.bind(&[("Int2", "0"), ("Int8", "8"), ("Int2", "16"), FULL_SCAN])?),
        ("read what is due", read.bind(&[lanes, ("Int8", "62"), FULL_SCAN])?),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_products_claim_statements_are_found_and_bound() {
        for (name, statement) in statements(&ProductSql::read().unwrap()).unwrap() {
            assert!(!statement.contains('$'), "{name}: a parameter is left: {statement}");
            assert!(statement.contains(FULL_SCAN.1), "{name}: {statement}");
        }
    }
}
