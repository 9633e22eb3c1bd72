<?php
/* A message relay: publishes the committed events of an outbox, each at least once, and in order within an aggregate.
A step is one transaction: lock, claim, publish with confirms, mark. A failure ends the process, and PostgreSQL rolls back:
what was not marked is published again by the next process, which a supervisor starts. So SIGTERM may end it anywhere. */
declare(strict_types=1);

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPProtocolChannelException;
use PhpAmqpLib\Message\AMQPMessage;

require 'PhpAmqpLib/autoload.php'; // of Debian's package; with Composer it is vendor/autoload.php

final class Relay
{
    // By state, never by position: one may commit after later ones were published.
    private const CLAIM = <<<'SQL'
        select event_id, aggregate_id, routing_key, payload from outbox event
        where published_at is null and available_at <= statement_timestamp()
          and not exists (select from outbox older  -- a refused event holds back the later ones of its aggregate
                          where older.aggregate_id = event.aggregate_id and older.seq < event.seq
                            and older.published_at is null and older.available_at > statement_timestamp())
        order by seq limit 100
        SQL;
    private const MARK = 'update outbox set published_at = clock_timestamp() where event_id = ?';
    private const REFUSE = <<<'SQL'
        update outbox set attempts = least(attempts + 1, 10), available_at = clock_timestamp()
            + random() * least(60, 2 ^ attempts) * interval '1 second' where event_id = ?
        SQL;

    private PDO $database, $barrier;
    private AMQPStreamConnection $broker;
    private AMQPChannel $channel;
    private bool $refused;

    public function __construct()
    {
        [$this->database, $this->barrier] = [$this->connect(), $this->connect()];
        $url = array_map('rawurldecode', parse_url(getenv('AMQP_URL')));
        $vhost = substr($url['path'], 1);
        $this->broker = new AMQPStreamConnection($url['host'], $url['port'], $url['user'], $url['pass'], $vhost);
        $this->openChannel();
    }

    private function connect(): PDO
    {
        $url = array_map('rawurldecode', parse_url(getenv('DATABASE_URL')));
        $name = substr($url['path'], 1);
        // Frozen inside a transaction, the relay holds its lock no longer than this.
        $limit = "options='-c idle_in_transaction_session_timeout=10s'";
        return new PDO("pgsql:host=$url[host];port=$url[port];dbname=$name;$limit", $url['user'], $url['pass']);
    }

    private function openChannel(): void
    {
        $this->channel = $this->broker->channel();
        $this->channel->confirm_select();
        $refuse = fn () => $this->refused = true;
        $this->channel->set_nack_handler($refuse);
        $this->channel->set_return_listener($refuse);
    }

    /** Returns whether there was a batch. */
    public function step(): bool
    {
        $this->database->beginTransaction();
        [$events, $refused] = [$this->lock() ? $this->claim() : [], []];
        foreach ($events as $event) {
            if (isset($refused[$event->aggregate_id])) {
                continue; // nothing later of this aggregate in this step
            }
            $published = $this->publish($event);
            if (!$published) {
                $refused[$event->aggregate_id] = true;
            }
            $this->database->prepare($published ? self::MARK : self::REFUSE)->execute([$event->event_id]);
        }
        $this->database->commit();
        return $events !== [];
    }

    private function lock(): bool // one instance at a time: two would publish an aggregate's events side by side
    {
        return $this->database->query('select pg_try_advisory_xact_lock(1)')->fetchColumn();
    }

    private function claim(): array
    {
        $events = $this->database->query(self::CLAIM)->fetchAll(PDO::FETCH_OBJ);
        if ($events !== []) { // what was read may be here only: this commit ends when the standby has it, if there is one
            $this->barrier->query("select pg_logical_emit_message(true, 'relay', '')");
        }
        return $events;
    }

    /** Returns whether the broker has taken the event. False: it refuses this one, and may take others. */
    private function publish(object $event): bool
    {
        $properties = ['message_id' => $event->event_id, 'delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT];
        $message = new AMQPMessage($event->payload, $properties);
        $this->refused = false;
        pcntl_alarm(15);
        try { // mandatory: the broker returns what no queue wants, before the confirm
            $this->channel->basic_publish($message, getenv('EXCHANGE'), $event->routing_key, mandatory: true);
            $this->channel->wait_for_pending_acks_returns();
        } catch (AMQPProtocolChannelException) { // the event is too large, for example
            $this->openChannel();
            return false;
        }
        return !$this->refused;
    }
}

pcntl_alarm(15); // ends the process if it makes no progress: the broker or the database may fall silent
$relay = new Relay();
echo "RELAYING\n";
for (;; pcntl_alarm(15)) {
    $relay->step() || usleep(100_000);
}
