-- Keys are compared byte by byte. The default collation is the operating system's, and an upgrade of that may sort text in
-- another way than an index was built: a key that the index does not find is a second order.
alter table idempotency_keys alter column key type text collate "C";
