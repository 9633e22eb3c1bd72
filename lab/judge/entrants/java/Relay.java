import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.ShutdownSignalException;
import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.util.*;

/**
 * A message relay: publishes the committed events of an outbox, each at least once, and in order within an aggregate. A step
 * is one transaction: lock, claim, publish with confirms, mark. A failure ends the process, and PostgreSQL rolls back: what was
 * not marked is published again by the next process, which a supervisor starts. So SIGTERM may end it anywhere.
 */
public final class Relay {
    private static final int DEADLINE = 15; // seconds, of each wait: a server may fall silent while the connection stays open

    // By state, never by position: one may commit after later ones were published.
    private static final String CLAIM = """
            select event_id, aggregate_id, routing_key, payload::text from outbox event
            where published_at is null and available_at <= statement_timestamp()
              and not exists (select from outbox older  -- a refused event holds back the later ones of its aggregate
                              where older.aggregate_id = event.aggregate_id and older.seq < event.seq
                                and older.published_at is null and older.available_at > statement_timestamp())
            order by seq limit 100""";
    private static final String MARK = "update outbox set published_at = clock_timestamp() where event_id = ?";
    private static final String REFUSE = """
            update outbox set attempts = least(attempts + 1, 10), available_at = clock_timestamp()
                + random() * least(60, 2 ^ attempts) * interval '1 second' where event_id = ?""";

    private record Event(UUID id, UUID aggregate, String routingKey, byte[] payload) {}

    private final Connection database = connect();
    private final Connection barrier = connect();
    private final com.rabbitmq.client.Connection broker;
    private Channel channel;
    private volatile boolean returned;

    private Relay() throws Exception {
        database.setAutoCommit(false);
        var factory = new ConnectionFactory();
        factory.setUri(System.getenv("AMQP_URL"));
        factory.setRequestedHeartbeat(10);
        factory.setChannelRpcTimeout(DEADLINE * 1000);
        factory.setAutomaticRecoveryEnabled(false);
        broker = factory.newConnection();
        openChannel();
    }

    private static Connection connect() throws Exception {
        var url = URI.create(System.getenv("DATABASE_URL")); // postgres://login:password@host:port/database
        var login = url.getUserInfo().split(":", 2);
        // Frozen inside a transaction, the relay holds its lock no longer than the time-out.
        var settings = "?socketTimeout=" + DEADLINE + "&options=-c%20idle_in_transaction_session_timeout=10s";
        var address = "jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath();
        return DriverManager.getConnection(address + settings, login[0], login[1]);
    }

    private void openChannel() throws Exception {
        channel = broker.createChannel();
        channel.addReturnListener(message -> returned = true);
        channel.confirmSelect();
    }

    /** Returns whether there was a batch. */
    private boolean step() throws Exception {
        var events = claim();
        var refused = new HashSet<UUID>();
        for (var event : events) {
            if (refused.contains(event.aggregate())) continue; // nothing later of this aggregate in this step
            var published = publish(event);
            if (!published) refused.add(event.aggregate());
            try (var update = database.prepareStatement(published ? MARK : REFUSE)) {
                update.setObject(1, event.id());
                update.executeUpdate();
            }
        }
        database.commit();
        return !events.isEmpty();
    }

    private List<Event> claim() throws Exception {
        var events = new ArrayList<Event>();
        try (var statement = database.createStatement(); var wait = barrier.createStatement()) {
            // One instance at a time: two would publish an aggregate's events side by side.
            if (!statement.executeQuery("select where pg_try_advisory_xact_lock(1)").next()) return events;
            for (var row = statement.executeQuery(CLAIM); row.next(); ) {
                events.add(new Event(row.getObject(1, UUID.class), row.getObject(2, UUID.class), row.getString(3), row.getBytes(4)));
            }
            // What was read may be here only: this commit ends when the standby has it, if there is one.
            if (!events.isEmpty()) wait.execute("select pg_logical_emit_message(true, 'relay', '')");
        }
        return events;
    }

    /** Returns whether the broker has taken the event. False: it refuses this one, and may take others. */
    private boolean publish(Event event) throws Exception {
        var properties = new BasicProperties.Builder().messageId(event.id().toString()).deliveryMode(2).build(); // persistent
        returned = false;
        try {
            var mandatory = true; // the broker returns what no queue wants
            channel.basicPublish(System.getenv("EXCHANGE"), event.routingKey(), mandatory, properties, event.payload());
            return channel.waitForConfirms(DEADLINE * 1000) && !returned; // a return comes before its confirm
        } catch (ShutdownSignalException closed) {
            if (closed.isHardError()) throw closed; // the connection
            openChannel(); // the event is too large, for example
            return false;
        }
    }

    public static void main(String[] arguments) throws Exception {
        // The broker's threads would keep the process alive.
        Thread.setDefaultUncaughtExceptionHandler((thread, failure) -> { failure.printStackTrace(); System.exit(1); });
        var relay = new Relay();
        System.out.println("RELAYING");
        while (true) {
            if (!relay.step()) Thread.sleep(100);
        }
    }
}
