//! How a drill's system differs from the services as they are.

use crate::lab::Setup;
use crate::variant::Variant;

/// One difference, so that a verdict that changes has one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Alteration {
    /// The services as they are.
    #[default]
    None,
    /// A variant replaces the order service.
    Variant(Variant),
    /// Lab programs leave out the protection of this name.
    Sabotage(String),
    /// Settings of the services have these values, such as `("ORDERS_RELAY_POLL", "1h")`.
    Settings(Vec<(String, String)>),
}

impl Alteration {
    /// For directories and tables. `None`: nothing differs.
    pub(crate) fn name(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Variant(variant) => Some(variant.name().to_owned()),
            Self::Sabotage(name) => Some(name.clone()),
            Self::Settings(settings) => Some(equations(settings).join(",")),
        }
    }

    /// The options on the command line of `demo drill`.
    pub(crate) fn options(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Variant(variant) => format!(" --variant {}", variant.name()),
            Self::Sabotage(name) => format!(" --sabotage {name}"),
            Self::Settings(settings) => {
                equations(settings).iter().map(|equation| format!(" --set {equation}")).collect()
            }
        }
    }

    /// For the head of a drill.
    pub(crate) fn description(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Variant(variant) => Some(format!(
                "The variant {} replaces the order service: {}",
                variant.name(),
                variant.description()
            )),
            Self::Sabotage(name) => Some(format!("Lab programs run without a protection: {name}")),
            Self::Settings(settings) => Some(format!("Settings differ: {}", equations(settings).join(", "))),
        }
    }

    /// The setup with the difference.
    pub(crate) fn apply(&self, mut setup: Setup) -> Setup {
        match self {
            Self::None => setup,
            Self::Variant(variant) => Setup { variant: Some(*variant), ..setup },
            Self::Sabotage(name) => {
                setup.lab = true;
                setup.with("SABOTAGE", name.as_str())
            }
            Self::Settings(settings) => {
                setup.settings.extend(settings.iter().cloned());
                setup
            }
        }
    }
}

fn equations(settings: &[(String, String)]) -> Vec<String> {
    settings.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// Parses `NAME=VALUE`.
pub(crate) fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a setting and its value, such as ORDERS_RELAY_POLL=1h".to_owned()),
    }
}
