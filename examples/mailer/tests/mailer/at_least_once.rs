//! A crash between the commit and the acknowledgement.

use std::time::Duration;

use fault_proxy::{Direction, Effect, Fault, Proxy, Route};
use testbed::eventually;
use uuid::Uuid;

use crate::{
    process::Mailer,
    support::{DEADLINE, MailerDatabase, confirmed, publish, publisher},
};

/// How a frame with `basic.ack` begins, after its type and its channel: the size of the frame, then class and method.
const ACKNOWLEDGEMENT: [u8; 8] = [0, 0, 0, 13, 0, 60, 0, 80];

#[tokio::test]
async fn mailer_killed_between_commit_and_acknowledgement_writes_one_mail() -> anyhow::Result<()> {
    let (database, vhost) = (MailerDatabase::create().await?, testbed::vhost().await?);
    let url = vhost.url();
    let proxy = Proxy::start(vec![Route::to("rabbitmq", &url)?]).await?;
    let mailer = Mailer::start(&database, &proxy.through("rabbitmq", &url)?).await?;
    let mut publisher = publisher(&url).await?;
    // The acknowledgement is sent after the commit, and never reaches the broker.
    let no_acknowledgement = Effect::ResetOnPattern { pattern: ACKNOWLEDGEMENT.to_vec(), forward: false };
    let fault = Fault::new(no_acknowledgement, Direction::TowardUpstream, Duration::from_secs(600));
    proxy.set("rabbitmq", fault)?;
    let order = Uuid::now_v7();
    publish(&mut publisher, &[confirmed(order)]).await?;
    eventually("the acknowledgement to be lost", DEADLINE, async || {
        Ok((proxy.stats()["rabbitmq"].resets > 0).then_some(()))
    })
    .await?;
    mailer.service.kill().await?;
    let mail = [(order, "confirmed".to_owned())];
    assert_eq!(database.mails().await?, mail);

    let restarted = Mailer::start(&database, &url).await?;
    eventually("the event to be delivered again", DEADLINE, async || {
        Ok((restarted.duplicates().await? == 1).then_some(()))
    })
    .await?;
    database.wait_for_mails(&mail).await
}
