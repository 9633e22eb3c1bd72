-- Who may come in, and which room is whose. Run once by an administrator (`demo bootstrap`), before any service
-- starts; safe to run again, and by several at once. Passwords are set afterwards, from the environment: none
-- stands in this file.
--
-- One database, one schema and one login per service. No login can read another's schema, so the only way from one
-- service to another is a message. Splitting the three onto three servers is three connection URLs, and no code.
--
-- `provider` is not one of the three: it stands for the payment provider, a company outside the house. It has its room
-- here only so that the auditor can hold its ledger against ours in one snapshot.

-- Two bootstraps of this database take turns. (The lock is this database's own, while roles belong to the whole server:
-- who sets up two databases of one server does so one after the other.)
select pg_advisory_lock(hashtext('shop.bootstrap'));

do $$
declare
    service text;
begin
    foreach service in array array['orders', 'inventory', 'billing', 'provider'] loop
        if not exists (select from pg_roles where rolname = service) then
            execute format('create role %I login', service);
        end if;
        execute format('create schema if not exists %I authorization %I', service, service);
        -- Unqualified names in a service's SQL mean its own schema, and nothing else: not even `public`.
        execute format('alter role %I set search_path = %I', service, service);
        -- A session that forgot to end its transaction holds locks and holds back vacuum for everybody.
        execute format('alter role %I set idle_in_transaction_session_timeout = %L', service, '30s');
        execute format('grant connect on database %I to %I', current_database(), service);
    end loop;

    -- The auditor reads all four rooms, so that the conservation sum is one query over one snapshot. It writes
    -- nothing: the default below is a second lock on that door, after the missing grants.
    if not exists (select from pg_roles where rolname = 'auditor') then
        create role auditor login;
    end if;
    alter role auditor set default_transaction_read_only = on;
    -- The conservation sum is one large statement: compiling it to machine code takes twenty times as long as running it.
    alter role auditor set jit = off;
    alter role auditor set search_path = orders, inventory, billing, provider;
    execute format('grant connect on database %I to auditor', current_database());

    foreach service in array array['orders', 'inventory', 'billing', 'provider'] loop
        execute format('grant usage on schema %I to auditor', service);
        execute format('grant select on all tables in schema %I to auditor', service);
        -- Tables that the services' own migrations create later.
        execute format('alter default privileges for role %I in schema %I grant select on tables to auditor',
                       service, service);
    end loop;

    execute format('revoke all on database %I from public', current_database());
    revoke all on schema public from public;
end
$$;

select pg_advisory_unlock(hashtext('shop.bootstrap'));
