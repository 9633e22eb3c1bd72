-- The logins and schemas of all services. An administrator runs this once (`demo bootstrap`), before any service
-- starts. It is safe to run again, and concurrently. Passwords are set afterwards, from the environment: this file
-- contains none.
--
-- One database, and one schema and one login per service. No login can read another's schema, so messages are the
-- only way from one service to another. To move the three services to three servers, change three connection URLs;
-- the code stays the same.
--
-- `provider` is not one of the three services: it stands for the payment provider, which is another company. It has a
-- schema here only so that the auditor can compare its charges with ours in one snapshot.

-- Two bootstraps of this database wait for each other. (The lock belongs to this database, but roles belong to the
-- whole server: set up two databases of one server one after the other.)
select pg_advisory_lock(hashtext('shop.bootstrap'));

do $bootstrap$
declare
    service text;
    -- Run this again after a change of `max_connections`.
    most int := current_setting('max_connections')::int * 7 / 10;
begin
    foreach service in array array['orders', 'inventory', 'billing', 'provider'] loop
        if not exists (select from pg_roles where rolname = service) then
            execute format('create role %I login', service);
        end if;
        execute format('create schema if not exists %I authorization %I', service, service);
        -- Unqualified names in a service's SQL resolve to its own schema only, not even to `public`.
        execute format('alter role %I set search_path = %I', service, service);
        -- A session that does not end its transaction holds its locks and holds back vacuum in the whole database.
        execute format('alter role %I set idle_in_transaction_session_timeout = %L', service, '30s');
        -- Without a limit, one login could take all connections of the server from the others. By this one, several instances
        -- fit: see "connection budget" in docs/operations.md.
        execute format('alter role %I connection limit %s', service, most);
        execute format('grant connect on database %I to %I', current_database(), service);
        -- A service cannot see other sessions. This function runs with the administrator's rights, and exposes only the age of
        -- the oldest snapshot: vacuum removes no row that was deleted or updated since.
        -- Without `pg_temp` at the end, a temporary view could run in the place of the server's.
        execute format(
            $create$
            create or replace function %I.oldest_snapshot_seconds() returns float8
            language sql security definer set search_path = pg_catalog, pg_temp as
            $$
                select coalesce(max(extract(epoch from clock_timestamp() - began)), 0)::float8
                from (
                    select xact_start from pg_stat_activity
                    where backend_xmin is not null and datname = current_database() and pid <> pg_backend_pid()
                        -- Other vacuums do not wait for a vacuum.
                        and pid not in (select pid from pg_stat_progress_vacuum)
                    union all
                    select prepared from pg_prepared_xacts where database = current_database()
                ) snapshots (began)
            $$
            $create$,
            service);
    end loop;

    -- The auditor reads all four schemas, so that reconciliation is one query over one snapshot. It has no grants to
    -- write; the default below is a second protection.
    if not exists (select from pg_roles where rolname = 'auditor') then
        create role auditor login;
    end if;
    alter role auditor set default_transaction_read_only = on;
    -- The ages of other sessions and of their transactions, for drills.
    grant pg_read_all_stats to auditor;
    -- A service owns its tables. So it could put a view in the place of one, or add a row security policy: the service's code
    -- would then run with the rights of the auditor, and read other schemas. So the auditor reads plain tables only.
    alter role auditor set row_security = off;
    -- Since August 2024 (15.8, 16.4).
    if current_setting('restrict_nonsystem_relation_kind', true) is not null then
        alter role auditor set restrict_nonsystem_relation_kind = 'view, foreign-table';
    end if;
    -- Reconciliation is one large statement: compiling it to machine code takes twenty times as long as running it.
    alter role auditor set jit = off;
    alter role auditor set search_path = orders, inventory, billing, provider;
    execute format('alter role auditor connection limit %s', most);
    execute format('grant connect on database %I to auditor', current_database());

    foreach service in array array['orders', 'inventory', 'billing', 'provider'] loop
        execute format('grant usage on schema %I to auditor', service);
        execute format('grant select on all tables in schema %I to auditor', service);
        -- For the tables that the services' migrations create later.
        execute format('alter default privileges for role %I in schema %I grant select on tables to auditor',
                       service, service);
    end loop;

    execute format('revoke all on database %I from public', current_database());
    revoke all on schema public from public;
end
$bootstrap$;

select pg_advisory_unlock(hashtext('shop.bootstrap'));
