//! What can happen in one step.

use std::fmt;

use crate::{
    answers::Outcome,
    events::{EVENTS, Event, Events, name},
};

/// How sending one message ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    Stored,
    /// No queue is bound for it.
    Returned,
    /// Negatively acknowledged.
    Refused,
    /// Negatively acknowledged, though the queue has it.
    StoredAndRefused,
    /// Lost with the connection.
    Lost,
    /// Sent over a broken connection: it arrives later.
    Late,
    /// Only with `mark-before-confirm`: reported as confirmed and not sent.
    Skipped,
}

/// What happens in a step. Relays and channels are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A writer commits an event.
    Commit(Event),
    /// The same, and the wake-up is lost: only with `woken-only`.
    CommitUnheard(Event),
    /// A relay locks lanes and reads claimable events.
    Claim(usize, Events),
    Send(usize, Event, Sent),
    /// A relay concludes what became of the wave's messages.
    Conclude(usize, [Option<Outcome>; EVENTS]),
    Mark(usize),
    /// A relay commits its marks: what is published, and what is refused.
    CommitMarks(usize, Events, Events),
    /// The database ends a relay's session. The lanes are free, and the relay does not know.
    LoseSession(usize),
    /// A zombie's next statement fails.
    EndStep(usize),
    CrashRelay(usize),
    /// A relay waits for a wake-up: only with `woken-only`.
    Sleep(usize),
    EndBackoff(Event),
    /// A message that was sent over a broken connection arrives.
    ArriveLate(Event),
    /// The broker itself makes a copy of a message.
    Duplicate(Event),
    /// Only in histories: the queue receives a copy, in whichever way.
    Enqueue(Event),
    /// A consumer begins the transaction of the next delivery: a duplicate, or the dedupe row and the effect.
    Dedupe(usize),
    /// A consumer commits the dedupe row and the effect.
    Apply(usize, Event),
    /// The same, and the consumer gets an error: it does not know that the commit succeeded, and tries again.
    ApplyUnknown(usize, Event),
    /// A consumer puts the next delivery into the dead letters.
    SetAside(usize, Event),
    Acknowledge(usize, Event),
    /// The broker closes a channel. What was not acknowledged is delivered to the next consumer, before what waits.
    Close(usize),
    /// An instance opens a channel. If it had one before, it has noticed that that one is closed.
    Subscribe(usize),
    CrashConsumer(usize),
}

impl Action {
    /// The entry that an observer records, or `None` if the action is silent.
    pub(crate) fn recorded(self) -> Option<Self> {
        Some(match self {
            Self::Send(_, event, Sent::Stored | Sent::StoredAndRefused)
            | Self::ArriveLate(event)
            | Self::Duplicate(event) => Self::Enqueue(event),
            Self::ApplyUnknown(channel, event) => Self::Apply(channel, event),
            Self::Send(..)
            | Self::CommitUnheard(_)
            | Self::Mark(_)
            | Self::LoseSession(_)
            | Self::EndStep(_)
            | Self::Sleep(_)
            | Self::EndBackoff(_)
            | Self::Dedupe(_) => return None,
            other => other,
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Commit(event) => write!(f, "writer commits {}", name(event)),
            Self::CommitUnheard(event) => write!(f, "writer commits {}, wake-up is lost", name(event)),
            Self::Claim(relay, events) => write!(f, "relay {relay} claims {events:?}"),
            Self::Send(relay, event, sent) => write!(f, "relay {relay} sends {}: {sent:?}", name(event)),
            Self::Conclude(relay, outcomes) => {
                write!(f, "relay {relay} concludes")?;
                let mut known = (0..EVENTS).filter_map(|event| Some((name(event), outcomes[event]?)));
                known.try_for_each(|(event, outcome)| write!(f, " {event} {outcome:?}"))
            }
            Self::Mark(relay) => write!(f, "relay {relay} marks"),
            Self::CommitMarks(relay, ..) => write!(f, "relay {relay} commits its marks"),
            Self::LoseSession(relay) => write!(f, "relay {relay} loses its session"),
            Self::EndStep(relay) => write!(f, "relay {relay} notices that its session is lost"),
            Self::CrashRelay(relay) => write!(f, "relay {relay} crashes"),
            Self::Sleep(relay) => write!(f, "relay {relay} waits for a wake-up"),
            Self::EndBackoff(event) => write!(f, "{} stops backing off", name(event)),
            Self::ArriveLate(event) => write!(f, "{} arrives late", name(event)),
            Self::Duplicate(event) => write!(f, "broker duplicates {}", name(event)),
            Self::Enqueue(event) => write!(f, "broker enqueues {}", name(event)),
            Self::Dedupe(channel) => write!(f, "consumer {channel} inserts into the inbox"),
            Self::Apply(channel, _) => write!(f, "consumer {channel} commits the effect"),
            Self::ApplyUnknown(channel, _) => {
                write!(f, "consumer {channel} commits the effect and gets an error")
            }
            Self::SetAside(channel, _) => write!(f, "consumer {channel} sets the message aside"),
            Self::Acknowledge(channel, _) => write!(f, "consumer {channel} acknowledges"),
            Self::Close(channel) => write!(f, "broker closes the channel of consumer {channel}"),
            Self::Subscribe(channel) => write!(f, "consumer {channel} subscribes"),
            Self::CrashConsumer(channel) => write!(f, "consumer {channel} crashes"),
        }
    }
}
