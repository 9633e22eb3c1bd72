"""The relay with one classic mistake, which its argument names: the judge must notice each."""

import os
import signal
import sys
import uuid

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker, NackError, UnroutableError
from relay import Relay, run


class Transient(Relay):
    """Publishes messages that the broker may forget."""
    delivery_mode = 1


class Twice(Relay):
    """Publishes each event twice, to be sure."""

    def publish(self, *event):
        return super().publish(*event) and super().publish(*event)


class FromTheStart(Relay):
    """Publishes again at its start what was published in the last hour."""

    def __init__(self):
        super().__init__()
        self.database.execute("update outbox set published_at = null where published_at > now() - interval '1 hour'")


class SmallOnly(Relay):
    """Refuses an event that no notification could hold."""

    def publish(self, event_id, routing_key, payload):
        return len(payload) < 8000 and super().publish(event_id, routing_key, payload)


class Unordered(Relay):
    """Publishes what it finds in any order."""
    claim_sql = Relay.claim_sql.replace("order by seq", "order by random()")


class Deaf(Relay):
    """Does not end when it is asked to."""

    def __init__(self):
        super().__init__()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


class MarkFirst(Relay):
    """Marks, commits, and then publishes."""

    def step(self):
        with self.database.transaction():
            events = self.claim() if self.lock() else []
            for seq, *_ in events:
                self.mark(seq)
        for _, event_id, _, routing_key, payload in events:
            self.publish(str(event_id), routing_key, payload)
        return bool(events)


class NewId(Relay):
    """Gives each copy another id, by which no consumer recognizes it."""

    def publish(self, event_id, routing_key, payload):
        return super().publish(str(uuid.uuid4()), routing_key, payload)


class NoConfirms(Relay):
    """Takes what was sent for published."""

    def open_channel(self):
        self.channel = self.broker.channel()


class SkipLocked(Relay):
    """Lets instances share the events of one aggregate."""
    claim_sql = Relay.claim_sql + " for update of event skip locked"

    def lock(self):
        return True


class NotMandatory(Relay):
    """Takes an event that the broker has dropped for published."""
    mandatory = False


class GiveUp(Relay):
    """Counts an outage as a refusal, and gives an event up after three."""

    def publish(self, event_id, routing_key, payload):
        try:
            if self.broker.is_closed:
                self.broker = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
                self.open_channel()
            return super().publish(event_id, routing_key, payload)
        except (AMQPError, OSError):
            return False

    def refuse(self, seqs):
        self.database.execute(
            """update outbox set attempts = attempts + 1, available_at =
                   case when attempts < 2 then clock_timestamp() else 'infinity' end where seq = any(%s)""", [seqs])


class Cursor(Relay):
    """Goes on after the last event that it has seen."""
    last = 0

    def claim(self):
        self.claim_sql = Relay.claim_sql.replace("order by", f"and seq > {self.last} order by")
        events = super().claim()
        self.last = max([self.last] + [event[0] for event in events])
        return events


class Window(Relay):
    """Goes on a hundred events before the last one that it has seen."""
    last = 0

    def claim(self):
        self.claim_sql = Relay.claim_sql.replace("order by", f"and seq > {self.last - 100} order by")
        events = super().claim()
        self.last = max([self.last] + [event[0] for event in events])
        return events


class NackIsFine(Relay):
    """Takes each answer of the broker for a confirm."""

    def publish(self, event_id, routing_key, payload):
        properties = pika.BasicProperties(message_id=event_id, delivery_mode=2)
        try:
            self.channel.basic_publish(os.environ["EXCHANGE"], routing_key, payload, properties, True)
        except NackError:
            pass
        except (UnroutableError, ChannelClosedByBroker):
            if self.channel.is_closed:
                self.open_channel()
            return False
        return True


class LastConfirm(Relay):
    """Sends a batch, and waits for the confirm of its last event only."""

    def open_channel(self):
        super().open_channel()
        self.others = self.broker.channel()

    def step(self):
        with self.database.transaction():
            events = self.claim() if self.lock() else []
            for _, event_id, _, routing_key, payload in events[:-1]:
                properties = pika.BasicProperties(message_id=str(event_id), delivery_mode=2)
                self.others.basic_publish(os.environ["EXCHANGE"], routing_key, payload, properties, True)
            for seq, event_id, _, routing_key, payload in events[-1:]:
                if self.publish(str(event_id), routing_key, payload):
                    for event in events:
                        self.mark(event[0])
                else:
                    self.refuse([seq])
        return bool(events)


class MarkLater(NoConfirms):
    """Marks what was sent after a second and a half, if the connection is still open and nothing was returned."""

    def step(self):
        returned = set()
        self.channel.add_on_return_callback(lambda *returned_message: returned.add(returned_message[2].message_id))
        with self.database.transaction():
            events = self.claim() if self.lock() else []
            for _, event_id, _, routing_key, payload in events:
                self.publish(str(event_id), routing_key, payload)
            if events:
                self.broker.sleep(1.5)
            for seq, event_id, *_ in events:
                if str(event_id) not in returned:
                    self.mark(seq)
            self.refuse([seq for seq, event_id, *_ in events if str(event_id) in returned])
        return bool(events)


class PastRefused(Relay):
    """Publishes an aggregate's later events although an older one was refused."""
    claim_sql = """select seq, event_id, seq, routing_key, payload::text from outbox
        where published_at is null and available_at <= statement_timestamp() order by seq limit 100"""


class NoTimeout(Relay):
    """Holds its lock for as long as it is frozen."""
    idle_limit = "0"


class NoDeadline(Relay):
    """Waits without end for an answer."""

    def __init__(self):
        os.environ["AMQP_URL"] += "?heartbeat=0"
        super().__init__()

    def step(self):
        signal.alarm(0)
        return super().step()


class NoBackoff(Relay):
    """Tries failing events again at once, before all others."""

    def refuse(self, seqs):
        pass


class Slot(Relay):
    """Publishes what a replication slot shows. No standby has it, and the next one shows only what is written later."""
    claim_sql = Relay.claim_sql.replace(" order by", """
        and (seq <= (select seq from before_slot) or seq in (
            select substring(left(data, 100) from 'seq[^:]*:([0-9]+)')::bigint
            from pg_logical_slot_peek_changes(current_database(), null, null) where data like '%outbox: INSERT%'))
        order by""")

    def __init__(self):
        super().__init__()
        self.database.execute("""select pg_create_logical_replication_slot(current_database(), 'test_decoding')
            where not exists (select from pg_replication_slots where slot_name = current_database())""")
        self.database.execute("create table if not exists before_slot as select coalesce(max(seq), 0) as seq from outbox")


class Log(Slot):
    """Acknowledges what the slot shows when it finds nothing to publish: an event may not be visible yet."""

    def claim(self):
        shown = self.database.execute("select max(lsn) from pg_logical_slot_peek_changes(current_database(), null, null)")
        [end], events = shown.fetchone(), super().claim()
        if end and not events:
            self.database.execute("select pg_replication_slot_advance(current_database(), %s)", [end])
        return events


class NoBarrier(Relay):
    """Publishes what the standby may not have yet."""

    def claim(self):
        return self.database.execute(self.claim_sql).fetchall()


MISTAKES = {
    "transient": Transient, "twice": Twice, "from-the-start": FromTheStart, "small-only": SmallOnly,
    "unordered": Unordered, "deaf": Deaf,
    "mark-first": MarkFirst, "new-id": NewId, "no-confirms": NoConfirms,
    "skip-locked": SkipLocked, "not-mandatory": NotMandatory, "give-up": GiveUp, "cursor": Cursor, "window": Window,
    "nack-is-fine": NackIsFine, "last-confirm": LastConfirm,
    "mark-later": MarkLater, "past-refused": PastRefused, "no-timeout": NoTimeout, "no-deadline": NoDeadline, "no-backoff": NoBackoff,
    "slot": Slot, "log": Log, "no-barrier": NoBarrier,
}
run(MISTAKES[sys.argv[1]]())
