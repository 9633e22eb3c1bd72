//! What was there before the first order.

/// Empties every table of the services and the provider but those that migrations fill, as the administrator. All tables are looked
/// up and not listed: one that is forgotten here would be a row without its order afterwards.
pub const BACK_TO_SEEDS: &str = "
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
