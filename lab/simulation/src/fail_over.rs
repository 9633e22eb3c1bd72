//! Commits that wait for the standby, and its take-over: what is lost then.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    fault::Fault,
    history::Actor,
    process::Process,
    sometimes::Sometimes,
    standby::{Change, Standby},
    state::State,
};

/// How long a claim waits for the standby: `STATEMENT_DEADLINE` in `outbox::postgres`.
const STANDBY_DEADLINE: Duration = Duration::from_secs(12);

impl State {
    /// Sends a commit to the standby, in the order of the commits. Returns when it has arrived. `None`: there is no standby.
    pub(crate) fn replicate(&mut self, change: Change) -> Option<Duration> {
        let lags = self.standby.is_some() && self.injects(Fault::StandbyLags);
        let Self { now, random, standby: Some(standby), .. } = self else { return None };
        let lag = match (lags, random.one_in(4)) {
            (true, _) => random.millis(500, 15_000),
            (_, true) => random.millis(1, 3_000),
            _ => Duration::ZERO,
        };
        let at = (*now + lag).max(standby.has_all_at().unwrap_or_default());
        standby.sent.push_back((at, change));
        Some(at)
    }

    /// Makes the commits visible that the standby has.
    pub(crate) fn make_visible(&mut self) {
        let now = self.now;
        if let Some(standby) = &mut self.standby {
            standby.receive(now);
        }
        let (due, later) = self.waiting.drain(..).partition(|(at, ..)| *at <= now);
        self.waiting = later;
        self.show(due);
    }

    /// Makes all commits visible, also those that the standby does not have: an operator ends the sessions that wait for it, or
    /// the primary restarts.
    pub(crate) fn cancel_waits(&mut self) {
        let all = self.waiting.drain(..).collect();
        self.show(all);
    }

    fn show(&mut self, commits: Vec<(Duration, i64, usize)>) {
        for (_, seq, aggregate) in commits {
            self.commit(Actor::Environment, seq, aggregate);
            self.aggregates[aggregate].locked = false;
        }
    }

    /// The standby takes over: what it has not received is gone, and all sessions have ended. A new standby follows it.
    pub(crate) fn fail_over(&mut self) {
        self.make_visible();
        let Some(standby) = &mut self.standby else { return };
        standby.sent.clear();
        let rows = standby.table.rows.clone();
        let old = std::mem::replace(&mut self.outbox.rows, rows);
        for (seq, row) in old.iter().filter(|(_, row)| row.committed) {
            match self.outbox.rows.get(seq) {
                None => {
                    self.judge.lost(row);
                    self.reach(Sometimes::CommitLostAtFailOver);
                }
                Some(kept) if row.published && !kept.published => self.judge.allow_duplicates([row.id]),
                Some(_) => {}
            }
        }
        // Sequences are sent ahead of their use, and a lost number may be given again.
        let last = self.outbox.rows.keys().next_back().copied().unwrap_or_default();
        self.outbox.last_seq = last + i64::try_from(self.random.between(0, 32)).unwrap_or_default();
        self.waiting.clear();
        self.epoch += 1;
        for aggregate in &mut self.aggregates {
            let kept = self.outbox.rows.values().filter(|row| row.aggregate == aggregate.id);
            aggregate.version = kept.map(|row| row.version).max().unwrap_or_default();
            aggregate.locked = false;
        }
        let actors: Vec<_> = self.claimed.keys().copied().collect();
        actors.into_iter().for_each(|actor| self.allow_duplicates_of_claimed(actor));
        self.outbox.sessions.clear();
        self.databases_unavailable_until = self.now + self.random.millis(100, 5_000);
    }
}

/// Waits until the standby has all that is committed now, as `Pool::await_replication` does. `false`: it has not within the
/// deadline, or the standby has taken over.
pub(crate) async fn await_standby(process: &Process) -> bool {
    let (epoch, until, now) = {
        let state = process.world.lock();
        let until = state.standby.as_ref().and_then(Standby::has_all_at);
        (state.epoch, until.unwrap_or_default(), state.now)
    };
    let wait = until.saturating_sub(now);
    if !wait.is_zero() {
        process.world.lock().reach(Sometimes::StandbyAwaited);
    }
    sleep(wait.min(STANDBY_DEADLINE)).await;
    wait < STANDBY_DEADLINE && process.world.lock().epoch == epoch
}
