//! A history of the simulation, projected on one service and three events, as actions of the model.

use std::collections::BTreeMap;

use model::{Action, EVENTS, Event, Events, Outcome};
use simulation::{Actor, Entry};

/// As many relays as the simulation has at most.
pub(crate) const RELAYS: usize = 4;

/// The instances of a service, and as many channels whose end the broker has not noticed yet.
pub(crate) const CHANNELS: usize = 8;

/// The events that a history is projected on, and the service.
pub(crate) struct Projection {
    /// The ids and `seq`s of A1, A2 and B1, as far as they exist.
    events: BTreeMap<Event, (String, String)>,
    service: usize,
}

impl Projection {
    /// Every two neighbors of every aggregate together with one event of another, at one service after the other.
    pub(crate) fn all(history: &[Entry]) -> Vec<Self> {
        let mut aggregates = BTreeMap::<&str, Vec<&str>>::new();
        let mut appended = BTreeMap::new();
        for entry in history {
            // `appended`: `<id>, seq <seq>, version <version> of <aggregate>`
            let words: Vec<_> = entry.detail.split([' ', ',']).filter(|word| !word.is_empty()).collect();
            match entry.step {
                "appended" => _ = appended.insert(words[0], (words[2], words[6])),
                "committed" => aggregates.entry(appended[words[0]].1).or_default().push(words[0]),
                _ => {}
            }
        }
        let aggregates: Vec<_> = aggregates.into_values().collect();
        let mut projections = vec![];
        for (index, ids) in aggregates.iter().enumerate() {
            let others = &aggregates[(index + 1) % aggregates.len()];
            for first in 0..ids.len() {
                let other = (aggregates.len() > 1).then(|| others[first.min(others.len() - 1)]);
                let chosen = [Some(ids[first]), ids.get(first + 1).copied(), other].into_iter().enumerate();
                let with_seq = |(event, id): (Event, Option<&str>)| {
                    id.map(|id| (event, (id.to_owned(), appended[id].0.to_owned())))
                };
                let service = (index + first) % 2;
                projections.push(Self { events: chosen.filter_map(with_seq).collect(), service });
            }
        }
        projections
    }

    /// The events in the order of `seq`.
    pub(crate) fn by_seq(&self) -> [Event; EVENTS] {
        let mut events: [Event; EVENTS] = std::array::from_fn(|event| event);
        events.sort_by_key(|event| self.events.get(event).map_or(u64::MAX, |(_, seq)| seq.parse().unwrap()));
        events
    }

    /// What the steps of a history are in the model. Those that are not here are silent there, or faults that show in later
    /// steps.
    pub(crate) fn entries(&self, history: &[Entry]) -> Vec<Action> {
        let mut entries = vec![];
        let mut claimed = [false; RELAYS];
        let mut channels = Channels::default();
        for Entry { actor, step, detail, .. } in history {
            let events = || self.events_in(detail);
            match (*actor, *step) {
                (_, "committed") => entries.extend(events().map(Action::Commit)),
                (_, "enqueued") => {
                    let (_, services) = detail.split_once(" for services ").unwrap();
                    if services.contains(&self.service.to_string()) {
                        entries.extend(events().map(Action::Enqueue));
                    }
                }
                (_, "channel closed") => {
                    let (id, service) = detail.split_once(" of service ").unwrap();
                    if service == self.service.to_string() {
                        entries.push(Action::Close(channels.close(id)));
                    }
                }
                (Actor::Relay(relay), "claimed") => {
                    let seqs = detail.trim_matches(['[', ']']).split(", ");
                    let events: Events = seqs.filter_map(|seq| self.event_of_seq(seq)).collect();
                    claimed[relay] = !events.is_empty();
                    if !events.is_empty() {
                        entries.push(Action::Claim(relay, events));
                    }
                }
                (Actor::Relay(relay), "outcomes") => {
                    let mut outcomes = [None; EVENTS];
                    let words: Vec<_> = detail.split_whitespace().collect();
                    for pair in words.chunks(2) {
                        for event in self.events_in(pair[0]) {
                            outcomes[event] = Some(match pair[1] {
                                "Confirmed" => Outcome::Confirmed,
                                "Unknown" => Outcome::Unknown,
                                _ => Outcome::Refused,
                            });
                        }
                    }
                    if outcomes != [None; EVENTS] {
                        entries.push(Action::Conclude(relay, outcomes));
                    }
                }
                (Actor::Relay(relay), "committed marks") if std::mem::take(&mut claimed[relay]) => {
                    let marks = |kind: &str| {
                        let after = detail.split(kind).skip(1);
                        let seqs = after.filter_map(|rest| rest.split([')', ',']).next());
                        seqs.filter_map(|seq| self.event_of_seq(seq)).collect()
                    };
                    entries.push(Action::CommitMarks(relay, marks("Published("), marks("seq: ")));
                }
                (Actor::Relay(relay), "crashed") => {
                    claimed[relay] = false;
                    entries.push(Action::CrashRelay(relay));
                }
                (Actor::Consumer(service, instance), step) if service == self.service => {
                    if matches!(step, "subscribed" | "crashed") {
                        entries.extend(channels.release(instance).map(Action::CrashConsumer));
                    }
                    if step == "subscribed" {
                        let id = detail.trim_start_matches("channel ").split(',').next().unwrap();
                        entries.push(Action::Subscribe(channels.open(id, instance)));
                    }
                    let entry: fn(usize, Event) -> Action = match step {
                        "applied" => Action::Apply,
                        "dead letter" => Action::SetAside,
                        "acknowledged" => Action::Acknowledge,
                        _ => continue,
                    };
                    let channel = channels.of(instance);
                    entries.extend(events().map(|event| entry(channel, event)));
                }
                _ => {}
            }
        }
        entries
    }

    /// The events of the projection whose ids a text names, in its order.
    fn events_in(&self, text: &str) -> impl Iterator<Item = Event> {
        let words = text.split(|c: char| !c.is_ascii_hexdigit() && c != '-');
        words.filter_map(|word| Some(*self.events.iter().find(|(_, (id, _))| id == word)?.0))
    }

    fn event_of_seq(&self, seq: &str) -> Option<Event> {
        Some(*self.events.iter().find(|(_, (_, other))| other == seq)?.0)
    }
}

/// Which channel of the model stands for which channel of the history: its id while it is open, and its instance until that
/// one has released it.
#[derive(Default)]
struct Channels([(Option<String>, Option<usize>); CHANNELS]);

impl Channels {
    fn open(&mut self, id: &str, instance: usize) -> usize {
        let free = self.0.iter().position(|channel| *channel == (None, None));
        let place = free.expect("more channels than the model has");
        self.0[place] = (Some(id.to_owned()), Some(instance));
        place
    }

    fn of(&self, instance: usize) -> usize {
        self.0.iter().position(|(_, owner)| *owner == Some(instance)).unwrap()
    }

    fn close(&mut self, id: &str) -> usize {
        let place = self.0.iter().position(|(open, _)| open.as_deref() == Some(id)).unwrap();
        self.0[place].0 = None;
        place
    }

    /// The instance has lost its memory of the channel.
    fn release(&mut self, instance: usize) -> Option<usize> {
        let place = self.0.iter().position(|(_, owner)| *owner == Some(instance))?;
        self.0[place].1 = None;
        Some(place)
    }
}
