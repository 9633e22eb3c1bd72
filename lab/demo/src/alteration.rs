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
    /// A setting of a service has this value.
    Setting { name: String, value: String },
}

impl Alteration {
    /// For directories and tables. `None`: nothing differs.
    pub(crate) fn name(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Variant(variant) => Some(variant.name().to_owned()),
            Self::Sabotage(name) => Some(name.clone()),
            Self::Setting { name, value } => Some(format!("{name}={value}")),
        }
    }

    /// The option on the command line of `demo drill`.
    pub(crate) fn option(&self) -> String {
        let option = match self {
            Self::None => return String::new(),
            Self::Variant(_) => "variant",
            Self::Sabotage(_) => "sabotage",
            Self::Setting { .. } => "set",
        };
        format!("--{option} {}", self.name().unwrap_or_default())
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
            Self::Setting { name, value } => Some(format!("A setting differs: {name}={value}")),
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
            Self::Setting { name, value } => setup.with(name, value.as_str()),
        }
    }
}

/// Parses `NAME=VALUE`.
pub(crate) fn setting(text: &str) -> Result<Alteration, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            Ok(Alteration::Setting { name: name.to_owned(), value: value.to_owned() })
        }
        _ => Err("a setting and its value, such as ORDERS_RELAY_POLL=1h".to_owned()),
    }
}
