use messaging::SharedHandler;
use outbox::{Relay, Wake};

use crate::{ConsumerTasks, Process, RelayTasks, settings::CommonSettings};

/// What a program can replace in a service. Each default is the product's part, so a program of the lab states only the part
/// that it replaces and is the product in everything else.
pub trait Parts {
    /// Changes settings before they are used.
    fn settings(&self, _common: &mut CommonSettings) -> impl Future<Output = anyhow::Result<()>> {
        async { Ok(()) }
    }

    /// Whether the database can be used, for health.
    fn database(
        &self,
        probe: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        probe
    }

    /// Whether the consumer has applied what waited in its queue.
    fn caught_up(
        &self,
        probe: impl Fn() -> bool + Send + Sync + 'static,
    ) -> impl Fn() -> bool + Send + Sync + 'static {
        probe
    }

    /// What a committed event wakes.
    fn wake(&self, relays: Wake) -> Wake {
        relays
    }

    fn start_relays(
        &self,
        relays: RelayTasks,
        process: &mut Process,
    ) -> impl Future<Output = anyhow::Result<()>> {
        relays.start(process, Relay::new);
        async { Ok(()) }
    }

    fn start_consumer(
        &self,
        consumer: ConsumerTasks,
        handler: SharedHandler,
        process: &mut Process,
    ) -> impl Future<Output = ()> {
        consumer.start(process, handler, |letters| letters);
        async {}
    }
}

/// All parts are the product's.
#[derive(Debug, Clone, Copy)]
pub struct Product;

impl Parts for Product {}
