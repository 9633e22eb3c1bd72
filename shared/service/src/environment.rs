//! Settings: environment variables that are read once. An invalid one ends the process at start.

use std::{error::Error, ffi::OsString, fs, io::Write as _, path::Path, time::Duration};

use clap::{
    Arg, Command, FromArgMatches, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

/// `EX_CONFIG` of `sysexits.h`: a supervisor should not restart this process before a setting has changed.
const INVALID_CONFIG: i32 = 78;

/// Reads a program's settings, each from the variable named by `prefix` and the field in capitals. An invalid or missing
/// variable ends the process with one line and exit code 78.
///
/// So does an unknown one that begins with `prefix`: a misspelled variable would otherwise silently leave a default in
/// force.
pub fn load<Settings: Parser>(prefix: &str) -> Settings {
    parse_or_exit(&with_variables(Settings::command(), prefix), prefix)
}

pub(crate) fn parse_or_exit<Settings: FromArgMatches>(command: &Command, prefix: &str) -> Settings {
    if let Err(problem) = reject_unknown_variables(command, prefix, std::env::vars_os().map(|(name, _)| name))
    {
        exit_invalid_config(&problem);
    }
    let command = &with_secret_files(command).unwrap_or_else(|problem| exit_invalid_config(&problem));
    match parse(command, std::env::args_os()) {
        Ok(Ok(settings)) => settings,
        Ok(Err(problem)) => exit_invalid_config(&problem),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            error.exit()
        }
        Err(error) => exit_invalid_config(&explain(command, &error)),
    }
}

/// The command line with its variables. They are named here and not in attributes, so that services can share groups of
/// settings under their own prefixes.
pub(crate) fn with_variables(command: Command, prefix: &str) -> Command {
    command.mut_args(|argument| match argument.get_long() {
        Some(long) => {
            let variable = format!("{prefix}{}", long.replace('-', "_").to_uppercase());
            argument.env(variable)
        }
        None => argument,
    })
}

/// The variables of secrets, with the ids of their arguments. clap is told not to show the values of these.
fn secrets(command: &Command) -> impl Iterator<Item = (&str, String)> {
    let secrets = command.get_arguments().filter(|argument| argument.is_hide_env_values_set());
    let name = |argument: &Arg| Some(argument.get_env()?.to_string_lossy().into_owned());
    secrets.filter_map(move |argument| Some((argument.get_id().as_str(), name(argument)?)))
}

/// The variable with the path of a secret's file: Docker and Kubernetes hand secrets to a program as files.
fn file_variable(variable: &str) -> String {
    format!("{variable}_FILE")
}

/// Reads a secret from its variable or its file. The line feed that editors put at the end of a file is no part of it.
pub(crate) fn secret(variable: &str) -> Result<Option<String>, String> {
    let name = file_variable(variable);
    match (std::env::var_os(variable), std::env::var_os(&name)) {
        (Some(_), Some(_)) => Err(format!("{variable} and {name} are set: only one may be")),
        (value, None) => Ok(value.map(|value| value.to_string_lossy().into_owned())),
        (None, Some(path)) => {
            let text = fs::read_to_string(&path)
                .map_err(|error| format!("{name}: failed to read {}: {error}", Path::new(&path).display()))?;
            Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
        }
    }
}

/// The command line with each secret that is in a file as the default of its setting.
fn with_secret_files(command: &Command) -> Result<Command, String> {
    let mut with_files = command.clone();
    for (id, variable) in secrets(command) {
        let value = secret(&variable)?;
        if let Some(value) = value.filter(|_| std::env::var_os(&variable).is_none()) {
            with_files = with_files.mut_arg(id, |argument| {
                argument.required(false).default_value(value).hide_default_value(true)
            });
        }
    }
    Ok(with_files)
}

/// The inner error is a secret on the command line, where `ps` shows it to every user of the machine.
fn parse<Settings: FromArgMatches>(
    command: &Command,
    arguments: impl Iterator<Item = OsString>,
) -> Result<Result<Settings, String>, clap::Error> {
    let matches = command.clone().try_get_matches_from(arguments)?;
    for (id, variable) in secrets(command) {
        if matches.value_source(id) == Some(ValueSource::CommandLine) {
            let file = file_variable(&variable);
            return Ok(Err(format!("{variable}: not as an option, because `ps` shows it; set it or {file}")));
        }
    }
    Settings::from_arg_matches(&matches).map(Ok)
}

/// Ends the process because of a setting, with one line on standard error and exit code 78. Callers name the variable and
/// what is wrong with it, never its value: it may be a secret.
pub fn exit_invalid_config(problem: &str) -> ! {
    crate::flush_log();
    let _ = writeln!(std::io::stderr(), "invalid setting: {problem}");
    std::process::exit(INVALID_CONFIG);
}

fn reject_unknown_variables(
    command: &Command,
    prefix: &str,
    names: impl Iterator<Item = OsString>,
) -> Result<(), String> {
    let variables = command.get_arguments().filter_map(|argument| argument.get_env());
    let variables = variables.map(|name| name.to_string_lossy().into_owned());
    let known: Vec<_> =
        variables.chain(secrets(command).map(|(_, variable)| file_variable(&variable))).collect();
    for name in names {
        let name = name.to_string_lossy();
        if !name.starts_with(prefix) || known.iter().any(|known| *known == name) {
            continue;
        }
        let closest = known
            .iter()
            .max_by(|a, b| strsim::jaro_winkler(a, &name).total_cmp(&strsim::jaro_winkler(b, &name)));
        let hint = closest.map(|closest| format!("; is {closest} meant?")).unwrap_or_default();
        return Err(format!("{name} is not a setting{hint} (--help lists them all)"));
    }
    Ok(())
}

/// Turns clap's error into one line that names the variable instead of the flag, without the value.
fn explain(command: &Command, error: &clap::Error) -> String {
    let flag = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) => flag.clone(),
        Some(ContextValue::Strings(flags)) => flags.first().cloned().unwrap_or_default(),
        _ => {
            return error.to_string().lines().next().unwrap_or("invalid arguments").to_owned();
        }
    };
    let mut command = command.clone();
    // Needed before an argument can be displayed.
    command.build();
    let argument = command.get_arguments().find(|argument| argument.to_string() == flag);
    let variable = argument.and_then(clap::Arg::get_env).map(|name| name.to_string_lossy().into_owned());
    let variable = variable.unwrap_or(flag);
    match (error.kind(), error.source()) {
        (ErrorKind::MissingRequiredArgument, _) => {
            let help = argument.and_then(clap::Arg::get_help).map(ToString::to_string).unwrap_or_default();
            format!("{variable} is missing: {help}")
        }
        (_, Some(cause)) => format!("{variable}: {cause}"),
        (_, None) => match error.get(ContextKind::ValidValue) {
            Some(ContextValue::Strings(valid)) => format!("{variable}: one of {}", valid.join(", ")),
            _ => format!("{variable}: not a valid value"),
        },
    }
}

/// For `value_parser`: a duration with its unit, for example `500ms` or `2s`, above zero and at most an hour.
pub fn duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("{text:?} is not a duration between 1ms and 1h, such as 500ms or 2s");
    let duration = humantime::parse_duration(text).map_err(|_| invalid())?;
    let allowed = Duration::from_millis(1)..=Duration::from_secs(3600);
    if allowed.contains(&duration) { Ok(duration) } else { Err(invalid()) }
}

/// For `value_parser`: an age with its unit, for example `7days` or `12h`, between a minute and ten years.
pub fn age(text: &str) -> Result<Duration, String> {
    let invalid = || format!("{text:?} is not an age between 1min and 3650days, such as 7days or 12h");
    let age = humantime::parse_duration(text).map_err(|_| invalid())?;
    let allowed = Duration::from_secs(60)..=Duration::from_secs(3650 * 24 * 3600);
    if allowed.contains(&age) { Ok(age) } else { Err(invalid()) }
}
