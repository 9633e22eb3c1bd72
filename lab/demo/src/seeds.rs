//! The seed data: what the tables hold before the first order.

/// Empties every table of the services and of the payment provider, except those that the migrations fill. Needs the
/// administrator's rights. The tables are looked up and not listed here: a table that a list forgets would keep rows
/// without their order.
pub const RESET_TO_SEEDS: &str = "
    do $$ begin
        execute (
            select 'truncate ' || string_agg(format('%I.%I', schemaname, tablename), ', ') || ' restart identity'
            from pg_tables
            where schemaname in ('orders', 'inventory', 'billing', 'provider')
              and tablename not in ('products', 'stock', 'outbox_lanes', 'outbox_retention', 'inbox_retention',
                                    '_sqlx_migrations'));
        update inventory.stock set reserved = 0;
    end $$
";
