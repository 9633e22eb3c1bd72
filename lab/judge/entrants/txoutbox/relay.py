"""The adapter of PyPI's txoutbox: its relay calls `publish` for each message, as in its README.

The glue publishes with aio-pika, persistent, mandatory and confirmed. With the argument `set-up` it creates the table.
"""

import asyncio
import os
import sys
from datetime import timedelta

import aio_pika
import asyncpg
from txoutbox import OutboxMessage, Relay, RelayConfig
from txoutbox.adapters.postgres import PostgresStorage


async def main() -> None:
    pool = await asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=1, max_size=4)
    outbox = PostgresStorage(pool, notify_channel="outbox")
    if sys.argv[1:] == ["set-up"]:
        await outbox.create_schema()
        return
    broker = await aio_pika.connect_robust(os.environ["AMQP_URL"])
    # Each publish on a robust connection's channel waits for its confirm, and fails for a message that is returned.
    channel = await broker.channel(publisher_confirms=True, on_return_raises=True)
    exchange = await channel.get_exchange(os.environ["EXCHANGE"], ensure=False)

    async def publish(message: OutboxMessage) -> None:
        body = aio_pika.Message(message.payload, message_id=message.headers["message_id"],
                                delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await exchange.publish(body, message.topic, mandatory=True)

    # The lease is longer than the longest round (5 times one second), and shorter than its default of a minute, so that
    # another instance takes over while the judge waits.
    config = RelayConfig(batch_size=int(os.environ.get("BATCH", "50")),
                         concurrency=int(os.environ.get("CONCURRENCY", "10")),
                         lease=timedelta(seconds=10), publish_timeout=1.0, poll_max=1.0)
    relay = Relay(outbox, publish, config=config)
    await outbox.listen(relay.wake)
    print("RELAYING", flush=True)
    await relay.run(handle_signals=True)


asyncio.run(main())
