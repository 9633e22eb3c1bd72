//! What happens between the services and their servers. A proxy of the lab carries each connection.

use std::num::NonZeroU32;
use std::time::Duration;

use fault_proxy::{Direction, Effect};

use super::at_end::copies_were_dropped;
use super::drill::{Drill, Group, Subject};
use super::felt::{
    Felt,
    Figure::{Difference, Metric, Resets},
    Limit::{self, Count, Seconds},
};
use crate::fault::{Fault, LOST_ACKS, ROUTES};

pub(super) static DRILLS: [Drill; 6] = [
    Drill {
        name: "confirm-lost",
        teaches: "Between the broker's confirm and the relay's knowledge of it lies a network. At least once is all \
                  there is.",
        question: "The broker has the message, and the connection is reset before its confirm arrives. How often is it \
                   sent?",
        claim: "Events whose confirm was lost are published again under the same ids, and the consumers drop the \
                copies.",
        faults: &[Fault::LoseAcks("orders", Direction::TowardClient, "confirm")],
        felt: &[
            Felt::Grows(ALL_RESETS, Resets("orders-broker"), "{} connections were reset at a confirm"),
            Felt::Accepted,
        ],
        at_end: &[copies_were_dropped],
        ..ROW
    },
    Drill {
        name: "ack-lost",
        teaches: "A consumer commits first and acknowledges then. What it could not acknowledge is delivered again.",
        question: "Inventory has committed, and its connection is reset before its acknowledgement arrives. What is \
                   delivered?",
        claim: "Messages whose acknowledgement was lost are delivered again, recognized, and change nothing.",
        faults: &[Fault::LoseAcks("inventory", Direction::TowardUpstream, "acknowledgement")],
        felt: &[
            Felt::Grows(
                ALL_RESETS,
                Resets("inventory-broker"),
                "{} connections were reset at an acknowledgement",
            ),
            Felt::Accepted,
        ],
        at_end: &[copies_were_dropped],
        ..ROW
    },
    Drill {
        name: "one-way-black-hole",
        teaches: "A half-open connection is the worst one: everything that is sent arrives, and no answer comes back.",
        question: "The relay's messages reach RabbitMQ, and nothing comes back. What does the relay do with them?",
        claim: "While no confirm comes back, orders are accepted and nothing counts as published. Copies change \
                nothing.",
        outage: Duration::from_secs(15),
        faults: &[Fault::network(
            "RabbitMQ hears orders; orders hears nothing",
            &["orders-broker"],
            Effect::BlackHole,
            Direction::TowardClient,
        )],
        felt: &[Felt::Accepted, Felt::Disconnected("orders", "publisher")],
        ..ROW
    },
    Drill {
        name: "broker-unreachable-for-one",
        teaches: "A queue decouples: a consumer that cannot reach the broker delays itself and no other service.",
        question: "Billing alone cannot reach RabbitMQ. What can a customer do meanwhile, and what does inventory do?",
        claim: "While billing cannot reach RabbitMQ, orders are accepted and inventory goes on. Billing catches up by \
                itself.",
        faults: &[Fault::network(
            "cut all connections of billing to RabbitMQ, and refuse new ones",
            &["billing-broker"],
            Effect::Cut,
            Direction::Both,
        )],
        felt: &[
            Felt::Disconnected("billing", "consumer"),
            Felt::Accepted,
            Felt::Grows(
                Seconds(5.0),
                Metric("inventory", "inbox_applied_total"),
                "inventory applied {} events meanwhile",
            ),
        ],
        ..ROW
    },
    Drill {
        name: "network-slow",
        teaches: "Latency costs round trips. What is done together pays for one, whatever the distance.",
        question: "Each byte between services and servers takes 40 ms longer. At which rate does the relay fall \
                   behind?",
        claim: "With 40 ms in each direction orders are accepted, events arrive once, and no backlog is left.",
        outage: Duration::from_secs(15),
        faults: &[Fault::network(
            "each byte takes 40 ms longer, to PostgreSQL and to RabbitMQ",
            &ROUTES,
            Effect::Delay(Duration::from_millis(40)),
            Direction::Both,
        )],
        felt: &[
            Felt::Accepted,
            Felt::Grows(
                Count(10.0),
                Difference(
                    "orders",
                    "http_request_seconds_count{route=\"POST /orders\",status=\"201\"}",
                    "http_request_seconds_bucket{route=\"POST /orders\",status=\"201\",le=\"0.05\"}",
                ),
                "{} orders were answered after more than 50 ms",
            ),
        ],
        ..ROW
    },
    Drill {
        name: "network-narrow",
        teaches: "A slow link fills buffers, and then one of the parts must wait. It should not be the customer.",
        question: "The link from orders to RabbitMQ carries 8 kB a second, less than the events need. Who waits?",
        claim: "While the link to RabbitMQ is too narrow, orders are accepted, and the backlog is in the outbox.",
        outage: Duration::from_secs(15),
        faults: &[Fault::network(
            "the link from orders to RabbitMQ carries 8 kB a second",
            &["orders-broker"],
            Effect::Trickle { bytes_per_second: NonZeroU32::new(8_192).expect("not zero") },
            Direction::TowardUpstream,
        )],
        felt: &[
            Felt::Accepted,
            Felt::More(Seconds(1.0), Metric("orders", "outbox_pending"), "{} events wait in the outbox"),
        ],
        ..ROW
    },
];

const ROW: Drill = Drill { group: Group::Network, system: Subject::Proxied, ..Drill::ROW };

const ALL_RESETS: Limit = Count(LOST_ACKS as f64 - 1.0);
