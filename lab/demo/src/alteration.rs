//! How a drill's system differs from the services as they are.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use flaws::{ALL, Flaw, LeftOut};
use testbed::Setup;

/// One difference, so that a verdict that changes has one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Alteration {
    /// The services as they are.
    #[default]
    None,
    /// One protection is left out.
    Flaw(Flaw),
    /// The same, and a student must find out which: [`hidden_flaw`] of the name.
    Hidden { student: String },
    /// Settings of the services have these values, for example `("ORDERS_RELAY_POLL", "1h")`.
    Settings(Vec<(String, String)>),
}

impl Alteration {
    /// The variant that runs in such a setup, if there is one.
    pub(crate) fn of(setup: &Setup) -> Self {
        setup.variant.and_then(Flaw::named).map_or(Self::None, Self::Flaw)
    }

    /// For directories and tables. `None`: nothing differs.
    pub(crate) fn name(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Flaw(flaw) => Some(flaw.name().to_owned()),
            Self::Hidden { .. } => Some("hidden".to_owned()),
            Self::Settings(settings) => Some(equations(settings).join(",")),
        }
    }

    /// The options on the command line of `demo drill`.
    pub(crate) fn options(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Flaw(flaw) if is_variant(*flaw) => format!(" --variant {}", flaw.name()),
            Self::Flaw(flaw) => format!(" --sabotage {}", flaw.name()),
            Self::Hidden { student } => format!(" --student '{student}'"),
            Self::Settings(settings) => {
                equations(settings).iter().map(|equation| format!(" --set {equation}")).collect()
            }
        }
    }

    /// For the head of a drill.
    pub(crate) fn description(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Flaw(flaw) => {
                let row = flaw.row();
                let how = match row.left_out {
                    LeftOut::Variant => format!("The variant {} replaces the order service", row.name),
                    LeftOut::Database(_) | LeftOut::Broker(_) => {
                        format!("A server runs without a protection ({})", row.name)
                    }
                    _ => format!("Lab programs run without a protection ({})", row.name),
                };
                Some(format!("{how}: {}", row.description))
            }
            Self::Hidden { student } => Some(format!(
                "One protection is left out, chosen by the name {student}. `cargo demo answer` checks which one you think it is"
            )),
            Self::Settings(settings) => Some(format!("Settings differ: {}", equations(settings).join(", "))),
        }
    }

    /// The setup with the difference.
    pub(crate) fn apply(&self, mut setup: Setup) -> Setup {
        match self {
            Self::None => setup,
            Self::Flaw(flaw) => leave_out(setup, *flaw),
            Self::Hidden { student } => leave_out(setup, hidden_flaw(student)),
            Self::Settings(settings) => {
                setup.settings.extend(settings.iter().cloned());
                setup
            }
        }
    }
}

/// The protections that a student can be given to find. For each there is a drill that breaks without it
/// (`docs/drills.md`).
const TO_FIND: [Flaw; 10] = [
    Flaw::MarkBeforeConfirm,
    Flaw::ConfirmsIgnored,
    Flaw::UnroutableIgnored,
    Flaw::NewIdPerAttempt,
    Flaw::CursorOverSeq,
    Flaw::AckBeforeCommit,
    Flaw::ShortMemory,
    Flaw::NackTakenForConfirm,
    Flaw::SkipLockedOnRows,
    Flaw::AgeByOwnClock,
];

/// The protection that a student's system lacks: always the same one for a name. Who reads this code can compute it.
pub(crate) fn hidden_flaw(student: &str) -> Flaw {
    // FNV-1a: the same on every machine and in every release of Rust.
    let hash = student.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let flaws = u64::try_from(TO_FIND.len()).unwrap_or(1);
    TO_FIND[usize::try_from((hash >> 32) % flaws).unwrap_or(0)]
}

/// The setup with one protection left out. A flaw that exists only in memory changes nothing.
pub(crate) fn leave_out(setup: Setup, flaw: Flaw) -> Setup {
    match flaw.row().left_out {
        LeftOut::Part => Setup { lab: true, ..setup.with("SABOTAGE", flaw.name()) },
        LeftOut::Settings(settings) => {
            settings.iter().fold(setup, |setup, (name, value)| setup.with(name, *value))
        }
        LeftOut::Variant => Setup { variant: Some(flaw.name()), ..setup },
        // The servers are set up with it, before the services are started.
        LeftOut::Database(_) | LeftOut::Broker(_) | LeftOut::InMemory => setup,
    }
}

fn is_variant(flaw: Flaw) -> bool {
    flaw.row().left_out == LeftOut::Variant
}

fn equations(settings: &[(String, String)]) -> Vec<String> {
    settings.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// Parses `NAME=VALUE`.
pub(crate) fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a setting and its value, for example ORDERS_RELAY_POLL=1h".to_owned()),
    }
}

/// Parses the name of a flaw that `orders-variant` has.
pub(crate) fn variant_name() -> impl TypedValueParser<Value = Flaw> {
    flaw(|left_out| left_out == LeftOut::Variant)
}

/// Parses the name of a flaw that lab programs, settings or servers have.
pub(crate) fn sabotage_name() -> impl TypedValueParser<Value = Flaw> {
    flaw(|left_out| !matches!(left_out, LeftOut::Variant | LeftOut::InMemory))
}

fn flaw(is_meant: fn(LeftOut) -> bool) -> impl TypedValueParser<Value = Flaw> {
    let rows = ALL.iter().filter(move |row| is_meant(row.left_out));
    PossibleValuesParser::new(rows.map(|row| PossibleValue::new(row.name).help(row.description)))
        .try_map(|name| Flaw::named(&name).ok_or("there is no such flaw"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_of_a_class_give_every_flaw_and_one_name_always_the_same() {
        let found: HashSet<_> =
            (0..200).map(|number| hidden_flaw(&format!("student {number}")).name()).collect();
        assert_eq!(found.len(), TO_FIND.len(), "{found:?}");
        // Part of what a class is given: a change of it changes everybody's task.
        assert_eq!(hidden_flaw("ada"), hidden_flaw("ada"));
        assert!(
            TO_FIND.iter().all(|flaw| flaw.row().left_out == LeftOut::Part && !flaw.row().breaks.is_empty())
        );
    }

    #[test]
    fn a_hidden_flaw_is_named_nowhere() {
        let hidden = Alteration::Hidden { student: "ada".into() };
        let shown = [hidden.name().unwrap(), hidden.options(), hidden.description().unwrap()].concat();
        assert!(!shown.contains(hidden_flaw("ada").name()), "{shown}");
    }
}
