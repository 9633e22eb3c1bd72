//! The faults, and the alerts that each fires.

use std::time::Duration;

use fault_proxy::{Direction, Effect};

use crate::fault::Fault;
use crate::part::BROKER;

/// Faults, and the alerts that they fire.
pub(crate) struct Case {
    /// In words: what is done.
    pub(crate) what: &'static str,
    pub(crate) alerts: &'static [Expected],
    /// Injected in this order, and repaired in the opposite one.
    pub(crate) faults: &'static [Fault<'static>],
}

/// An alert that a fault fires.
pub(crate) struct Expected {
    pub(crate) alert: &'static str,
    /// How many seconds after the fault its expression becomes true, at sixty orders a second. Its delay (`for`) follows.
    pub(crate) true_after: u64,
    pub(crate) inhibited: bool,
}

const fn fires(alert: &'static str, true_after: u64) -> Expected {
    Expected { alert, true_after, inhibited: false }
}

/// Another alert of the case explains this one: Alertmanager shows it, and sends it to nobody.
const fn follows(alert: &'static str, true_after: u64) -> Expected {
    Expected { alert, true_after, inhibited: true }
}

/// In an order in which no alert of a case is still firing from an earlier one.
pub(crate) const CASES: [Case; 13] = [
    Case {
        what: "a message that is no event is in inventory's queue, and a dead letter that cannot be saved in billing's",
        alerts: &[fires("MessageSetAside", 5), fires("DeadLettersNotSaved", 5)],
        faults: &[Fault::BadMessages],
    },
    Case {
        what: "the payment provider is killed",
        alerts: &[fires("PaymentsWait", 60), fires("OrdersTimedOut", 180)],
        faults: &[Fault::Kill("provider")],
    },
    Case {
        what: "a session locks the table inventory.reservations",
        alerts: &[fires("ConsumerStalled", 10), fires("QueueGrows", 60)],
        faults: &[Fault::Lock("inventory.reservations")],
    },
    // For the dashboard.
    Case {
        what: "billing's queue is full, and fifty published events come again",
        alerts: &[],
        faults: &[Fault::Lock("billing.payments"), Fault::FullQueue("billing"), PUBLISHED_AGAIN],
    },
    Case {
        what: "each byte between orders and PostgreSQL takes 350 ms each way",
        alerts: &[fires("ObjectiveBurnsFast", 30), fires("ObjectiveBurns", 30)],
        faults: &[Fault::network(
            "slowed the database of orders",
            &["orders-database"],
            Effect::Delay(Duration::from_millis(350)),
            Direction::Both,
        )],
    },
    // Not by a slow network: with a slow database hardly an order is accepted, and a relay without events makes no steps;
    // with a slow broker a relay that has lost its connection does not get another one in time, and makes none either.
    Case {
        what: "each time that the relay of orders marks events, PostgreSQL takes 2.5 s",
        alerts: &[fires("RelayStepsSlow", 60)],
        faults: &[SLOW_MARKS],
    },
    Case {
        what: "a session locks the table orders.orders",
        alerts: &[fires("ObjectiveBurnsFast", 30)],
        faults: &[Fault::Lock("orders.orders")],
    },
    Case {
        what: "nothing arrives between billing and PostgreSQL any more",
        alerts: &[fires("DatabaseDown", 10), follows("MetricUnknown", 10)],
        faults: &[Fault::network(
            "hid the database of billing",
            &["billing-database"],
            Effect::BlackHole,
            Direction::Both,
        )],
    },
    Case {
        what: "inventory is killed",
        alerts: &[fires("ServiceAbsent", 5), follows("ServiceDown", 5), follows("MetricAbsent", 10)],
        faults: &[Fault::Kill("inventory")],
    },
    Case {
        what: "RabbitMQ is killed",
        alerts: &[
            fires("BrokerDown", 10),
            follows("BrokerDisconnected", 10),
            follows("NothingIsPublished", 65),
            follows("OutboxOldestPendingTooOld", 35),
            follows("OutboxBacklogGrows", 60),
            follows("OrderOpenTooLong", 120),
        ],
        faults: &[Fault::Kill(BROKER)],
    },
    Case {
        what: "one of two order services is killed, and an event is parked, as after thirteen refusals",
        alerts: &[fires("ServiceDown", 5), fires("EventParked", 5)],
        faults: &[Fault::Kill("orders-2"), PARKED_EVENT],
    },
    Case {
        what: "1,100 events wait behind a dead letter of orders",
        alerts: &[fires("DeadLettersHoldBack", 5)],
        faults: &[EVENTS_BEHIND],
    },
    Case {
        what: "every commit waits for a standby that does not exist",
        alerts: &[fires("CommitsHang", 5)],
        faults: &[Fault::HangCommits],
    },
];

/// One more is refused by a queue that is full.
const PUBLISHED_AGAIN: Fault<'_> = Fault::Statements {
    what: "published fifty events again",
    begin: "update outbox set published_at = null
            where seq in (select seq from outbox where published_at is not null order by seq desc limit 50);
            select outbox_wake()",
    end: "",
};

const SLOW_MARKS: Fault<'_> = Fault::Statements {
    what: "slowed the marks of orders",
    begin: "create function slow_mark() returns trigger language plpgsql as $$
            begin
                perform pg_sleep(2.5);
                return null;
            end $$;
            create trigger slow_mark before update on outbox
                for each statement execute function slow_mark()",
    end: "drop trigger slow_mark on outbox",
};

const EVENTS_BEHIND: Fault<'_> = Fault::Statements {
    what: "set 1,100 events aside",
    begin: "insert into dead_letters (queue, message_id, reason, detail, headers, routing_key, body)
            select 'orders.events', number::text, 'behind', 'watch', '{}', '', '' from generate_series(1, 1100) as number",
    end: "delete from dead_letters where detail = 'watch'",
};

/// By SQL, because thirteen refusals take ten minutes.
const PARKED_EVENT: Fault<'_> = Fault::Statements {
    what: "parked an event",
    begin: "update outbox set published_at = null, parked_at = now(), attempts = 13
            where seq = (select max(seq) from outbox where published_at is not null)",
    end: "update outbox set parked_at = null, attempts = 0 where parked_at is not null",
};
