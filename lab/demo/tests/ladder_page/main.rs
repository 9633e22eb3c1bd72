//! `docs/ladder.md` says for each protection of the product what happens without it, what shows that, and where it is.
//!
//! It is generated from `ladder.toml` and the sources: `UPDATE_DOCS=1 cargo test -p demo --test ladder_page` writes it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

mod source;

use std::{collections::BTreeSet, fmt::Write as _, fs, iter, path::Path};

use demo::{Protection as Diff, WITHOUT, experiments};
use flaws::Flaw;
use judge::MISTAKES;
use serde::Deserialize;
use source::{ROOT, Share, divide};

/// What the page says. Parts are as [`divide`] takes them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ladder {
    core: Vec<String>,
    /// What the core keeps.
    rule: Vec<Protection>,
    group: Vec<Group>,
    rest: Vec<Other>,
}

/// Rungs that are added for the same occasion.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    title: String,
    rung: Vec<Protection>,
}

/// A rule of the core, or a rung.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Protection {
    name: String,
    /// What happens without it.
    without: String,
    /// The commands that break without it.
    #[serde(default)]
    shown: Vec<String>,
    /// The diff in `lab/without` that takes it out. Its checks are commands.
    diff: Option<String>,
    /// The flaw that the simulation leaves out.
    simulated: Option<String>,
    #[serde(default)]
    parts: Vec<String>,
    /// Whether `one-file` has a short form of it.
    #[serde(default)]
    in_one_file: bool,
    /// A measured figure, and the page that has it.
    cost: Option<String>,
}

/// Files that are neither the core nor a rung.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Other {
    name: String,
    what: String,
    parts: Vec<String>,
}

#[test]
fn the_page_divides_every_line_and_names_what_exists() {
    let ladder: Ladder = basic_toml::from_str(include_str!("ladder.toml")).unwrap();
    let page = ladder.page();
    for link in page.split("](").skip(1).map(|rest| rest.split([')', '#']).next().unwrap()) {
        assert!(Path::new(ROOT).join("docs").join(link).exists(), "there is no {link}");
    }
    let path = Path::new(ROOT).join("docs/ladder.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    assert!(
        fs::read_to_string(path).unwrap() == page,
        "docs/ladder.md is old: UPDATE_DOCS=1 cargo test -p demo --test ladder_page"
    );
}

impl Ladder {
    fn page(&self) -> String {
        let rungs = || self.group.iter().flat_map(|group| &group.rung);
        let owners = iter::once(&self.core).chain(rungs().map(|rung| &rung.parts));
        let (shares, total) =
            divide(&owners.chain(self.rest.iter().map(|other| &other.parts)).collect::<Vec<_>>());
        let mut shares = shares.iter();
        let core = shares.next().unwrap();
        let mut sums = vec![("The core".to_owned(), lines(core), "the rules above".to_owned())];

        let taken_out: BTreeSet<_> = rungs().filter_map(|rung| rung.diff.clone()).collect();
        let diffs: BTreeSet<_> = Diff::all().unwrap().into_iter().map(|diff| diff.name).collect();
        assert_eq!(taken_out, diffs, "each diff takes out one rung");
        let mut page = head(total, lines(core));
        write!(page, "\n## The core\n\nIts files, each with its lines: {}.\n", files(core)).unwrap();
        page += "\n| rule | without it | shown by |\n|---|---|---|\n";
        for rule in &self.rule {
            writeln!(page, "| **{}** | {} | {} |", rule.name, rule.without, rule.proofs()).unwrap();
        }
        let mut number = 1..;
        for Group { title, rung } in &self.group {
            write!(page, "\n## {title}\n\n{COLUMNS}").unwrap();
            let (mut sum, first) = (0, number.start);
            for (rung, shares) in rung.iter().zip(&mut shares) {
                let Protection { name, without, cost, .. } = rung;
                let (star, cost) = (if rung.in_one_file { " \\*" } else { "" }, cost.as_deref());
                let (number, cost) = (number.next().unwrap(), cost.unwrap_or("not measured"));
                let (proofs, places) = (rung.proofs(), places(shares));
                writeln!(page, "| **{number}. {name}**{star} | {without} | {proofs} | {places} | {cost} |")
                    .unwrap();
                sum += lines(shares);
            }
            sums.push((title.clone(), sum, format!("rungs {first} to {}", number.start - 1)));
        }
        sums.extend(
            self.rest
                .iter()
                .zip(shares)
                .map(|(other, it)| (other.name.clone(), lines(it), other.what.clone())),
        );
        assert_eq!(sums.iter().map(|(_, lines, _)| lines).sum::<usize>(), total);

        page += "\n## The sum\n\n| | lines | of all | what it is |\n|---|---|---|---|\n";
        for (name, lines, what) in sums {
            writeln!(
                page,
                "| {name} | {} | {} % | {what} |",
                grouped(lines),
                (lines * 100 + total / 2) / total
            )
            .unwrap();
        }
        writeln!(page, "| **Total** | **{}** | 100 % | |", grouped(total)).unwrap();
        page
    }
}

impl Protection {
    /// What shows it. Fails if any of that does not exist.
    fn proofs(&self) -> String {
        let known = known_commands();
        let mut proofs = vec![];
        for command in &self.shown {
            assert!(known.contains(command), "nothing runs {command}");
            proofs.push(format!("`{command}`"));
        }
        if let Some(name) = &self.diff {
            let all = Diff::all().unwrap();
            let diff =
                all.iter().find(|it| it.name == *name).unwrap_or_else(|| panic!("there is no {name}.diff"));
            proofs.extend(diff.commands().map(|command| format!("`cargo demo {command}`")));
            proofs.push(format!("[the lines](../lab/without/{name}.diff)"));
        }
        if let Some(name) = &self.simulated {
            let flaw = Flaw::named(name).unwrap_or_else(|| panic!("there is no flaw {name}")).row();
            let seeds =
                flaw.simulated.unwrap_or_else(|| panic!("the simulation does not know {name}")).within_seeds;
            proofs.push(format!(
                "{SIMULATION} (`{name}`, at most {} seeds)",
                grouped(usize::try_from(seeds).unwrap())
            ));
        }
        assert!(!proofs.is_empty(), "nothing shows {}", self.name);
        proofs.join("; ")
    }
}

const COLUMNS: &str = "\
| rung | without it | shown by | lines | at run time |
|---|---|---|---|---|
";

const SIMULATION: &str = "`cargo test -p simulation --test flaws -- --nocapture`";

/// Each command that must find a missing protection: the drills, the experiments, and the levels of the judge.
fn known_commands() -> BTreeSet<String> {
    let drill = |options: &str, drill: &str| format!("cargo demo drill {drill} {options}");
    let drills =
        WITHOUT.iter().flat_map(|(options, drills)| drills.iter().map(move |name| drill(options, name)));
    let experiments =
        experiments::ALL.iter().map(|it| format!("EXPERIMENT={} cargo demo sabotage", it.flaw.name()));
    let levels = MISTAKES.iter().flat_map(|mistake| {
        let command = format!("RELAY_MISTAKE={} cargo demo judge {} --level", mistake.name, mistake.relay);
        mistake.breaks.iter().map(move |level| format!("{command} {level}"))
    });
    drills.chain(experiments).chain(levels).collect()
}

fn lines(shares: &[Share]) -> usize {
    shares.iter().map(|share| share.lines).sum()
}

/// The lines of an owner, and where they are.
fn places(shares: &[Share]) -> String {
    match shares {
        [only] => format!("{} in {}", grouped(only.lines), link(only)),
        _ => format!("{}: {}", grouped(lines(shares)), files(shares)),
    }
}

fn files(shares: &[Share]) -> String {
    shares.iter().map(|share| format!("{} {}", link(share), share.lines)).collect::<Vec<_>>().join(", ")
}

fn link(Share { file, path, .. }: &Share) -> String {
    format!("[{file}](../{path})")
}

/// A number with a comma before its last three digits.
fn grouped(number: usize) -> String {
    if number < 1_000 { number.to_string() } else { format!("{},{:03}", number / 1_000, number % 1_000) }
}

/// What the page says before its tables.
fn head(total: usize, core: usize) -> String {
    let one_file = fs::read_to_string(Path::new(ROOT).join("examples/one-file/src/main.rs")).unwrap();
    format!(
        "# The ladder: from one file to the product

Reference: what each protection in `services` and `shared` is for, where it is, and what breaks without it.

[`one-file`](../examples/one-file/README.md) has the whole pattern in {one_file} lines, and it breaks no level of [the
judge](judge.md#entrants). The product has {total} lines in `services/*/src` and `shared/*/src`. The pattern takes {core}
of them. This page says what the rest is for.

Each rung is one protection. They are in the order in which you would add them ([copy it](copy-it.md)).

- **Without it**: what goes wrong.
- **Shown by**: a command that leaves the protection out. Drills, levels of the judge and tests fail then, with
  exit code 1. `cargo demo sabotage` and the test of the simulation must notice the missing protection,
  and then end with 0.
- **The lines**: the diff that `--without` [applies](breaking-it.md#take-a-protection-out) before it builds the product.
- **Lines**: each line has one owner. A file belongs to one owner, except for functions, types and constants that other
  owners have. A line inside a function belongs to the owner of the function, so many rungs have a few more lines in the
  core. Unit tests inside a file count. The SQL in [`migrations`](../migrations) and the tests beside `src` do not.
- **At run time**: a measured cost or gain, with the page that has the figure.
- **\\***: `one-file` has a short form of it.

This page is generated (`UPDATE_DOCS=1 cargo test -p demo --test ladder_page`), and a test compares it.
",
        one_file = one_file.lines().count(),
        total = grouped(total),
        core = grouped(core),
    )
}
