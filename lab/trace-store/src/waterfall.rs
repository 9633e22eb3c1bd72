use crate::ReceivedSpan;

/// How many characters the time is drawn in.
const WIDTH: usize = 40;

/// Draws a trace: one line for each span, indented below the one that caused it, with a bar for its time.
pub fn waterfall(trace: &[ReceivedSpan]) -> Vec<String> {
    let start = trace.iter().map(|span| span.start_nanos).min().unwrap_or_default();
    let end = trace.iter().map(|span| span.end_nanos).max().unwrap_or_default();
    let total = (end - start).max(1);
    let mut lines = vec![];
    // A span whose parent was not received, such as the caller's own, is drawn as one that has none.
    let known = |id: &str| trace.iter().any(|span| span.span_id == id);
    for root in trace.iter().filter(|span| !known(&span.parent_id)) {
        draw(root, 0, trace, &mut lines);
    }
    let columns = lines.iter().map(|(depth, span)| label(*depth, span).chars().count());
    let longest = columns.max().unwrap_or_default();
    let draw_line = |(depth, span): (usize, &ReceivedSpan)| {
        let place = |nanos: u64| {
            let part = (nanos - start) as f64 / total as f64 * WIDTH as f64;
            // From 0 to the width.
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is a small column number"
            )]
            let column = part.floor() as usize;
            column.min(WIDTH - 1)
        };
        let (from, to) = (place(span.start_nanos), place(span.end_nanos));
        let bar = format!("{}{}", " ".repeat(from), "█".repeat(to - from + 1));
        let milliseconds = (span.end_nanos - span.start_nanos) as f64 / 1e6;
        let line = format!(
            "{:longest$}  {:<9}  {milliseconds:>9.2} ms  {bar:WIDTH$}  {}",
            label(depth, span),
            span.service,
            note(span)
        );
        line.trim_end().to_owned()
    };
    lines.into_iter().map(draw_line).collect()
}

fn draw<'a>(
    span: &'a ReceivedSpan,
    depth: usize,
    trace: &'a [ReceivedSpan],
    lines: &mut Vec<(usize, &'a ReceivedSpan)>,
) {
    // Ids come from other processes: a circle among them must not be followed for ever.
    if lines.iter().any(|(_, drawn)| drawn.span_id == span.span_id) {
        return;
    }
    lines.push((depth, span));
    for child in trace.iter().filter(|child| child.parent_id == span.span_id) {
        draw(child, depth + 1, trace, lines);
    }
}

fn label(depth: usize, span: &ReceivedSpan) -> String {
    format!("{}{}", "  ".repeat(depth), span.name)
}

fn note(span: &ReceivedSpan) -> String {
    match (&span.error, span.attribute("shop.duplicate")) {
        (Some(error), _) => format!("failed: {error}"),
        (None, Some("true")) => "duplicate".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: &str, parent: &str, name: &str, from: u64, to: u64) -> ReceivedSpan {
        ReceivedSpan {
            trace_id: "1".into(),
            span_id: id.into(),
            parent_id: parent.into(),
            service: "orders".into(),
            name: name.into(),
            kind: "SPAN_KIND_INTERNAL",
            start_nanos: from,
            end_nanos: to,
            attributes: vec![],
            error: None,
        }
    }

    #[test]
    fn spans_are_drawn_below_what_caused_them_and_at_their_time() {
        let trace = [
            span("a", "caller", "POST /orders", 0, 20_000_000),
            span("b", "a", "outbox", 20_000_000, 30_000_000),
            span("c", "b", "process", 30_000_000, 40_000_000),
        ];
        let lines = waterfall(&trace);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].starts_with("POST /orders  orders"), "{lines:?}");
        assert!(lines[1].starts_with("  outbox "), "{lines:?}");
        assert!(lines[2].starts_with("    process "), "{lines:?}");
        let bars: Vec<_> = lines.iter().map(|line| line.matches('█').count()).collect();
        assert_eq!(bars, [21, 11, 10]);
        assert!(lines.iter().all(|line| line.contains(" ms  ")), "{lines:?}");
    }

    #[test]
    fn a_circle_of_parents_is_not_followed() {
        let trace = [span("a", "b", "x", 0, 1), span("b", "a", "y", 0, 1), span("c", "", "z", 0, 1)];
        assert_eq!(waterfall(&trace).len(), 1);
    }
}
