// The adapter of npm's pg-transactional-outbox: its listener calls `handle` for each message, as in its README, and the
// glue publishes with amqplib, persistent, mandatory and confirmed. `set-up` creates its tables with its own helper.
import process from 'node:process';
import amqp from 'amqplib';
import pg from 'pg';
import outbox from 'pg-transactional-outbox';

const replication = process.env.LISTENER === 'replication';
const url = new URL(process.env.DATABASE_URL);
const database = url.pathname.slice(1);
const names = { publication: 'judge_publication', replicationSlot: `${database}_slot`, nextMessagesName: 'next_outbox_messages' };

async function setUp() {
  const config = { outboxOrInbox: 'outbox', database, schema: 'public', table: 'outbox', listenerRole: url.username, ...names };
  const setup = outbox.DatabaseSetup;
  const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
  await client.connect();
  await client.query(setup.dropAndCreateTable(config));
  if (replication) {
    // The judge's login may replicate already, and only a superuser may say so.
    await client.query(setup.setupReplicationCore(config).replace(/alter (role|user) [^;]*;/i, ''));
    // The slot in a transaction of its own.
    await client.query(`select pg_create_logical_replication_slot('${names.replicationSlot}', 'pgoutput')`);
  } else {
    await client.query(setup.createPollingFunction(config));
    await client.query(setup.setupPollingIndexes(config));
  }
  await client.end();
}

let channel;
async function connect() {
  const connection = await amqp.connect(process.env.AMQP_URL);
  connection.on('error', () => {});
  connection.on('close', () => { channel = undefined; });
  const opened = await connection.createConfirmChannel();
  opened.returned = new Set();
  opened.on('return', (message) => opened.returned.add(message.properties.messageId));
  opened.on('error', () => {});
  // A channel that closes rejects what it has not confirmed.
  opened.on('close', () => { channel = undefined; connection.close().catch(() => {}); });
  channel = opened;
}

async function handle(message) {
  if (!channel) await connect();
  const used = channel;
  const options = { persistent: true, mandatory: true, messageId: message.id };
  const body = Buffer.from(JSON.stringify(message.payload));
  await new Promise((resolve, reject) => {
    used.publish(process.env.EXCHANGE, message.messageType, body, options, (error) => (error ? reject(error) : resolve()));
  });
  if (used.returned.delete(message.id)) throw new Error('no queue wants this message');
}

async function relay() {
  await connect();
  // As in the README's example, with two exceptions. Polling: with the default of five attempts an outage of seconds uses
  // them up, and events are abandoned (replication: one event would stop all others for as long as it is tried). Replication:
  // a second instance asks for the slot each second, and not each ten.
  const base = { dbSchema: 'public', dbTable: 'outbox', enableMaxAttemptsProtection: false, enablePoisonousMessageProtection: false };
  const dbListenerConfig = { connectionString: process.env.DATABASE_URL };
  const logger = outbox.getDefaultLogger('outbox');
  logger.level = 'warn';
  const settings = replication
    ? { ...base, dbPublication: names.publication, dbReplicationSlot: names.replicationSlot, restartDelaySlotInUseInMs: 1000 }
    : {
        ...base, maxAttempts: 30_000, nextMessagesBatchSize: Number(process.env.BATCH ?? 5), nextMessagesPollingIntervalInMs: 250,
        nextMessagesFunctionName: names.nextMessagesName,
      };
  const listen = replication ? outbox.initializeReplicationMessageListener : outbox.initializePollingMessageListener;
  const strategies = replication ? { concurrencyStrategy: outbox.createReplicationMutexConcurrencyController() } : {};
  const [shutdown] = listen({ outboxOrInbox: 'outbox', dbListenerConfig, settings }, { handle }, logger, strategies);
  process.on('SIGTERM', async () => { await shutdown(); process.exit(0); });
  console.log('RELAYING');
}

await (process.argv[2] === 'set-up' ? setUp() : relay());
