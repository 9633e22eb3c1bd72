-- The tables of the mailer, beside those of the inbox.

-- One row is one mail to the customer who placed the order: the effect of an event in this service.
create table mails (
    order_id uuid not null,
    -- How the order ended. A confirmed order can still be cancelled, and that is a second mail.
    kind text not null check (kind in ('confirmed', 'cancelled')),
    -- The event that caused it: every effect can be traced back to its cause. It would also be the idempotency key
    -- for a mail provider, so that two calls send one mail.
    event_id uuid not null,
    -- The text of the mail.
    body text not null,
    written_at timestamptz not null default clock_timestamp(),

    -- A second protection against duplicates. `processed_events` protects for as long as its records are kept; this
    -- key protects for as long as the mail is kept. The three services deliberately have no such key: `demo verify`
    -- counts their effects, and a second protection would hide a fault in the first. It does not count mails, and a
    -- customer should never get a second one.
    primary key (order_id, kind)
);
