"""A message relay of another shape than ../python: it leases events in a short transaction, publishes outside of it, and marks
what is its own. Its table, the encoding of its rows and the header with the id are unlike the judge's contract, too.

`relay.py set-up` creates the table, and `relay.py encode` writes the insert statement of each event on its standard input."""
import base64
import json
import os
import signal
import sys
import time
import uuid
import pika
import psycopg
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

TABLE = """create table events (
    position bigint generated always as identity primary key,
    id text not null unique, stream text not null, topic text not null, body bytea not null,
    sent_at timestamptz, failures smallint not null default 0, due timestamptz not null default clock_timestamp(),
    lease text, leased_until timestamptz not null default '-infinity');
create index on events (position) where sent_at is null;
create index on events (stream, position) where sent_at is null"""


def stored(event_id):
    return base64.b64encode(uuid.UUID(event_id).bytes).decode()


def published(event_id):
    return str(uuid.UUID(bytes=base64.b64decode(event_id)))


class Relay:
    # What has failed comes last, and holds back the later events of its stream.
    lease = 10  # seconds. One claim at a time decides which streams are leased: of a stream, one relay has all or none
    claim_sql = """update events set lease = %(lease)s, leased_until = clock_timestamp() + %(seconds)s * interval '1 second'
        where position in (
            select position from events event
            where sent_at is null and due <= clock_timestamp() and leased_until <= clock_timestamp()
              and not exists (select from events older where older.stream = event.stream and older.position < event.position
                  and older.sent_at is null and (older.due > clock_timestamp() or older.failures > event.failures
                      or older.leased_until > clock_timestamp()))
            order by failures, position limit 100)
        returning position, id, stream, topic, body"""

    def __init__(self):
        limit = "-c idle_in_transaction_session_timeout=10s"
        self.database = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, options=limit)
        self.broker = pika.BlockingConnection(self.parameters())
        self.open_channel()

    def parameters(self):
        return pika.URLParameters(os.environ["AMQP_URL"])

    def open_channel(self):
        self.channel = self.broker.channel()
        self.channel.confirm_delivery()

    def step(self):  # returns whether there was a batch
        lease, until = str(uuid.uuid4()), time.monotonic() + self.lease - 3
        events, sent, refused = self.claim(lease), [], {}
        for position, event_id, stream, topic, body in events:
            if time.monotonic() > until:  # frozen, or slow: another relay may have the lease soon
                break
            if stream not in refused and self.publish(published(event_id), topic, body):
                sent.append(position)
            else:
                refused.setdefault(stream, position)
        self.end(lease, sent, list(refused.values()))
        return bool(events)

    def claim(self, lease):
        with self.database.transaction():
            self.database.execute("select pg_advisory_xact_lock(1)")
            return sorted(self.database.execute(self.claim_sql, {"lease": lease, "seconds": self.lease}).fetchall())

    def publish(self, event_id, topic, body):
        """Returns whether the broker has taken the event. False: it refuses this one, and may take others."""
        properties = pika.BasicProperties(headers={"event-id": event_id}, delivery_mode=2)
        try:
            self.channel.basic_publish(os.environ["EXCHANGE"], topic, body, properties, mandatory=True)
        except (UnroutableError, NackError, ChannelClosedByBroker):
            if self.channel.is_closed:
                self.open_channel()
            return False
        return True

    def end(self, lease, sent, refused):  # what is not this relay's any more, stays as it is
        self.database.execute(
            """update events set leased_until = '-infinity', sent_at = case when position = any(%(sent)s) then clock_timestamp() end,
                   failures = case when position = any(%(refused)s) then least(failures + 1, 10) else failures end,
                   due = case when position = any(%(refused)s)
                       then clock_timestamp() + random() * least(60, 2 ^ failures) * interval '1 second' else due end
               where lease = %(lease)s and leased_until > '-infinity'""",
            {"sent": sent, "refused": refused, "lease": lease})


def run(relay):
    print("RELAYING", flush=True)
    while True:
        signal.alarm(9)  # ends the process if a step takes longer: what is leased waits for the lease's end
        time.sleep(0 if relay.step() else 0.1)


def encode(line):
    event = json.loads(line)
    values = stored(event["id"]), stored(event["aggregate"]), event["routing_key"]
    body = event["payload"].encode().hex()
    return "insert into events (id, stream, topic, body) values ('%s', '%s', '%s', '\\x%s')" % (*values, body)


if __name__ == "__main__":
    if sys.argv[1:] == ["set-up"]:
        psycopg.connect(os.environ["DATABASE_URL"], autocommit=True).execute(TABLE)
    elif sys.argv[1:] == ["encode"]:
        for line in sys.stdin:
            print(encode(line), flush=True)
    else:
        run(Relay())
