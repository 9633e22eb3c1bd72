//! `docs/settings.md` lists each setting of the services with its default and its meaning. It is generated:
//! `UPDATE_DOCS=1 cargo test -p demo --test settings_page` writes it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and end")]

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use clap::{Arg, Command};
use service::settings::{NoSettings, Settings};

const HEAD: &str = "# Settings

Reference: all settings of the three services. Each is an environment variable, or an option of the program with the same
words: `ORDERS_RELAY_POLL=5s`, or `orders --relay-poll 5s`. A service reads them once, at its start. A missing, invalid or
misspelled one ends it with one line and exit code 78. A **secret** is no option, because `ps` shows options. It may be in a
file: `ORDERS_ADMIN_TOKEN_FILE=/run/secrets/token`.

This page is generated from the programs: `UPDATE_DOCS=1 cargo test -p demo --test settings_page`.
";

/// The name without the service's prefix, such as `RELAY_POLL`.
fn name(argument: &Arg) -> Option<String> {
    let is_setting = argument.get_env().is_some();
    is_setting.then(|| argument.get_long().unwrap().replace('-', "_").to_uppercase())
}

fn row(argument: &Arg, variable: &str) -> String {
    let defaults = argument.get_default_values();
    let default = match defaults.first().map(|value| value.to_str().unwrap()) {
        Some("") => "none".to_owned(),
        // The ports of the three services follow each other.
        Some("127.0.0.1:8080") => "`127.0.0.1:8080`, 8081, 8082".to_owned(),
        Some(value) => format!("`{value}`"),
        None if argument.is_required_set() => "**required**".to_owned(),
        None => "none".to_owned(),
    };
    let help = argument.get_long_help().or(argument.get_help()).unwrap().to_string();
    let help = if argument.is_hide_env_values_set() { format!("**Secret.** {help}") } else { help };
    format!("| `{variable}` | {default} | {} |\n", help.replace('\n', " ").replace('|', "\\|"))
}

#[test]
fn the_page_lists_every_setting() {
    let services: [(&str, Command); 3] = [
        ("ORDERS_", service::command::<orders::Settings>(&orders::SERVICE)),
        ("INVENTORY_", service::command::<Settings<NoSettings>>(&inventory::SERVICE)),
        ("BILLING_", service::command::<Settings<billing::ProviderSettings>>(&billing::SERVICE)),
    ];
    let names = |command: &Command| command.get_arguments().filter_map(name).collect::<BTreeSet<_>>();
    let all = services.each_ref().map(|(_, command)| names(command));
    let is_shared = |name: &String| all.iter().all(|names| names.contains(name));

    let mut page = HEAD.to_owned();
    let mut section = |title: &str, command: &Command, prefix: &str, chosen: &dyn Fn(&String) -> bool| {
        if !command.get_arguments().filter_map(name).any(|name| chosen(&name)) {
            return;
        }
        write!(page, "\n## {title}\n\n| variable | default | |\n|---|---|---|\n").unwrap();
        for argument in command.get_arguments() {
            if let Some(name) = name(argument).filter(chosen) {
                page.push_str(&row(argument, &format!("{prefix}{name}")));
            }
        }
    };
    section("Every service", &services[0].1, "…_", &is_shared);
    for (prefix, command) in &services {
        let title = format!("Only {}", command.get_name());
        section(&title, command, prefix, &|name| !is_shared(name));
    }

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    assert!(
        fs::read_to_string(path).unwrap() == page,
        "docs/settings.md is not what the programs say: renew it"
    );
}
