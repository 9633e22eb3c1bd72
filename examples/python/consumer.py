"""Another team's consumer, in Python: gives customers a point for each euro of their orders.

The shop's part of the pattern is over when the broker has the event. This is the reader's part, in any language: record the
event's id and apply its effect in one transaction, and acknowledge after the commit. DATABASE_URL and AMQP_URL say where.
"""

import json
import os

import pika
import psycopg

QUEUE = "points.events"

database = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
database.execute("create table if not exists processed_events (event_id uuid primary key)")
database.execute("create table if not exists points (customer uuid primary key, points bigint not null)")

channel = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])).channel()
# A message that cannot be applied ends this process, comes back to the next one, and after twenty tries goes into the second queue.
channel.queue_declare(f"{QUEUE}.dead", durable=True, arguments={"x-queue-type": "quorum"})
channel.queue_declare(QUEUE, durable=True, arguments={
    "x-queue-type": "quorum", "x-delivery-limit": 20,
    "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{QUEUE}.dead",
})
channel.queue_bind(QUEUE, "shop.events", "order.created")
channel.basic_qos(prefetch_count=50)
print("consuming", flush=True)

for method, _, body in channel.consume(QUEUE):
    event = json.loads(body)
    with database.transaction():
        recorded = database.execute(
            "insert into processed_events values (%s) on conflict do nothing", [event["id"]])
        if recorded.rowcount == 1:  # 0: a duplicate, which needs an acknowledgement only
            order = event["data"]
            database.execute(
                "insert into points values (%s, %s) on conflict (customer)"
                " do update set points = points.points + excluded.points",
                [order["customerId"], order["total"]["amount"] // 100])
    channel.basic_ack(method.delivery_tag)
