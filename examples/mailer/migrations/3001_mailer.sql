-- What the mailer owns, beside the inbox.

-- One row is one mail that is owed to whoever placed the order: the effect of an event here.
create table mails (
    order_id uuid not null,
    -- Which end the order came to. A confirmed order can still be cancelled, and that is worth a second mail.
    kind text not null check (kind in ('confirmed', 'cancelled')),
    -- The event that caused it: from any effect one can walk back to its cause. Also the name under which the mail would
    -- be handed to a company that sends it, so that asking twice sends one.
    event_id uuid not null,
    -- What it says.
    body text not null,
    written_at timestamptz not null default clock_timestamp(),

    -- The second line. `processed_events` keeps a copy from being applied as long as it remembers; this holds for as long
    -- as the mail is kept. The services of the shop leave it out on purpose, because `demo verify` counts their effects and
    -- a second net would hide a hole in the first. Nobody counts these, and a customer would rather get no second mail.
    primary key (order_id, kind)
);
