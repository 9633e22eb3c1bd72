//! Settings come from environment variables, are read once, and are right or end the start.

use std::{
    error::Error,
    ffi::OsString,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use clap::{
    Command, CommandFactory, FromArgMatches, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// `EX_CONFIG` of `sysexits.h`: whoever supervises this process should not try again before somebody has changed
/// something.
const WRONG_SETTING: i32 = 78;

/// Reads a service's settings: each from the variable that is called `prefix` and the name of the field in capitals. A
/// wrong, missing or unknown variable ends the process with one line and exit code 78.
///
/// Unknown ones too, if they begin with `prefix`: a misspelt variable would otherwise be a setting that silently has
/// its default.
pub fn load<Settings: Parser>(prefix: &str) -> Settings {
    let command = command::<Settings>(prefix);
    if let Err(problem) = no_strangers(&command, prefix, std::env::vars_os().map(|(name, _)| name)) {
        refuse(&problem);
    }
    match parse(&command, std::env::args_os()) {
        Ok(settings) => settings,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            error.exit()
        }
        Err(error) => refuse(&explain(&command, &error)),
    }
}

/// The command line with its variables. They get their names here and not in the attributes, so that services can share
/// groups of settings under prefixes of their own.
fn command<Settings: CommandFactory>(prefix: &str) -> Command {
    Settings::command().mut_args(|argument| match argument.get_long() {
        Some(long) => {
            let variable = format!("{prefix}{}", long.replace('-', "_").to_uppercase());
            argument.env(variable)
        }
        None => argument,
    })
}

fn parse<Settings: FromArgMatches>(
    command: &Command,
    arguments: impl Iterator<Item = OsString>,
) -> Result<Settings, clap::Error> {
    Settings::from_arg_matches(&command.clone().try_get_matches_from(arguments)?)
}

/// Ends the process because of a setting: one line on standard error, and exit code 78. Never shows a secret: callers
/// name the variable and what is wrong with it, not its value.
pub fn refuse(problem: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "wrong setting: {problem}");
    std::process::exit(WRONG_SETTING);
}

fn no_strangers(
    command: &Command,
    prefix: &str,
    names: impl Iterator<Item = OsString>,
) -> Result<(), String> {
    let known: Vec<_> = command.get_arguments().filter_map(|argument| argument.get_env()).collect();
    for name in names {
        if !name.to_string_lossy().starts_with(prefix) || known.contains(&name.as_os_str()) {
            continue;
        }
        let name = name.to_string_lossy();
        let closest = known
            .iter()
            .map(|known| known.to_string_lossy())
            .max_by(|a, b| strsim::jaro_winkler(a, &name).total_cmp(&strsim::jaro_winkler(b, &name)));
        let hint = closest.map(|closest| format!("; is {closest} meant?")).unwrap_or_default();
        return Err(format!("{name} is not a setting{hint} (--help lists them all)"));
    }
    Ok(())
}

/// One line out of what clap would say in several, naming the variable instead of the flag, without the value.
fn explain(command: &Command, error: &clap::Error) -> String {
    let flag = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) => flag.clone(),
        Some(ContextValue::Strings(flags)) => flags.first().cloned().unwrap_or_default(),
        _ => {
            return error.to_string().lines().next().unwrap_or("wrong arguments").to_owned();
        }
    };
    let mut command = command.clone();
    // Before that an argument cannot say how it is written.
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

/// For `value_parser`: a length of time with its unit, such as `500ms` or `2s`, above zero and at most an hour.
///
/// # Errors
/// Says what is right.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a length of time between 1ms and 1h, such as 500ms or 2s");
    let duration = humantime::parse_duration(text).map_err(|_| wrong())?;
    let sane = Duration::from_millis(1)..=Duration::from_secs(3600);
    if sane.contains(&duration) { Ok(duration) } else { Err(wrong()) }
}

/// For `value_parser`: an age with its unit, such as `7days` or `12h`, between a minute and ten years.
///
/// # Errors
/// Says what is right.
pub fn age(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not an age between 1min and 3650days, such as 7days or 12h");
    let age = humantime::parse_duration(text).map_err(|_| wrong())?;
    let sane = Duration::from_secs(60)..=Duration::from_secs(3650 * 24 * 3600);
    if sane.contains(&age) { Ok(age) } else { Err(wrong()) }
}

/// Asks the service of this container whether it is ready, and ends with 0 or 1: a health check where there is no
/// `curl`. The address stands in `variable`, or is the `usual` one; one that stands for "all" is asked on loopback.
pub fn healthcheck(variable: &str, usual: SocketAddr) -> ! {
    let ready = || -> std::io::Result<bool> {
        let set = std::env::var(variable).ok().and_then(|address| address.parse().ok());
        let mut address: SocketAddr = set.unwrap_or(usual);
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        Ok(&answer == b"HTTP/1.1 200")
    };
    std::process::exit(i32::from(!matches!(ready(), Ok(true))));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings of a service that does not exist.
    #[derive(Debug, Parser)]
    struct Toy {
        /// Where the database is.
        #[arg(long, hide_env_values = true, value_parser = secret)]
        database_url: String,
        /// How long to wait.
        #[arg(long, default_value = "1s", value_parser = duration)]
        poll: Duration,
        /// How many at a time.
        #[arg(long, default_value = "500", value_parser = clap::value_parser!(u16).range(1..=10_000))]
        batch: u16,
    }

    fn secret(text: &str) -> Result<String, String> {
        if text.starts_with("postgres://") {
            Ok(text.into())
        } else {
            Err("it begins with postgres://".into())
        }
    }

    fn explained(arguments: &[&str]) -> String {
        let command = command::<Toy>("TOY_");
        let arguments = ["toy"].iter().chain(arguments).map(OsString::from);
        explain(&command, &parse::<Toy>(&command, arguments).unwrap_err())
    }

    #[test]
    fn a_missing_variable_is_named_with_what_it_is_for() {
        assert_eq!(explained(&[]), "TOY_DATABASE_URL is missing: Where the database is");
    }

    #[test]
    fn a_wrong_value_names_the_variable_and_never_shows_a_secret() {
        let line = explained(&["--database-url", "mysql://root:hunter2@db/shop"]);
        assert_eq!(line, "TOY_DATABASE_URL: it begins with postgres://");
    }

    #[test]
    fn values_out_of_range_and_unknown_units_are_refused() {
        for (flag, value) in [
            ("--batch", "0"),
            ("--batch", "70000"),
            ("--batch", "many"),
            ("--poll", "0s"),
            ("--poll", "-1s"),
            ("--poll", "1 fortnight"),
            ("--poll", "2h"),
            ("--poll", "5"),
        ] {
            let line = explained(&["--database-url", "postgres://db/shop", &format!("{flag}={value}")]);
            assert!(line.starts_with("TOY_") && !line.contains('\n'), "{flag} {value}: {line}");
        }
    }

    #[test]
    fn an_age_has_a_unit_and_is_neither_a_moment_nor_an_era() {
        assert_eq!(age("7days"), Ok(Duration::from_secs(7 * 24 * 3600)));
        assert_eq!(age("12h"), Ok(Duration::from_secs(12 * 3600)));
        for wrong in ["", "7", "0days", "59s", "3651days", "-7days", "1 fortnight", "584942417355years"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_misspelt_variable_is_refused_with_the_one_that_was_meant() {
        let problem =
            no_strangers(&command::<Toy>("TOY_"), "TOY_", ["TOY_BACTH".into()].into_iter()).unwrap_err();
        assert!(problem.contains("is TOY_BATCH meant?"), "{problem}");
        no_strangers(&command::<Toy>("TOY_"), "TOY_", ["TOY_BATCH".into(), "HOME".into()].into_iter())
            .unwrap();
    }
}
