-- The rights of the log relay (docs/log-relay.md). An administrator runs this once in the database, after `bootstrap.sql`, and
-- only if a service should read the write-ahead log. It is safe to run again.
--
-- `replication` is a strong right: its holder can read all changes of the server, in all databases. Give it to a service that
-- shares its server with others only if they may know each other's data.
do $$
declare
    service text;
begin
    foreach service in array array['orders', 'inventory', 'billing'] loop
        execute format('alter role %I replication', service);
        -- For its publication.
        execute format('grant create on database %I to %I', current_database(), service);
    end loop;
end
$$;
