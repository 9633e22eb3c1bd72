//! The order service's SQL as the benchmarks run it: its order statement in pgbench, and rows for its outbox.

use anyhow::{Context as _, Result, ensure};

/// Makes a UUIDv7, as the service does. A random id in its place would scatter the inserts over the whole index, and
/// pgbench would measure that instead. It costs the server a few microseconds that binding an id would not.
const UUID_V7: &str = "(lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '7' \
     || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid";

/// The order service's one statement as two scripts for pgbench, which use the variables of [`variables`].
pub(crate) struct OrderScripts {
    /// The statement as the service runs it.
    pub(crate) with_event: String,
    /// The same without the part that writes the outbox row.
    pub(crate) without_event: String,
}

impl OrderScripts {
    /// Takes the statement from the checkout's `.sqlx` directory, which CI compares with the code: a benchmark cannot measure
    /// an outdated copy.
    ///
    /// # Errors
    /// When there is no such statement, or one with other parameters or without a separable outbox row.
    pub(crate) fn read() -> Result<Self> {
        let root = testbed::workspace_root()
            .context("failed to find the product's statements: not in a checkout")?;
        let mut found = vec![];
        for entry in std::fs::read_dir(root.join(".sqlx")).context("failed to list .sqlx")? {
            let path = entry?.path();
            let file: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)
                .with_context(|| format!("failed to read {}", path.display()))?;
            let text = file["query"].as_str().unwrap_or_default();
            if ["idempotency_keys", "order_lines", "outbox"]
                .iter()
                .all(|table| text.contains(&format!("insert into {table}")))
            {
                found.push(file);
            }
        }
        let [file] = &found[..] else {
            anyhow::bail!("{} statements in .sqlx place an order, not one", found.len())
        };
        let expected: Vec<_> = PARAMETERS.iter().map(|(kind, _)| *kind).collect();
        let recorded = &file["describe"]["parameters"]["Left"];
        ensure!(
            *recorded == serde_json::json!(expected),
            "the order's statement has the parameters {recorded}"
        );
        let with_event = file["query"].as_str().unwrap_or_default().to_owned();
        let without_event = without_outbox(&with_event).context("failed to leave out the outbox row")?;
        Ok(Self { with_event: script(with_event), without_event: script(without_event) })
    }
}

/// Cuts `, event as (insert into outbox …)` out, which is the last part of the statement's `with`.
fn without_outbox(text: &str) -> Option<String> {
    let (before, after) = text.split_once("insert into outbox")?;
    let start = before.rfind("),")?;
    let end = after.rfind(")\n")?;
    Some(format!("{}{}", &before[..start], &after[end..]))
}

/// Replaces each `$n` by its value. The last first: `$1` is the beginning of `$16`.
fn script(text: String) -> String {
    let bound = PARAMETERS.iter().enumerate().rev();
    let bound = bound.fold(text, |text, (index, (_, value))| text.replace(&format!("${}", index + 1), value));
    format!("\\set lane random(0, 15)\n{bound};")
}

/// What each parameter of the order statement is bound to, in order, after its type.
const PARAMETERS: [(&str, &str); 16] = [
    ("Uuid", UUID_V7),
    ("Uuid", "gen_random_uuid()"),
    ("Int8", ":total"),
    ("Text", ":currency"),
    ("TextArray", ":skus"),
    ("Int4Array", ":quantities"),
    ("Int8Array", ":unit_prices"),
    ("Uuid", UUID_V7),
    ("Text", ":aggregate_type"),
    ("Int4", ":aggregate_version"),
    ("Text", ":event_type"),
    ("Int2", ":schema_version"),
    ("Text", ":payload"),
    ("Jsonb", ":headers"),
    ("Int2", ":lane"),
    // No idempotency key, as in the orders of `POST /orders`. pgbench has no null variable, and a literal null would let
    // the planner leave out what the service's statement decides when it runs.
    ("Text", "nullif(:no_key::text, 'none')"),
];

/// The variables of [`OrderScripts`]: an order of two lines, the mean of the generated orders, and a real event's body.
pub(crate) fn variables(payload: &str, headers: &str) -> Vec<String> {
    [
        ("no_key", "none"),
        ("total", "2700"),
        ("currency", "EUR"),
        ("skus", "{TEA-001,MUG-001}"),
        ("quantities", "{2,1}"),
        ("unit_prices", "{625,1450}"),
        ("aggregate_type", "order"),
        ("aggregate_version", "1"),
        ("event_type", "OrderCreated"),
        ("schema_version", "1"),
        ("payload", payload),
        ("headers", headers),
    ]
    .map(|(name, value)| format!("{name}={value}"))
    .into()
}

/// The order that a template event is taken from: as many lines as the mean of the generated ones.
pub(crate) const TEMPLATE_ORDER: &str = r#"{"customerId":"0b5f3a54-6a0e-4d0c-9d52-3c1f8f1f2a11",
    "lines":[{"sku":"TEA-001","quantity":2},{"sku":"MUG-001","quantity":1}]}"#;

/// Adds `$2` orders like order `$1`, each with an unpublished event like its first, with new ids, over all lanes.
///
/// The orders exist because the answers to the events refer to them. There is one event per order, so every lane is
/// right and no order among them matters.
pub(crate) fn fill_outbox() -> String {
    format!(
        "with fresh as materialized (
        select number, {UUID_V7} as event_id, {UUID_V7} as order_id
        from generate_series(1, $2) as number
    ), placed as (
        insert into orders (id, customer_id, status, total_amount, currency)
        select fresh.order_id, template.customer_id, 'pending', template.total_amount, template.currency
        from fresh, orders template where template.id = $1
    ), lines as (
        insert into order_lines (order_id, line_number, sku, quantity, unit_price)
        select fresh.order_id, line.line_number, line.sku, line.quantity, line.unit_price
        from fresh, order_lines line where line.order_id = $1
    )
    insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                        payload, headers, lane)
    select fresh.event_id, template.aggregate_type, fresh.order_id, template.aggregate_version,
           template.event_type, template.schema_version,
           replace(replace(template.payload::text, template.event_id::text, fresh.event_id::text),
                   template.aggregate_id::text, fresh.order_id::text)::json,
           template.headers, fresh.number % 16
    from outbox template, fresh
    where template.aggregate_id = $1 and template.aggregate_version = 1"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_products_order_statement_is_bound_with_and_without_its_outbox_row() {
        let scripts = OrderScripts::read().unwrap();
        for script in [&scripts.with_event, &scripts.without_event] {
            assert!(!script.contains('$'), "a parameter is left: {script}");
            assert!(script.contains("insert into orders") && script.ends_with(';'));
            assert!(script.contains("nullif(:no_key::text, 'none')"));
        }
        assert!(scripts.with_event.contains("insert into outbox"));
        assert!(!scripts.without_event.contains("outbox") && !scripts.without_event.contains(":payload"));
    }

    #[test]
    fn every_variable_of_the_scripts_has_a_value_and_none_is_empty() {
        let scripts = OrderScripts::read().unwrap();
        for variable in variables("{}", "{}") {
            let (name, value) = variable.split_once('=').unwrap();
            assert!(!value.is_empty(), "pgbench refuses an empty value: {variable}");
            assert!(scripts.with_event.contains(&format!(":{name}")), "{name} is not used");
        }
        let used = scripts.with_event.matches(":lane").count();
        assert_eq!(used, 1, "the script sets the lane itself");
    }
}
