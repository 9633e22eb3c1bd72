//! Every secret of the services is changed under load, by the steps of `docs/operations.md#rotate-credentials`.

use std::time::Duration;

use anyhow::Result;
use sqlx::{Connection as _, PgConnection};
use testbed::{new_password, sql};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::at_end::each_order_was_answered;
use super::drill::{Drill, Group, Subject};
use super::drill_run::{DrillRun, Ended};
use super::report::Refusals;
use crate::http;
use crate::lab::{CONDITION_DEADLINE, Setup};
use crate::own_system::{OwnSystem, with_login};
use crate::part::SERVICES;

pub(super) static DRILLS: [Drill; 1] = [Drill {
    name: "credentials-rotated",
    teaches: "A server asks for a password when a session begins, and never again. So the old sessions work until each instance \
              was started with the new password.",
    question: "The passwords of all services and the token of the admin API are changed while orders are placed. Which order is \
               refused, and which operator?",
    claim: "Two instances of each service get other passwords and another token one after the other. No order is lost, no effect \
            is doubled, and each client is answered. Only a request for which an instance opens a session before its restart is \
            refused. Afterwards PostgreSQL refuses the old passwords, and the admin API the old token.",
    outage: Duration::from_secs(5),
    system: Subject::Own(|| OwnSystem {
        broker_users: true,
        ..Setup::default().with_instances(2, 2, 2).into()
    }),
    steps: Some(|run| Box::pin(rotate(run))),
    refusals: Refusals::AreExpected,
    at_end: &[each_order_was_answered, |run, Ended { load, .. }| {
        let (refused, sent) = (load.refused_in_all(), load.sent);
        let share = refused as f64 / sent as f64;
        run.promised(format!("{refused} of {sent} orders were refused: at most one in ten"), share <= 0.1);
    }],
    group: Group::Service,
    ..Drill::ROW
}];

/// The SQLSTATE.
const WRONG_PASSWORD: &str = "28P01";

async fn rotate(run: &DrillRun<'_>) -> Result<()> {
    let processes = &run.system.own()?.processes;
    let admin_url = run.system.own()?.databases.admin_url("shop")?;
    let secret = || Uuid::new_v4().simple().to_string();
    let (old_token, new_token) = (processes.admin_token(), secret());
    processes.set_for_services("ADMIN_TOKEN", &format!("{new_token},{old_token}"));
    let mut old_urls = vec![];
    for service in SERVICES {
        let (password, prefix) = (secret(), service.to_uppercase());
        sql::execute(&admin_url, &new_password(service, &password), CONDITION_DEADLINE).await?;
        run.system.broker_api()?.set_user(service, &password).await?;
        for variable in [format!("{prefix}_DATABASE_URL"), format!("{prefix}_AMQP_URL")] {
            let old = processes.setting(service, &variable)?;
            processes.set(&variable, &with_login(&old, service, &password)?);
            old_urls.push((variable, old));
        }
        run.phase(
            "rotate",
            format!("{service}: the servers have new passwords, both instances the old ones"),
        );
        sleep(run.outage).await;
        restart(run, service).await?;
    }
    for (whose, token) in [("old", old_token), ("new", &*new_token)] {
        run.promised(
            format!("an operator with the {whose} token is answered"),
            answered(run, token).await? == 200,
        );
    }
    processes.set_for_services("ADMIN_TOKEN", &new_token);
    for service in SERVICES {
        restart(run, service).await?;
    }
    run.promised("the old token is refused", answered(run, old_token).await? == 401);
    for (variable, url) in old_urls.iter().filter(|(variable, _)| variable.ends_with("DATABASE_URL")) {
        let refused = timeout(CONDITION_DEADLINE, PgConnection::connect(url)).await?.err();
        let is_password =
            refused.and_then(|error| error.into_database_error()?.code().map(|it| it == WRONG_PASSWORD));
        run.promised(format!("the old {variable} is refused"), is_password == Some(true));
    }
    Ok(())
}

/// Restarts the instances of a service one after the other. The load goes to the other order service meanwhile.
async fn restart(run: &DrillRun<'_>, service: &str) -> Result<()> {
    let processes = &run.system.own()?.processes;
    let second = format!("{service}-2");
    for (name, other) in [(&*second, service), (service, &*second)] {
        if service == "orders" {
            run.move_load(processes.url(other)?).await?;
        }
        let code = processes.terminate(name).await?;
        run.promised(format!("{name} was stopped with exit code 0"), code == Some(0));
        processes.start_again(name).await?;
        processes.wait_ready(CONDITION_DEADLINE).await?;
    }
    run.phase("restart", format!("both instances of {service} were started again"));
    Ok(())
}

/// The status that the admin API of orders answers an operator with this token.
async fn answered(run: &DrillRun<'_>, token: &str) -> Result<u16> {
    let url = format!("{}/admin/parked", run.system.processes()?.admin_url("orders")?);
    Ok(http::admin_request(&url, token, None).await?.0)
}
