-- Every event asks, in the statement that records it, whether an older one of its aggregate is an unresolved dead letter of
-- the same queue: then it waits behind that one. `reason` is here so that the metrics are counted without the letters.
create index dead_letters_waiting on dead_letters (queue, subject) include (reason) where resolved_at is null;
