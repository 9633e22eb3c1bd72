//! Which drills break without which protection.

/// What is different, as options of `demo drill`, and the drills that break then: the table of `docs/drills.md`.
pub static WITHOUT: [(&str, &[&str]); 31] = [
    (
        "--variant dual-write",
        &[
            "broker-kill",
            "servers-killed",
            "broker-freeze",
            "broker-alarm",
            "broker-password",
            "network-narrow",
            "order-killed-after-commit",
            "same-key-storm",
            "broker-rolling-upgrade",
        ],
    ),
    (
        "--sabotage short-memory",
        &[
            "ack-lost",
            "consumer-killed-after-commit",
            "copies-reordered",
            "same-id-other-body",
            "consumer-behind",
            "replayed-twice",
        ],
    ),
    (
        "--variant publish-then-commit",
        &[
            "database-kill",
            "database-freeze",
            "sessions-terminated",
            "pool-exhausted",
            "order-killed-before-commit",
        ],
    ),
    (
        "--sabotage confirms-ignored",
        &[
            "queue-stuck",
            "connections-closed",
            "one-way-black-hole",
            "broker-unreachable-for-one",
            "broker-node-cut-off",
        ],
    ),
    (
        "--sabotage ack-before-commit",
        &[
            "database-unreachable-for-one",
            "saga",
            "consumer-killed-before-commit",
            "services-terminated",
            "partition-owner-killed",
            "partitions-changed",
            "release-rolled",
            "instances-mixed-faults",
        ],
    ),
    ("--sabotage new-id-per-attempt", &["confirm-lost", "relay-killed-after-confirm", "relay-frozen"]),
    (
        "--sabotage mark-before-confirm",
        &["broker-kill", "scale-out-and-in", "broker-leader-killed", "broker-majority-lost"],
    ),
    ("--sabotage nack-taken-for-confirm", &["queue-full"]),
    ("--sabotage unroutable-ignored", &["bindings-deleted", "exchange-deleted"]),
    (
        "--sabotage charge-without-key",
        &["billing-killed-after-charge", "provider-faults", "consumer-restored"],
    ),
    ("--sabotage skip-locked-on-rows", &["scale-out-and-in", "instances-mixed-faults"]),
    ("--sabotage unconsumed-dropped", &["consumer-killed-after-commit"]),
    ("--sabotage cursor-over-seq", &["network-slow"]),
    ("--sabotage new-key-per-attempt", &["commit-answer-lost"]),
    ("--sabotage refusals-back-off", &["unroutable-burst"]),
    ("--sabotage failed-marks-ignored", &["marks-fail"]),
    ("--sabotage hanging-commits-ignored", &["commits-hang", "standby-lost"]),
    ("--sabotage standby-not-awaited", &["sync-wait-cancelled", "sync-primary-restarted"]),
    ("--sabotage lost-slot-renewed", &["log-slot-lost", "log-failover"]),
    ("--sabotage fsync-off", &["power-lost"]),
    ("--sabotage broker-fsync-off", &["power-lost"]),
    ("--variant notify-in-transaction", &["commit-contention"]),
    ("--set ORDERS_ANSWER_WITHIN=3s --outage 20s", &["consumer-frozen"]),
    ("--sabotage cancel-ignored", &["consumer-cancelled"]),
    ("--set ORDERS_RELAY_POLL=1h --set ORDERS_RELAY_FULL_SCAN=1h", &["no-wake-up"]),
    ("--set ORDERS_ANSWER_WITHIN=3s", &["provider-away"]),
    ("--variant cancellable-begin", &["hang-up-storm"]),
    ("--sabotage poison-never-set-aside", &["poison"]),
    ("--sabotage age-by-own-clock", &["clocks-wrong"]),
    ("--sabotage limit-by-time-alone", &["outage-beyond-the-limit"]),
    ("--set ORDERS_MAX_WAIT=1h --set ORDERS_MAX_REQUESTS=1000", &["overload"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_same_table() {
        let page = include_str!("../../../../docs/drills.md");
        for (options, drills) in &WITHOUT {
            let row = format!("| `{options}` | `{}` |\n", drills.join("`, `"));
            assert!(page.contains(&row), "missing in docs/drills.md: {row}");
        }
    }
}
