//! SQL that the benchmarks run in place of the order service: its write, and rows for its outbox.

/// A UUIDv7, as the service makes them. A random id in its place would scatter the inserts over the whole index, and
/// pgbench would measure that instead. Costs the server a few microseconds that binding an id would not.
const UUID_V7: &str = "(lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '7' \
     || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid";

/// The order service's one statement (`services/orders/src/place_order.rs`) for pgbench, with the event's row or
/// without it. The variables are those of [`variables`].
pub(crate) fn write(with_the_event: bool) -> String {
    let event = format!(
        ", event as (
             insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                 schema_version, payload, headers, lane)
             select {UUID_V7}, :aggregate_type, placed.id, :aggregate_version, :event_type,
                    :schema_version, :payload::text::json, :headers, :lane
             from placed
         )"
    );
    format!(
        "\\set lane random(0, 15)
         with key as (
             insert into idempotency_keys (key, order_id)
             select :key, gen_random_uuid() where nullif(:key::text, '') is not null
             on conflict do nothing
             returning order_id
         ), placed as (
             insert into orders (id, customer_id, status, total_amount, currency)
             select {UUID_V7}, gen_random_uuid(), 'pending', :total, :currency
             where nullif(:key::text, '') is null or exists (select from key)
             returning id, placed_at
         ), lines as (
             insert into order_lines (order_id, line_number, sku, quantity, unit_price)
             select placed.id, line.number, line.sku, line.quantity, line.unit_price
             from placed,
                  unnest(:skus::text[], :quantities::int[], :unit_prices::bigint[]) with ordinality
                      as line (sku, quantity, unit_price, number)
         ){event}
         select placed_at from placed;",
        event = if with_the_event { &event } else { "" }
    )
}

/// What [`write()`] binds: an order of two lines, which is the mean of the generated ones, and a real event's body.
pub(crate) fn variables(payload: &str, headers: &str) -> Vec<String> {
    [
        // None, as in the orders that this is compared with.
        ("key", ""),
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

/// Adds `$2` orders like order `$1`, each with an unpublished event like its first: the envelope, with ids of their own.
/// The orders are there because their answers look for them.
///
/// One event per order, so any lane is a right one. There is no order to them: only the relay is measured on these.
pub(crate) const FILL_OUTBOX: &str = "
    with fresh as materialized (
        select number, gen_random_uuid() as event_id, gen_random_uuid() as order_id
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
    where template.aggregate_id = $1 and template.aggregate_version = 1";
