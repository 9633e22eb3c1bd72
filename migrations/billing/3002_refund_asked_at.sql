-- Since when a payment waits for its refund. Its age is not counted from the charge, which may be months older.
alter table payments add column refund_asked_at timestamptz;

-- As before, with the new column, so that the metrics are still counted without reading the payments.
drop index payments_pending;
create index payments_pending on payments (due_at) include (asked_at, refund_asked_at) where state in ('asked', 'refunding');
