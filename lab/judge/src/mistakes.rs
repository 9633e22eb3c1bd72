//! The mistakes that the judge must notice: each planted in a relay that is right without it.

/// A mistake in one of the entrants.
#[derive(Debug)]
pub struct Mistake {
    /// The entrant.
    pub relay: &'static str,
    /// The value of its variable `RELAY_MISTAKE`.
    pub name: &'static str,
    /// The levels that it breaks, at least. The first is there for it.
    pub breaks: &'static [u8],
}

/// In `python`, which publishes one event at a time, under one lock; in `ours`, which has several confirms outstanding, from two
/// relays that share lanes (flaws of `lab/flaws`); and in `leasing`, which publishes outside of a transaction.
pub static MISTAKES: [Mistake; 38] = [
    python("transient", &[1]),
    python("twice", &[1]),
    python("small-only", &[1]),
    python("unordered", &[1]),
    python("deaf", &[1]),
    python("from-the-start", &[4]),
    python("mark-first", &[2, 3, 4, 5, 6]),
    python("new-id", &[2]),
    python("no-confirms", &[3, 5, 9]),
    python("skip-locked", &[4]),
    python("not-mandatory", &[5, 9]),
    python("past-refused", &[5, 12]),
    python("give-up", &[6, 5]),
    python("cursor", &[7, 5]),
    python("window", &[7]),
    python("no-timeout", &[8]),
    python("no-backoff", &[9]),
    python("slot", &[10]),
    python("log", &[7, 10]),
    python("no-barrier", &[11]),
    python("nack-is-fine", &[12]),
    python("last-confirm", &[12, 5, 9]),
    python("mark-later", &[12]),
    python("no-deadline", &[13, 14]),
    ours("mark-before-confirm", &[2]),
    ours("new-id-per-attempt", &[2]),
    ours("confirms-ignored", &[3]),
    ours("skip-locked-on-rows", &[4]),
    ours("nack-taken-for-confirm", &[12]),
    ours("unroutable-ignored", &[5]),
    ours("return-trusted-to-its-confirm", &[5]),
    ours("cursor-over-seq", &[7]),
    leasing("never-lapses", &[2, 8]),
    leasing("rows-only", &[4]),
    leasing("sent-at-claim", &[2]),
    leasing("lapse-counts", &[2]),
    leasing("past-refused", &[5]),
    leasing("no-deadline", &[14, 13]),
];

const fn python(name: &'static str, breaks: &'static [u8]) -> Mistake {
    Mistake { relay: "python", name, breaks }
}

const fn ours(name: &'static str, breaks: &'static [u8]) -> Mistake {
    Mistake { relay: "ours", name, breaks }
}

const fn leasing(name: &'static str, breaks: &'static [u8]) -> Mistake {
    Mistake { relay: "leasing", name, breaks }
}

/// The table of `docs/judge.md`: a line for each level, with the mistakes that break it.
#[cfg(test)]
fn table() -> String {
    let mut lines = vec!["| level | mistakes that break it |".to_owned(), "|---|---|".to_owned()];
    for level in 1..=u8::try_from(crate::LEVELS.len()).unwrap_or(u8::MAX) {
        let of = |relay: &str| {
            let breaks = |mistake: &&Mistake| mistake.relay == relay && mistake.breaks.contains(&level);
            let names: Vec<_> = MISTAKES.iter().filter(breaks).map(|mistake| mistake.name).collect();
            (!names.is_empty()).then(|| format!("`{relay}`: {}", names.join(", ")))
        };
        let relays: Vec<_> = ["python", "ours", "leasing"].into_iter().filter_map(of).collect();
        lines.push(format!("| {level} | {} |", relays.join("; ")));
    }
    lines.join("\n")
}

#[test]
fn the_page_has_the_table_of_mistakes() {
    let page = include_str!("../../../docs/judge.md");
    assert!(page.contains(&table()), "put this into docs/judge.md:\n\n{}", table());
    let without = (1..)
        .take(crate::LEVELS.len())
        .find(|level| !MISTAKES.iter().any(|mistake| mistake.breaks.first() == Some(level)));
    assert_eq!(without, None, "no mistake is there for this level");
}
