//! The lines of code around a crash point, read from the checkout.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// How many lines before and after the crash point are shown.
const AROUND: usize = 4;

/// Where a crash point is called.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SourceLine {
    /// Below the checkout's root, with the number of the line.
    pub(crate) place: String,
    pub(crate) code: String,
}

/// Finds the call of a crash point that a service passes. A point that several services have is looked for in the sources of
/// this one first. `None` outside of a checkout.
pub(crate) fn find(service: &str, point: &str) -> Option<SourceLine> {
    let root = testbed::workspace_root()?;
    let call = format!("crash_point(\"{point}\")");
    let mut found = vec![];
    for folder in [format!("services/{service}/src"), "shared".to_owned()] {
        search(&root, &root.join(folder), &call, &mut found);
        // `order-written` is also where a cancellation is written: an order comes first.
        found.sort_by_key(|line: &SourceLine| line.place.contains("cancel"));
        if let Some(first) = found.drain(..).next() {
            return Some(first);
        }
    }
    None
}

fn search(root: &Path, folder: &Path, call: &str, found: &mut Vec<SourceLine>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            search(root, &path, call, found);
            continue;
        }
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let lines: Vec<_> = text.lines().collect();
        if let Some(index) = lines.iter().position(|line| line.contains(call)) {
            let first = index.saturating_sub(AROUND);
            let around = lines.iter().enumerate().skip(first).take(index - first + AROUND + 1);
            let marked = around.map(|(at, line)| format!("{} {line}", if at == index { '→' } else { ' ' }));
            let path = path.strip_prefix(root).unwrap_or(&path).display();
            let code = marked.collect::<Vec<_>>().join("\n");
            found.push(SourceLine { place: format!("{path}:{}", index + 1), code });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crash_point_is_found_in_a_service_that_passes_it() {
        for point in messaging::crash_points::ALL {
            let service = if point.starts_with("payment") { "billing" } else { "orders" };
            let line = find(service, point).unwrap_or_else(|| panic!("{point} was not found"));
            assert!(line.code.contains(point) && line.place.contains(".rs:"), "{line:?}");
        }
        assert!(find("billing", "payment-unasked").unwrap().place.starts_with("services/billing/"));
        assert!(find("orders", "order-written").unwrap().place.contains("place_order.rs"));
    }
}
