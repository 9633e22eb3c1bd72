-- Attempts to apply events that may crash their consumer. A row exists from the beginning of an attempt to the end of the
-- next one that the consumer survives. A consumer makes one such attempt at a time, so there is seldom more than one row.
-- The broker's count of deliveries cannot replace it: that one grows for every message that a lost
-- consumer held, and after a crash of the broker once more for each standby.

create table delivery_attempts (
    queue text not null,
    event_id uuid not null,
    -- Attempts that have begun and not ended.
    begun integer not null default 1,
    last_begun_at timestamptz not null default clock_timestamp(),
    primary key (queue, event_id)
);
