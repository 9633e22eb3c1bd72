-- A login and a schema for the mailer, beside those of `migrations/bootstrap.sql` and after it. Run by an administrator
-- before the first start; safe to run again. The password is set afterwards (`\password mailer` in psql).
--
-- It stands here and not there, because a shop without a mailer needs neither.
do $$
begin
    if not exists (select from pg_roles where rolname = 'mailer') then
        create role mailer login;
    end if;
    create schema if not exists mailer authorization mailer;
    -- Unqualified names in its SQL mean its own schema, and nothing else.
    alter role mailer set search_path = mailer;
    -- A session that forgot to end its transaction holds locks and holds back vacuum for everybody.
    alter role mailer set idle_in_transaction_session_timeout = '30s';
    execute format('grant connect on database %I to mailer', current_database());
end
$$;
