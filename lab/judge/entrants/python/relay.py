"""A message relay: publishes the committed events of an outbox, each at least once, and in order within an aggregate.
A step is one transaction: lock, claim, publish with confirms, mark. A failure ends the process, and PostgreSQL rolls back:
what was not marked is published again by the next process, which a supervisor starts. So SIGTERM may end it anywhere."""
import os
import signal
import time
import pika
import psycopg
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError


class Relay:
    claim_sql = """select seq, event_id, aggregate_id, routing_key, payload::text from outbox event
        where published_at is null and available_at <= statement_timestamp()
          and not exists (select from outbox older  -- a refused event holds back the later ones of its aggregate
                          where older.aggregate_id = event.aggregate_id and older.seq < event.seq
                            and older.published_at is null and older.available_at > statement_timestamp())
        order by seq limit 100"""  # by state, never by position: one may commit after later ones were published
    idle_limit = "10s"  # frozen inside a transaction, the relay holds its lock no longer than this
    mandatory, delivery_mode = True, 2  # the broker returns what no queue wants, and keeps the others on disk

    def __init__(self):
        url, limit = os.environ["DATABASE_URL"], f"-c idle_in_transaction_session_timeout={self.idle_limit}"
        self.database, self.barrier = [psycopg.connect(url, autocommit=True, options=limit) for _ in range(2)]
        self.broker = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
        self.open_channel()

    def open_channel(self):
        self.channel = self.broker.channel()
        self.channel.confirm_delivery()  # basic_publish returns after the broker's confirm

    def step(self):  # returns whether there was a batch
        with self.database.transaction():
            events, refused = self.claim() if self.lock() else [], {}
            for seq, event_id, aggregate, routing_key, payload in events:
                if aggregate not in refused and self.publish(str(event_id), routing_key, payload):
                    self.mark(seq)
                else:
                    refused.setdefault(aggregate, seq)  # nothing later of this aggregate in this step
            self.refuse(list(refused.values()))
        return bool(events)

    def lock(self):  # one instance at a time: two would publish an aggregate's events side by side
        return self.database.execute("select pg_try_advisory_xact_lock(1)").fetchone()[0]

    def claim(self):
        events = self.database.execute(self.claim_sql).fetchall()
        if events:  # what was read may be here only: this commit ends when the standby has it, if there is one
            self.barrier.execute("select pg_logical_emit_message(true, 'relay', '')")
        return events

    def publish(self, event_id, routing_key, payload):
        """Returns whether the broker has taken the event. False: it refuses this one, and may take others."""
        properties = pika.BasicProperties(message_id=event_id, delivery_mode=self.delivery_mode)
        try:
            self.channel.basic_publish(os.environ["EXCHANGE"], routing_key, payload, properties, self.mandatory)
        except (UnroutableError, NackError, ChannelClosedByBroker):
            if self.channel.is_closed:  # the event is too large, for example
                self.open_channel()
            return False
        return True

    def mark(self, seq):
        self.database.execute("update outbox set published_at = clock_timestamp() where seq = %s", [seq])

    def refuse(self, seqs):
        self.database.execute(
            """update outbox set attempts = least(attempts + 1, 10), available_at = clock_timestamp()
                   + random() * least(60, 2 ^ attempts) * interval '1 second' where seq = any(%s)""", [seqs])


def run(relay):
    print("RELAYING", flush=True)
    while True:
        signal.alarm(15)  # ends the process if a step takes longer: a broker may never confirm
        time.sleep(0 if relay.step() else 0.1)


if __name__ == "__main__":
    run(Relay())
