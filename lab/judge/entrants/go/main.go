// A message relay: publishes the committed events of an outbox, each at least once, and in order within an aggregate.
// A step is one transaction: lock, claim, publish with confirms, mark. A failure ends the process, and PostgreSQL rolls back:
// what was not marked is published again by the next process, which a supervisor starts. So SIGTERM may end it anywhere.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v4"
	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	tryLock = "select where pg_try_advisory_xact_lock(1)" // one instance: two would publish an aggregate's events side by side
	claim   = `select event_id::text, aggregate_id::text, routing_key, payload::text from outbox event
		where published_at is null and available_at <= statement_timestamp()
		  and not exists (select from outbox older  -- a refused event holds back the later ones of its aggregate
		                  where older.aggregate_id = event.aggregate_id and older.seq < event.seq
		                    and older.published_at is null and older.available_at > statement_timestamp())
		order by seq limit 100`  // by state, never by position: one may commit after later ones were published
	mark   = "update outbox set published_at = clock_timestamp() where event_id = $1"
	refuse = `update outbox set attempts = least(attempts + 1, 10), available_at = clock_timestamp()
		+ random() * least(60, 2 ^ attempts) * interval '1 second' where event_id = $1`
	deadline = 15 * time.Second // of each answer: a server may fall silent while the connection stays open
)

var ctx = context.Background() // without a deadline, because the watchdog also ends waits that take no context
var watchdog = time.AfterFunc(deadline, func() { log.Fatal("no answer for ", deadline) })

type event struct{ id, aggregate, routingKey, payload string }

type relay struct {
	database, barrier *pgx.Conn
	broker            *amqp.Connection
	channel           *amqp.Channel
	confirms          chan amqp.Confirmation
	returns           chan amqp.Return
}

func (r *relay) openChannel() {
	r.channel = must(r.broker.Channel())
	r.confirms = r.channel.NotifyPublish(make(chan amqp.Confirmation, 1))
	r.returns = r.channel.NotifyReturn(make(chan amqp.Return, 1))
	check(r.channel.Confirm(false))
}

func (r *relay) step() int {
	tx := must(r.database.Begin(ctx))
	events, refused := r.claim(tx), map[string]bool{}
	for _, e := range events {
		if refused[e.aggregate] {
			continue // nothing later of this aggregate in this step
		}
		update := mark
		if !r.publish(e) {
			update, refused[e.aggregate] = refuse, true
		}
		must(tx.Exec(ctx, update, e.id))
	}
	check(tx.Commit(ctx))
	return len(events)
}

func (r *relay) claim(tx pgx.Tx) (events []event) {
	if must(tx.Exec(ctx, tryLock)).RowsAffected() == 0 {
		return nil
	}
	rows := must(tx.Query(ctx, claim))
	for rows.Next() {
		var e event
		check(rows.Scan(&e.id, &e.aggregate, &e.routingKey, &e.payload))
		events = append(events, e)
	}
	check(rows.Err())
	if len(events) > 0 { // What was read may be here only: this commit ends when the standby has it, if there is one.
		must(r.barrier.Exec(ctx, "select pg_logical_emit_message(true, 'relay', '')"))
	}
	return events
}

// publish returns whether the broker has taken the event. False: it refuses this one, and may take others.
func (r *relay) publish(e event) bool {
	message := amqp.Publishing{MessageId: e.id, DeliveryMode: amqp.Persistent, Body: []byte(e.payload)}
	check(r.channel.PublishWithContext(ctx, os.Getenv("EXCHANGE"), e.routingKey, true, false, message))
	confirm := <-r.confirms // no Ack if the channel is closed
	for len(r.returns) > 0 {
		<-r.returns // No queue wants it. This comes before the confirm, and the client keeps the order.
		confirm.Ack = false
	}
	if r.channel.IsClosed() { // by the broker: the event is too large, for example
		r.openChannel()
	}
	return confirm.Ack
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
	watchdog.Reset(deadline) // for the next answer
}

func must[T any](value T, err error) T { check(err); return value }

func main() {
	database, barrier := must(pgx.Connect(ctx, os.Getenv("DATABASE_URL"))), must(pgx.Connect(ctx, os.Getenv("DATABASE_URL")))
	must(database.Exec(ctx, "set idle_in_transaction_session_timeout = '10s'")) // Frozen, it holds its lock no longer.
	r := relay{database: database, barrier: barrier, broker: must(amqp.Dial(os.Getenv("AMQP_URL")))}
	r.openChannel()
	fmt.Println("RELAYING")
	for {
		if r.step() == 0 {
			time.Sleep(100 * time.Millisecond)
		}
	}
}
