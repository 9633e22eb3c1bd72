-- What no handler could apply, set aside for an operator. The queue of dead letters is only the way to this table:
-- looking into a quorum queue counts as delivering, so a queue is no list that anybody could read twice.

create table dead_letters (
    -- The order of arrival, and what an operator calls it.
    id bigint generated always as identity primary key,
    -- The queue that it was taken from: a service may consume several.
    queue text not null,
    -- What makes its arrival recognisable when the broker hands it over a second time: a crash after the commit and
    -- before the acknowledgement brings it again, with the same mark. Null when it bears none, because somebody put
    -- it into the queue of dead letters by hand.
    arrival text,
    -- The AMQP property. Null and unreadable ones are among the reasons for being here.
    message_id text,
    -- The event's id, its type and its aggregate, as far as they can be read out of the body, or the id out of
    -- `message_id`. For finding it, and for the conservation sum; a replay reads the bytes again and trusts none of them.
    event_id uuid,
    event_type text,
    subject uuid,
    -- A short, stable name: what decoding or the handler said, or `delivery-limit` when the broker gave it up because
    -- it had killed its consumer too often.
    reason text not null,
    -- The whole sentence, for people.
    detail text not null,
    -- The message's headers, `x-death` among them. `json`, not `jsonb`, which refuses \u0000, and a header may hold it.
    headers json not null,
    -- Under which key it was published.
    routing_key text not null,
    -- The original bytes. Not text and not json: that they are neither may be why they are here.
    body bytea not null,
    -- When the row was committed, by the database's clock.
    arrived_at timestamptz not null default clock_timestamp(),
    -- Null means that it waits for an operator. Rows are kept afterwards: what was decided, and why, is history.
    resolved_at timestamptz,
    resolution text check (resolution in ('replayed', 'discarded')),
    -- Why it was discarded, in the operator's words.
    note text,

    check ((resolved_at is null) = (resolution is null)),
    check (resolution is distinct from 'discarded' or note is not null)
);

-- One arrival is one row, however often it is handed over, and also after an operator has settled the row. The mark
-- alone would do for those that our consumers set aside; those of the broker bear a time in whole seconds.
create unique index dead_letters_by_arrival
    on dead_letters (queue, arrival, coalesce(message_id, ''), sha256(body)) where arrival is not null;

-- The same message set aside twice before anybody looked is one thing to decide: a consumer that dies between setting
-- it aside and acknowledging it does that. Once it is settled it may come again, and then it is another row.
create unique index dead_letters_unresolved
    on dead_letters (queue, coalesce(message_id, ''), sha256(body)) where resolved_at is null;

-- For the conservation sum, which asks of an event that had no effect whether it lies here.
create index dead_letters_by_event on dead_letters (event_id);
create index dead_letters_by_subject on dead_letters (subject);
