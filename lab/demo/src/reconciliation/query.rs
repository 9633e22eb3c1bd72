use flaws::Flaw;
use uuid::Uuid;

/// Returns the query, with the acknowledged ids in it. `variant` replaces the order service, if there is one.
pub fn query(acknowledged: &[Uuid], variant: Option<Flaw>) -> String {
    let no_outbox = variant.is_some_and(|variant| !variant.has_outbox());
    let deletes_events = variant.is_some_and(Flaw::deletes_events);
    // The ids are part of the text and not a parameter, because with containers the query goes through `psql`. A `Uuid`
    // prints as hexadecimal digits and dashes only.
    let ids: Vec<String> = acknowledged.iter().map(Uuid::to_string).collect();
    include_str!("reconciliation.sql")
        .replacen("ACKNOWLEDGED", &format!("'{{{}}}'::uuid[]", ids.join(",")), 1)
        .replacen("NO_OUTBOX", &no_outbox.to_string(), 1)
        .replacen("DELETES_EVENTS", &deletes_events.to_string(), 1)
}
