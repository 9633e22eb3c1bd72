-- Messages that no handler could apply, set aside for an operator. The dead-letter queue only transports them to this
-- table: reading a message of a quorum queue counts as a delivery, so a queue is not a list that can be read
-- repeatedly.

create table dead_letters (
    -- The order of arrival, and the id that an operator uses.
    id bigint generated always as identity primary key,
    -- The queue whose consumer could not apply it: a service may consume several.
    queue text not null,
    -- Recognizes a second delivery of the same dead letter: after a crash between the commit and the acknowledgement
    -- the broker delivers it again, with the same mark. Null without a mark: an operator has put the message into the
    -- dead-letter queue by hand.
    arrival text,
    -- The AMQP property. A missing or unreadable one may be why the message is here.
    message_id text,
    -- The event's id, type and aggregate, as far as they can be read from the body; the id also from `message_id`. For
    -- searches and for reconciliation. A replay does not rely on them: it decodes the bytes again.
    event_id uuid,
    event_type text,
    subject uuid,
    -- A short, stable name of the reason, from decoding or from the handler; or `delivery-limit`, when the broker
    -- dead-lettered the message because its consumer had died over it too often.
    reason text not null,
    -- The reason as a sentence, for people.
    detail text not null,
    -- The message's headers, with `x-death`. `json` and not `jsonb`: a header may contain \u0000, which `jsonb`
    -- refuses.
    headers json not null,
    -- The routing key under which it was published first.
    routing_key text not null,
    -- The original bytes. Neither text nor json: that the body is not valid may be why the message is here.
    body bytea not null,
    -- When the row was committed, by the database's clock.
    arrived_at timestamptz not null default clock_timestamp(),
    -- Null means that it waits for an operator. Resolved rows are kept, as a record of the decision and its reason.
    resolved_at timestamptz,
    resolution text check (resolution in ('replayed', 'discarded')),
    -- The operator's reason for a discard.
    note text,

    check ((resolved_at is null) = (resolution is null)),
    check (resolution is distinct from 'discarded' or note is not null)
);

-- One arrival is one row, however often it is delivered, and also after an operator has resolved the row. For
-- messages that our consumers set aside the mark alone would be enough; the mark of those that the broker
-- dead-lettered is a time in whole seconds.
create unique index dead_letters_by_arrival
    on dead_letters (queue, arrival, coalesce(message_id, ''), sha256(body)) where arrival is not null;

-- A message that is set aside twice before an operator resolves it is one row: a consumer that dies between setting it
-- aside and acknowledging it sets it aside twice. After it is resolved it may arrive again, as another row.
create unique index dead_letters_unresolved
    on dead_letters (queue, coalesce(message_id, ''), sha256(body)) where resolved_at is null;

-- For reconciliation, which checks whether an event without an effect is a dead letter.
create index dead_letters_by_event on dead_letters (event_id);
create index dead_letters_by_subject on dead_letters (subject);

-- Every event asks, in the statement that records it, whether an older one of its aggregate is an unresolved dead letter of
-- the same queue: then it waits behind that one. `reason` is here so that the metrics are counted without the letters.
create index dead_letters_waiting on dead_letters (queue, subject) include (reason) where resolved_at is null;

-- Attempts to apply events that may crash their consumer. A row exists from the beginning of an attempt to the end of the
-- next one that the consumer survives. A consumer makes one such attempt at a time, so there is seldom more than one row.
-- The broker's count of deliveries cannot replace it: that one grows for every message that a lost consumer held, and after a
-- crash of the broker once more for each standby.
create table delivery_attempts (
    queue text not null,
    event_id uuid not null,
    -- Attempts that have begun and not ended.
    begun integer not null default 1,
    last_begun_at timestamptz not null default clock_timestamp(),
    primary key (queue, event_id)
);
