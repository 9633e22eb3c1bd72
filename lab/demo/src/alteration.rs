//! How a drill's system differs from the services as they are.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use flaws::{ALL, Flaw, LeftOut};

use crate::lab::Setup;

/// One difference, so that a verdict that changes has one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Alteration {
    /// The services as they are.
    #[default]
    None,
    /// One protection is left out.
    Flaw(Flaw),
    /// Settings of the services have these values, for example `("ORDERS_RELAY_POLL", "1h")`.
    Settings(Vec<(String, String)>),
}

impl Alteration {
    /// For directories and tables. `None`: nothing differs.
    pub(crate) fn name(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Flaw(flaw) => Some(flaw.name().to_owned()),
            Self::Settings(settings) => Some(equations(settings).join(",")),
        }
    }

    /// The options on the command line of `demo drill`.
    pub(crate) fn options(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Flaw(flaw) if is_variant(*flaw) => format!(" --variant {}", flaw.name()),
            Self::Flaw(flaw) => format!(" --sabotage {}", flaw.name()),
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
                let how = if is_variant(*flaw) {
                    format!("The variant {} replaces the order service", row.name)
                } else {
                    format!("Lab programs run without a protection ({})", row.name)
                };
                Some(format!("{how}: {}", row.description))
            }
            Self::Settings(settings) => Some(format!("Settings differ: {}", equations(settings).join(", "))),
        }
    }

    /// The setup with the difference.
    pub(crate) fn apply(&self, mut setup: Setup) -> Setup {
        match self {
            Self::None => setup,
            Self::Flaw(flaw) => setup.with_flaw(*flaw),
            Self::Settings(settings) => {
                setup.settings.extend(settings.iter().cloned());
                setup
            }
        }
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

/// Parses the name of a flaw that lab programs or settings have.
pub(crate) fn sabotage_name() -> impl TypedValueParser<Value = Flaw> {
    flaw(|left_out| matches!(left_out, LeftOut::Part | LeftOut::Settings(_)))
}

fn flaw(is_meant: fn(LeftOut) -> bool) -> impl TypedValueParser<Value = Flaw> {
    let rows = ALL.iter().filter(move |row| is_meant(row.left_out));
    PossibleValuesParser::new(rows.map(|row| PossibleValue::new(row.name).help(row.description)))
        .try_map(|name| Flaw::named(&name).ok_or("there is no such flaw"))
}
