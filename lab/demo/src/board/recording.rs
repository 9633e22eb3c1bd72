//! A recording: the last minutes as one HTML file that replays them without any server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::assets;

/// How many snapshots are kept: those of fifteen minutes.
const KEPT: usize = 1_800;

/// How large a recording's snapshots may be, in bytes.
const LARGEST: usize = 4 * 1024 * 1024;

/// How many orders' stories are kept.
const STORIES: usize = 20;

/// The last snapshots, and the last stories of orders that a page has followed.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    snapshots: Mutex<VecDeque<Arc<str>>>,
    stories: Mutex<VecDeque<Value>>,
}

impl Recorder {
    pub(crate) fn keep(&self, snapshot: Arc<str>) {
        let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        snapshots.push_back(snapshot);
        if snapshots.len() > KEPT {
            snapshots.pop_front();
        }
    }

    /// Keeps an order's story in the place of an earlier one of the same order.
    pub(crate) fn keep_story(&self, story: &Value) {
        if story.is_null() {
            return;
        }
        let mut stories = self.stories.lock().unwrap_or_else(PoisonError::into_inner);
        stories.retain(|known| known["id"] != story["id"]);
        stories.push_back(story.clone());
        if stories.len() > STORIES {
            stories.pop_front();
        }
    }

    /// The recording, to be saved as a file.
    pub(crate) fn download(&self) -> Response {
        let headers = [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CONTENT_DISPOSITION, "attachment; filename=\"recording.html\""),
        ];
        (headers, self.html()).into_response()
    }

    fn html(&self) -> String {
        let snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshots = thinned(snapshots.iter().map(|snapshot| &**snapshot).collect());
        let stories = self.stories.lock().unwrap_or_else(PoisonError::into_inner);
        let stories = serde_json::to_string(&*stories).unwrap_or_else(|_| "[]".to_owned());
        let data = format!("{{\"snapshots\":[{}],\"stories\":{stories}}}", snapshots.join(","));
        page(&data)
    }
}

/// Every snapshot, or every second, fourth, … one, so that they fit.
fn thinned(mut snapshots: Vec<&str>) -> Vec<&str> {
    while snapshots.iter().map(|snapshot| snapshot.len()).sum::<usize>() > LARGEST {
        let mut keep = false;
        snapshots.retain(|_| {
            keep = !keep;
            keep
        });
    }
    snapshots
}

/// The page with everything inside: styles, script and data.
fn page(data: &str) -> String {
    let (style, script) = (assets::STYLE, bundle());
    // `<` begins no tag inside a JSON text, and no text of ours ends the script.
    let data = data.replace('<', "\\u003c");
    let head = format!("<style>\n{style}\n</style>\n<title>");
    let body = format!(
        "<script type=\"application/json\" id=\"recording\">{data}</script>\n<script>\n{}\n</script>\n",
        script.replace("</script", "<\\/script")
    );
    let own =
        |line: &&str| !line.contains("<script") && !line.contains("<link") && !line.contains("board-token");
    let page: Vec<_> = assets::PAGE.lines().filter(own).collect();
    page.join("\n").replace("<title>", &head) + "\n" + &body
}

/// All modules as one script. Each becomes a function that returns what it exports, so that the names inside of two modules
/// do not meet; what is exported is imported under the same name, and so is there already.
fn bundle() -> String {
    let live = assets::MODULES.len() - 1;
    let modules = assets::MODULES[..live].iter().map(|(_, text)| *text).chain([assets::REPLAY]);
    let functions = modules.map(|text| {
        let exports: Vec<_> = text.lines().filter_map(exported).collect();
        let exports = exports.join(", ");
        let own: Vec<_> = text.lines().filter(|line| !line.starts_with("import ")).collect();
        let code = own.join("\n").replace("\nexport ", "\n");
        format!("const {{ {exports} }} = (() => {{\n{code}\nreturn {{ {exports} }};\n}})();")
    });
    format!("'use strict';\n(() => {{\n{}\n}})();", functions.collect::<Vec<_>>().join("\n"))
}

/// The name that a line exports.
fn exported(line: &str) -> Option<&str> {
    let rest = ["export function ", "export const ", "export async function "]
        .into_iter()
        .find_map(|prefix| line.strip_prefix(prefix))?;
    rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_recording_has_one_script_and_asks_for_nothing() {
        let recorder = Recorder::default();
        recorder.keep("{\"at\":1,\"evil\":\"</script><script>alert(1)</script>\"}".into());
        let page = recorder.html();
        assert_eq!(page.matches("</script").count(), 2, "the data and the script");
        for other in ["import ", "<link", " src=", "http://", "\"board-token\""] {
            let found = page.match_indices(other).map(|(at, _)| &page[at..page.len().min(at + 60)]);
            let found: Vec<_> = found.filter(|found| !found.starts_with("http://www.w3.org/")).collect();
            assert!(found.is_empty(), "{found:?}");
        }
        assert!(page.len() < 120_000, "{}", page.len());
    }

    #[test]
    fn no_two_modules_export_the_same_name() {
        let texts = assets::MODULES.map(|(_, text)| text);
        let names: Vec<_> = texts.iter().flat_map(|text| text.lines().filter_map(exported)).collect();
        assert_eq!(names.len(), names.iter().collect::<HashSet<_>>().len(), "{names:?}");
        assert!(names.contains(&"drawFlow") && names.contains(&"SHOWN_SNAPSHOTS"));
    }

    #[test]
    fn what_is_too_large_loses_every_second_snapshot() {
        let one = "x".repeat(LARGEST / 3);
        assert_eq!(thinned(vec![&one; 2]).len(), 2);
        assert_eq!(thinned(vec![&one; 5]).len(), 3);
    }
}
