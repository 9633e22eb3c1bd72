//! The seed data: what the tables hold before the first order.

/// Empties every table of the login that runs it, except those that the migrations fill. The tables are looked up and not listed
/// here: a table that a list forgets would keep rows without their order.
pub const RESET_TO_SEEDS: &str = "
    do $$ begin
        execute (
            select 'truncate ' || string_agg(quote_ident(tablename), ', ') || ' restart identity'
            from pg_tables
            where schemaname = current_user
              and tablename not in ('products', 'stock', 'outbox_lanes', 'outbox_retention', 'inbox_retention',
                                    '_sqlx_migrations'));
        if current_user = 'inventory' then
            update stock set reserved = 0;
        end if;
    end $$
";
