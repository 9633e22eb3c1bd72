//! The links of the pages: each leads to a file of the repository, and to a heading where it names one.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::page::Page;

/// The links that lead nowhere, as lines to print, and how many links were checked. Addresses outside are not requested.
pub(crate) fn broken(root: &Path, pages: &[Page]) -> (Vec<String>, usize) {
    let (mut broken, mut checked) = (Vec::new(), 0);
    let anchors: BTreeMap<_, _> =
        pages.iter().map(|page| (Path::new(&page.path), headings(&page.markdown))).collect();
    for Page { path: page, links, .. } in pages {
        for (line, link) in links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { PathBuf::from(page) } else { beside(page, path) };
            if !root.join(&target).exists() {
                broken.push(format!("{page}:{line}: {link}: there is no {}", target.display()));
            } else if !anchor.is_empty() && anchors.get(&*target).is_some_and(|known| !known.contains(anchor))
            {
                broken.push(format!("{page}:{line}: {link}: there is no such heading"));
            }
        }
    }
    (broken, checked)
}

/// The path that a link on a page leads to, from the root of the repository.
fn beside(page: &str, link: &str) -> PathBuf {
    let mut path = Path::new(page).parent().map(Path::to_owned).unwrap_or_default();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

/// The anchors of a page: those that it names (`<a id="…">`), and those of its headings, as GitHub makes them: lower case,
/// without punctuation, hyphens for spaces, and a number behind one that occurs again.
fn headings(markdown: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::InlineHtml(html) | Event::Html(html) => {
                let id = html.split_once("<a id=\"").and_then(|(_, rest)| rest.split_once('"'));
                anchors.extend(id.map(|(id, _)| id.to_owned()));
            }
            Event::End(TagEnd::Heading(_)) => {
                let anchor: String = heading
                    .take()
                    .unwrap_or_default()
                    .to_lowercase()
                    .chars()
                    .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                    .map(|c| if c == ' ' { '-' } else { c })
                    .collect();
                let again = (1..).map(|n| format!("{anchor}-{n}"));
                let free =
                    std::iter::once(anchor.clone()).chain(again).find(|anchor| !anchors.contains(anchor));
                anchors.extend(free);
            }
            _ => {}
        }
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_github() {
        let found =
            headings("# The `claim`: one step, twice\n## Why?\n## Why?\n\n<a id=\"named\"></a>Text\n");
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            ["named", "the-claim-one-step-twice", "why", "why-1"]
        );
    }

    #[test]
    fn links_are_resolved_beside_their_page() {
        assert_eq!(beside("docs/labs/a.md", "../../README.md"), Path::new("README.md"));
        assert_eq!(beside("docs/a.md", "decide/b.md"), Path::new("docs/decide/b.md"));
    }
}
