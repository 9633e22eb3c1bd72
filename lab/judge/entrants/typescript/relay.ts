// A message relay: publishes the committed events of an outbox, each at least once, and in order within an aggregate.
// A step is one transaction: lock, claim, publish with confirms, mark. A failure ends the process, and PostgreSQL rolls back:
// what was not marked is published again by the next process, which a supervisor starts. So SIGTERM may end it anywhere.
import { setTimeout as sleep } from 'node:timers/promises';
import amqp from 'amqplib';
import pg from 'pg';

interface OutboxEvent {
  event_id: string;
  aggregate_id: string;
  routing_key: string;
  payload: string;
}

const { DATABASE_URL = '', AMQP_URL = '', EXCHANGE = '' } = process.env;

// By state, never by position: one may commit after later ones were published.
const claimSql = `select event_id, aggregate_id, routing_key, payload::text from outbox event
  where published_at is null and available_at <= statement_timestamp()
    and not exists (select from outbox older  -- a refused event holds back the later ones of its aggregate
                    where older.aggregate_id = event.aggregate_id and older.seq < event.seq
                      and older.published_at is null and older.available_at > statement_timestamp())
  order by seq limit 100`;

const markSql = 'update outbox set published_at = clock_timestamp() where event_id = $1';

const refuseSql = `update outbox set attempts = least(attempts + 1, 10), available_at = clock_timestamp()
  + random() * least(60, 2 ^ attempts) * interval '1 second' where event_id = $1`;

// Ends the process without progress: the broker or the database may fall silent while the connection stays open.
const watchdog = setTimeout(() => {
  console.error('no answer for too long');
  process.exit(1);
}, 15_000);

// Frozen inside a transaction, the relay holds its lock no longer than the time-out.
const config = { connectionString: DATABASE_URL, idle_in_transaction_session_timeout: 10_000 };
const database = new pg.Client(config);
const barrier = new pg.Client(config);
await database.connect();
await barrier.connect();

const broker = await amqp.connect(AMQP_URL);
broker.on('close', () => process.exit(1));
let { channel, returned } = await openChannel();

async function openChannel() {
  const channel = await broker.createConfirmChannel();
  const returned = new Set<string>();
  channel.on('return', (message) => returned.add(message.properties.messageId));
  channel.on('error', (error) => console.error(error.message)); // without a listener it ends the process
  return { channel, returned };
}

// Resolves to whether there was a batch.
async function step(): Promise<boolean> {
  await database.query('begin');
  const events = (await lock()) ? await claim() : [];
  const refused = new Set<string>();
  for (const event of events) {
    watchdog.refresh();
    if (refused.has(event.aggregate_id)) continue; // nothing later of this aggregate in this step
    if (await publish(event)) {
      await database.query(markSql, [event.event_id]);
    } else {
      refused.add(event.aggregate_id);
      await database.query(refuseSql, [event.event_id]);
    }
  }
  await database.query('commit');
  return events.length > 0;
}

// One instance at a time: two would publish an aggregate's events side by side.
async function lock(): Promise<boolean> {
  const { rows } = await database.query('select pg_try_advisory_xact_lock(1) as locked');
  return rows[0].locked;
}

async function claim(): Promise<OutboxEvent[]> {
  const { rows } = await database.query<OutboxEvent>(claimSql);
  if (rows.length > 0) {
    // What was read may be here only: this commit ends when the standby has it, if there is one.
    await barrier.query("select pg_logical_emit_message(true, 'relay', '')");
  }
  return rows;
}

// Resolves to whether the broker has taken the event. False: it refuses this one, and may take others.
async function publish({ event_id, routing_key, payload }: OutboxEvent): Promise<boolean> {
  const options = { messageId: event_id, persistent: true, mandatory: true }; // it returns what no queue wants
  const refusal = await new Promise<Error | null>((resolve) => {
    channel.publish(EXCHANGE, routing_key, Buffer.from(payload), options, resolve);
  });
  if (refusal?.message === 'channel closed') {
    // The event is too large, for example.
    ({ channel, returned } = await openChannel());
    return false;
  }
  return !returned.delete(event_id) && refusal === null; // a return comes before its confirm
}

console.log('RELAYING');
for (;;) {
  watchdog.refresh();
  if (!(await step())) await sleep(100);
}
