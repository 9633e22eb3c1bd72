-- A login and a schema for the mailer. An administrator runs this after `migrations/bootstrap.sql` and before the
-- mailer's first start. It is safe to run again. The password is set afterwards (`\password mailer` in psql).
--
-- It is a separate file, because a system without the mailer needs neither.
do $$
begin
    if not exists (select from pg_roles where rolname = 'mailer') then
        create role mailer login;
    end if;
    create schema if not exists mailer authorization mailer;
    -- Unqualified names in its SQL resolve to its own schema only.
    alter role mailer set search_path = mailer;
    -- A session that does not end its transaction holds its locks and holds back vacuum in the whole database.
    alter role mailer set idle_in_transaction_session_timeout = '30s';
    execute format('grant connect on database %I to mailer', current_database());
end
$$;
