//! Which drills break with which flaw. Those that break without a protection are in `lab/without`.

/// What is different, as options of `demo drill`, and the drills that break then: the table of `docs/drills.md`.
pub static WITHOUT: [(&str, &[&str]); 23] = [
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
            "database-upgraded",
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
            "credentials-rotated",
        ],
    ),
    ("--sabotage new-id-per-attempt", &["confirm-lost", "relay-killed-after-confirm", "relay-frozen"]),
    (
        "--sabotage mark-before-confirm",
        &["broker-kill", "scale-out-and-in", "broker-leader-killed", "broker-majority-lost"],
    ),
    ("--sabotage nack-taken-for-confirm", &["queue-full"]),
    ("--sabotage unroutable-ignored", &["bindings-deleted", "exchange-deleted"]),
    ("--sabotage skip-locked-on-rows", &["scale-out-and-in", "instances-mixed-faults"]),
    ("--sabotage unconsumed-dropped", &["consumer-killed-after-commit"]),
    ("--sabotage cursor-over-seq", &["network-slow"]),
    ("--sabotage refusals-back-off", &["unroutable-burst"]),
    ("--sabotage fsync-off", &["power-lost"]),
    ("--sabotage broker-fsync-off", &["power-lost"]),
    ("--sabotage disk-limit-off", &["broker-disk-full"]),
    ("--variant notify-in-transaction", &["commit-contention"]),
    ("--set ORDERS_ANSWER_WITHIN=3s --outage 20s", &["consumer-frozen"]),
    ("--set ORDERS_RELAY_POLL=1h --set ORDERS_RELAY_FULL_SCAN=1h", &["no-wake-up"]),
    ("--set ORDERS_ANSWER_WITHIN=3s", &["provider-away"]),
    ("--variant cancellable-begin", &["hang-up-storm"]),
    ("--sabotage age-by-own-clock", &["clocks-wrong"]),
    ("--set ORDERS_MAX_WAIT=1h --set ORDERS_MAX_REQUESTS=1000", &["overload"]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::without::Protection;

    #[test]
    fn the_page_has_the_same_table() {
        let page = include_str!("../../../../docs/drills.md");
        for (options, drills) in &WITHOUT {
            let row = format!("| `{options}` | `{}` |\n", drills.join("`, `"));
            assert!(page.contains(&row), "missing in docs/drills.md: {row}");
        }
        for protection in Protection::all().unwrap() {
            let drill = |command: String| Some(command.strip_prefix("drill ")?.split_once(' ')?.0.to_owned());
            let drills: Vec<_> = protection.commands().filter_map(drill).collect();
            let row = format!("| `--without {}` | `{}` |\n", protection.name, drills.join("`, `"));
            assert!(drills.is_empty() || page.contains(&row), "missing in docs/drills.md: {row}");
        }
    }
}
