//! A history of the simulation, projected on one service and three events, as the model's entries.

use std::collections::BTreeMap;

use model::{EVENTS, Entry, Event, Events, Outcome};

/// As many relays as the simulation has at most.
pub(crate) const RELAYS: usize = 4;

/// The instances of a service, and as many channels whose end the broker has not noticed yet.
pub(crate) const CHANNELS: usize = 8;

/// The number of services in the simulation.
const SERVICES: usize = 2;

/// A line of a history: `<seconds> s  <actor>  <step> <detail>`.
struct Line<'history> {
    actor: &'history str,
    step: &'static str,
    detail: &'history str,
}

/// The steps that have an entry, and the one that tells an event's `seq` and aggregate. All others are silent in the model, or faults that show in later steps.
const STEPS: [&str; 12] = [
    "appended",
    "committed marks",
    "committed",
    "claimed",
    "enqueued",
    "outcomes",
    "crashed",
    "subscribed",
    "channel closed",
    "applied",
    "dead letter",
    "acknowledged",
];

fn parse(line: &str) -> Option<Line<'_>> {
    let (_, rest) = line.split_once(" s  ")?;
    // The history pads the actor to thirteen places.
    let (actor, rest) = (rest.get(..13)?.trim(), rest.get(13..)?.trim());
    let step = STEPS.into_iter().find(|step| rest.starts_with(step))?;
    Some(Line { actor, step, detail: rest[step.len()..].trim() })
}

/// A committed event of a history.
struct Recorded {
    id: String,
    seq: String,
}

/// The events that a history is projected on, and the service.
pub(crate) struct Projection {
    /// The ids and `seq`s of A1, A2 and B1, as far as they exist.
    events: BTreeMap<Event, Recorded>,
    service: usize,
}

impl Projection {
    /// Every two neighbours of every aggregate together with one event of another, at one service after the other.
    pub(crate) fn all(history: &[String]) -> Vec<Self> {
        let mut aggregates = BTreeMap::<&str, Vec<&str>>::new();
        let mut appended = BTreeMap::new();
        for line in history.iter().filter_map(|line| parse(line)) {
            // `appended <id>, seq <seq>, version <version> of <aggregate>`
            let words: Vec<_> = line.detail.split([' ', ',']).filter(|word| !word.is_empty()).collect();
            match line.step {
                "appended" => _ = appended.insert(words[0], (words[2], words[6])),
                "committed" => aggregates.entry(appended[words[0]].1).or_default().push(words[0]),
                _ => {}
            }
        }
        let recorded = |id: &str| Recorded { id: id.into(), seq: appended[id].0.into() };
        let aggregates: Vec<_> = aggregates.into_values().collect();
        let mut projections = vec![];
        for (index, ids) in aggregates.iter().enumerate() {
            let others = &aggregates[(index + 1) % aggregates.len()];
            for first in 0..ids.len() {
                let other = (aggregates.len() > 1).then(|| others[first.min(others.len() - 1)]);
                let chosen = [Some(ids[first]), ids.get(first + 1).copied(), other];
                let chosen = chosen.into_iter().enumerate();
                let events = chosen.filter_map(|(event, id)| Some((event, recorded(id?)))).collect();
                projections.push(Self { events, service: (index + first) % SERVICES });
            }
        }
        projections
    }

    /// The events in the order of `seq`.
    pub(crate) fn by_seq(&self) -> [Event; EVENTS] {
        let mut events: [Event; EVENTS] = std::array::from_fn(|event| event);
        let seq =
            |event: &Event| self.events.get(event).map_or(u64::MAX, |recorded| recorded.seq.parse().unwrap());
        events.sort_by_key(seq);
        events
    }

    /// The entries of a history.
    pub(crate) fn entries(&self, history: &[String]) -> Vec<Entry> {
        let mut entries = vec![];
        let mut claimed = [false; RELAYS];
        let mut channels = Channels::default();
        for line in history.iter().filter_map(|line| parse(line)) {
            if let Some(relay) = line.actor.strip_prefix("relay ") {
                self.relay_entry(&line, relay.parse().unwrap(), &mut claimed, &mut entries);
            } else if let Some(consumer) = line.actor.strip_prefix("consumer ") {
                let (service, instance) = consumer.split_once('.').unwrap();
                if service.parse() == Ok(self.service) {
                    self.consumer_entry(&line, instance, &mut channels, &mut entries);
                }
            } else if line.step == "committed" {
                entries.extend(self.events_in(line.detail).map(Entry::Committed));
            } else if line.step == "enqueued" {
                let (id, services) = line.detail.split_once(" for services ").unwrap();
                if services.contains(&self.service.to_string()) {
                    entries.extend(self.events_in(id).map(Entry::Enqueued));
                }
            } else if line.step == "channel closed" {
                let (id, service) = line.detail.split_once(" of service ").unwrap();
                if service.parse() == Ok(self.service) {
                    entries.push(Entry::Closed(channels.close(id)));
                }
            }
        }
        entries
    }

    fn relay_entry(
        &self,
        line: &Line<'_>,
        relay: usize,
        claimed: &mut [bool; RELAYS],
        entries: &mut Vec<Entry>,
    ) {
        match line.step {
            "claimed" => {
                let seqs = line.detail.trim_matches(['[', ']']).split(", ");
                let events: Events = seqs.filter_map(|seq| self.event_of_seq(seq)).collect();
                claimed[relay] = !events.is_empty();
                if claimed[relay] {
                    entries.push(Entry::Claimed(relay, events));
                }
            }
            "outcomes" => {
                let mut outcomes = [None; EVENTS];
                let words: Vec<_> = line.detail.split_whitespace().collect();
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
                    entries.push(Entry::Concluded(relay, outcomes));
                }
            }
            "committed marks" if std::mem::take(&mut claimed[relay]) => {
                let marks = |kind: &str| {
                    let after = line.detail.split(kind).skip(1);
                    let seqs = after.filter_map(|rest| rest.split([')', ',']).next());
                    seqs.filter_map(|seq| self.event_of_seq(seq)).collect()
                };
                entries.push(Entry::Marked(relay, marks("Published("), marks("seq: ")));
            }
            "crashed" => {
                claimed[relay] = false;
                entries.push(Entry::RelayCrashed(relay));
            }
            _ => {}
        }
    }

    fn consumer_entry(
        &self,
        line: &Line<'_>,
        instance: &str,
        channels: &mut Channels,
        entries: &mut Vec<Entry>,
    ) {
        match line.step {
            "subscribed" => {
                entries.extend(channels.release(instance).map(Entry::ConsumerCrashed));
                let id = line.detail.trim_start_matches("channel ").split(',').next().unwrap();
                entries.push(Entry::Subscribed(channels.open(id, instance)));
            }
            "crashed" => entries.extend(channels.release(instance).map(Entry::ConsumerCrashed)),
            "applied" | "dead letter" | "acknowledged" => {
                let channel = channels.of(instance);
                entries.extend(self.events_in(line.detail).map(|event| match line.step {
                    "applied" => Entry::Applied(channel, event),
                    "dead letter" => Entry::SetAside(channel, event),
                    _ => Entry::Acknowledged(channel, event),
                }));
            }
            _ => {}
        }
    }

    /// The events of the projection whose ids a text names, in its order.
    fn events_in(&self, text: &str) -> impl Iterator<Item = Event> {
        let words = text.split(|c: char| !c.is_ascii_hexdigit() && c != '-');
        words.filter_map(|word| Some(*self.events.iter().find(|(_, recorded)| recorded.id == word)?.0))
    }

    fn event_of_seq(&self, seq: &str) -> Option<Event> {
        Some(*self.events.iter().find(|(_, recorded)| recorded.seq == seq)?.0)
    }
}

/// Which channel of the model stands for which channel of the history.
#[derive(Default)]
struct Channels([Option<Channel>; CHANNELS]);

struct Channel {
    id: String,
    /// `None` once the instance has released it.
    instance: Option<String>,
    is_open: bool,
}

impl Channels {
    fn open(&mut self, id: &str, instance: &str) -> usize {
        let place = self.0.iter().position(Option::is_none).expect("more channels than the model has");
        self.0[place] = Some(Channel { id: id.into(), instance: Some(instance.into()), is_open: true });
        place
    }

    fn find(&self, is_it: impl Fn(&Channel) -> bool) -> Option<usize> {
        self.0.iter().position(|channel| channel.as_ref().is_some_and(&is_it))
    }

    fn of(&self, instance: &str) -> usize {
        self.find(|channel| channel.instance.as_deref() == Some(instance)).unwrap()
    }

    fn close(&mut self, id: &str) -> usize {
        let place = self.find(|channel| channel.id == id).unwrap();
        self.0[place].as_mut().unwrap().is_open = false;
        self.forget(place)
    }

    /// The instance has lost its memory of the channel.
    fn release(&mut self, instance: &str) -> Option<usize> {
        let place = self.find(|channel| channel.instance.as_deref() == Some(instance))?;
        self.0[place].as_mut().unwrap().instance = None;
        Some(self.forget(place))
    }

    /// Frees the place of a channel that is closed and released.
    fn forget(&mut self, place: usize) -> usize {
        self.0[place].take_if(|channel| !channel.is_open && channel.instance.is_none());
        place
    }
}
