use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    http::{StatusCode, header::CONTENT_LENGTH},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::time::timeout;

use crate::{connection::InProgress, problem::Problem};

/// How long a client may take to send a body.
const BODY_DEADLINE: Duration = Duration::from_secs(5);

/// The largest body, in bytes. An order of a hundred lines takes about six thousand.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// How much of a body that is too large is read, so that its client can read the answer.
const MAX_DISCARDED_BYTES: usize = 4 * 1024 * 1024;

/// Reads the whole body of a request before anything else is done for it. A layer around the limit of concurrent requests:
/// inside it, a few hundred clients that send a byte a second would take all places from the others.
pub(crate) async fn read_body(request: Request, next: Next) -> Response {
    let (parts, mut body) = request.into_parts();
    let announced =
        parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > MAX_BODY_BYTES as u64) {
        return too_large(body);
    }
    match timeout(BODY_DEADLINE, Limited::new(&mut body, MAX_BODY_BYTES).collect()).await {
        Ok(Ok(read)) => {
            let in_progress: Option<InProgress> = parts.extensions.get().cloned();
            let set = |to| in_progress.iter().for_each(|flag| flag.store(to, Relaxed));
            set(true);
            let response = next.run(Request::from_parts(parts, Body::from(read.to_bytes()))).await;
            set(false);
            response
        }
        Ok(Err(error)) if error.is::<LengthLimitError>() => too_large(body),
        Ok(Err(error)) => Problem::unreadable_body(error.to_string()).into_response(),
        Err(_) => slow_body().into_response(),
    }
}

/// Answers at once, and goes on reading for a while: a connection that is closed while bytes arrive is reset, and the client
/// might lose the answer, or that to its next request.
fn too_large(body: Body) -> Response {
    tokio::spawn(timeout(BODY_DEADLINE, discard(body)));
    Problem::too_large().into_response()
}

/// Reads what the client sends, up to a limit, and drops it.
async fn discard(mut body: Body) {
    let mut left = MAX_DISCARDED_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        match left.checked_sub(frame.data_ref().map_or(0, |data| data.len())) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// The body did not arrive in time.
pub fn slow_body() -> Problem {
    Problem::new(StatusCode::REQUEST_TIMEOUT, "slow-body", "The body took too long to arrive")
        .detail(format!("a body has to arrive within {} s", BODY_DEADLINE.as_secs()))
}
