//! `docs/metrics.md` lists every metric of the product with its kind and its labels, and no other. The alerts use metrics
//! that exist, and each has a test and a section in `docs/alerts.md`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot continue fails with a message"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Kind and labels of each metric, by name.
type Metrics = BTreeMap<String, (String, BTreeSet<String>)>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).unwrap()
}

fn sources(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(fs::read_to_string(&path).unwrap());
        }
    }
}

/// The macro calls `metrics::gauge!("name", "label" => …)`.
fn in_source(text: &str, metrics: &mut Metrics) {
    for kind in ["gauge", "counter", "histogram"] {
        for call in text.split(&format!("metrics::{kind}!(")).skip(1) {
            let mut open = 1;
            let end = call.find(|character| {
                open += match character {
                    '(' => 1,
                    ')' => -1,
                    _ => 0,
                };
                open == 0
            });
            let arguments = &call[..end.expect("a macro call has an end")];
            let mut strings = arguments.split('"').skip(1).step_by(2);
            let name = strings.next().expect("a metric has a literal name");
            let before_arrows = arguments.rsplit("=>").skip(1);
            let labels = before_arrows
                .map(|text| text.trim_end().trim_end_matches('"').rsplit('"').next().unwrap().to_owned());
            let (known, all) =
                metrics.entry(name.to_owned()).or_insert_with(|| (kind.to_owned(), BTreeSet::new()));
            assert_eq!(known, kind, "{name} has two kinds");
            all.extend(labels);
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn in_document(text: &str) -> Metrics {
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let metrics = rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        assert!(cells[4].len() > 20, "{row} has no meaning");
        (quoted(cells[1]).remove(0), (cells[2].to_owned(), quoted(cells[3]).into_iter().collect()))
    });
    metrics.collect()
}

#[test]
fn every_metric_is_documented_with_its_kind_and_its_labels() {
    let mut texts = Vec::new();
    sources(&root().join("services"), &mut texts);
    sources(&root().join("shared"), &mut texts);
    let mut found = Metrics::new();
    texts.iter().for_each(|text| in_source(text, &mut found));
    let documented = in_document(&read("docs/metrics.md"));
    assert!(found.len() > 20, "the source was not read: {found:?}");
    let names = |metrics: &Metrics| metrics.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&documented), "left: the code, right: docs/metrics.md");
    for (name, metric) in found {
        assert_eq!(metric, documented[&name], "{name}; left: the code, right: docs/metrics.md");
    }
}

#[test]
fn alerts_use_metrics_that_exist_and_each_has_a_test_and_a_section() {
    let (rules, sections) = (read("lab/observe/alerts.yaml"), read("docs/alerts.md"));
    let tests = read("lab/observe/alerts.test.yaml") + &read("lab/observe/objectives.test.yaml");
    let metrics = in_document(&read("docs/metrics.md"));
    let prefixes: BTreeSet<_> = metrics.keys().filter_map(|name| name.split('_').next()).collect();
    let mut alerts = 0;
    for rule in rules.split("- alert: ").skip(1) {
        alerts += 1;
        let (name, rest) = rule.split_once('\n').unwrap();
        assert!(tests.contains(&format!("- name: {name}\n")), "{name} has no test that fires it");
        assert!(sections.contains(&format!("\n## {name}\n")), "{name} has no section in docs/alerts.md");
        assert!(
            rest.contains(&format!(
                "runbook: \"{{{{ $externalLabels.runbooks }}}}#{}\"",
                name.to_lowercase()
            )),
            "{name}'s runbook"
        );
    }
    // The rules of the objectives have names of metrics too.
    let words = rules.split(|character: char| !character.is_alphanumeric() && character != '_');
    for word in words.filter(|word| word.contains('_')) {
        let metric = word.trim_end_matches("_bucket").trim_end_matches("_count");
        let is_metric = word.split('_').next().is_some_and(|prefix| prefixes.contains(prefix));
        assert!(!is_metric || metrics.contains_key(metric), "alerts.yaml uses {word}, which does not exist");
    }
    assert!(alerts > 10, "the rules were not read");
}
