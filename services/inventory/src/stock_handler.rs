use std::collections::{BTreeMap, HashMap, HashSet};

use database::Pool;
use events::{
    Body, Data, Event, Line, NewEvent, OrderCreated, StockRejected, StockReleased, StockReserved, derived_id,
};
use inbox::{Error, Inbox};
use messaging::{Applied, Failure, Handler, Wake};
use rabbitmq::queues;
use sqlx::PgConnection;
use uuid::Uuid;

pub const INBOX: Inbox = Inbox { consumer: "inventory", queue: queues::INVENTORY, keeps_order: true };

/// `OrderCreated`: reserves stock for all of the order's lines, or for none. `OrderCancelled`: releases it. Each answer is
/// an event, inserted in the transaction of the change that it describes.
#[derive(Clone)]
pub struct StockHandler {
    pool: Pool,
    wake: Wake,
}

impl StockHandler {
    pub fn new(pool: Pool, wake: Wake) -> Self {
        Self { pool, wake }
    }
}

impl Handler for StockHandler {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let (applied, answers) = INBOX.apply_once(&self.pool, group, answer_all).await?;
        if answers > 0 {
            self.wake.after_commit();
        }
        Ok(applied)
    }
}

/// Reserves and releases, and returns how many events answer that.
async fn answer_all(transaction: &mut PgConnection, new: &[&Event]) -> Result<usize, Error> {
    // Within a group all creations come before all cancellations. For each order that is the order of its events,
    // and a few statements for each kind do for hundreds of orders.
    let (mut created, mut cancelled) = (vec![], HashMap::new());
    for event in new {
        match &event.body {
            Body::OrderCreated(order) => created.push((*event, order)),
            Body::OrderCancelled(order) => _ = cancelled.insert(event.id, (*event, order.order_id)),
            // Published for other services.
            _ => {}
        }
    }
    let mut answers = vec![];
    if !created.is_empty() && !cancelled.is_empty() {
        lock_stock(transaction, &created, &cancelled).await?;
    }
    if !created.is_empty() {
        answers.extend(reserve(transaction, &created).await?);
    }
    if !cancelled.is_empty() {
        answers.extend(release(transaction, &cancelled).await?);
    }
    outbox::append(transaction, &answers).await?;
    Ok(answers.len())
}

/// Locks the products of a group that both reserves and releases, sorted by SKU. Each of the two locks its products in that
/// order, but not the products of both: transactions of two partitions could deadlock.
async fn lock_stock(
    transaction: &mut PgConnection,
    created: &[(&Event, &OrderCreated)],
    cancelled: &HashMap<Uuid, (&Event, Uuid)>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "select from stock
         where sku = any($1)
            or sku in (select line.sku from reservations join reservation_lines line on line.reservation_id = reservations.id
                       where reservations.order_id = any($2) and reservations.state = 'held')
         order by sku for update",
        &created.iter().flat_map(|(_, order)| &order.lines).map(|line| line.sku.clone()).collect::<Vec<_>>(),
        &cancelled.values().map(|(_, order_id)| *order_id).collect::<Vec<_>>(),
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// The first product of which an order wants more than there is.
fn shortage(
    order: &OrderCreated,
    reservation_id: Uuid,
    free: &BTreeMap<String, i64>,
) -> Option<StockRejected> {
    wanted(order).into_iter().find_map(|(sku, wanted)| {
        let (order_id, available) = (order.order_id, free.get(sku).copied().unwrap_or(0).max(0));
        let sku = sku.to_owned();
        (wanted > available).then_some(StockRejected { reservation_id, order_id, sku, wanted, available })
    })
}

/// The quantities of an order by product. An event may have one product in two lines, although the API refuses it.
fn wanted(order: &OrderCreated) -> BTreeMap<&str, i64> {
    let mut wanted = BTreeMap::new();
    for line in &order.lines {
        *wanted.entry(line.sku.as_str()).or_default() += i64::from(line.quantity);
    }
    wanted
}

/// Reserves stock for the orders, one after the other, except those that are cancelled already: all lines, or none.
async fn reserve(
    transaction: &mut PgConnection,
    orders: &[(&Event, &OrderCreated)],
) -> Result<Vec<NewEvent>, Error> {
    let (cancelled, mut free) = cancelled_and_free(transaction, orders).await?;
    let (mut answers, mut reservations, mut taken) = (vec![], vec![], BTreeMap::new());
    for (event, order) in orders.iter().filter(|(_, order)| !cancelled.contains(&order.order_id)) {
        let (reservation_id, order_id) = (derived_id(event.id, "reservation"), order.order_id);
        let mut reservation =
            Reservation { id: reservation_id, order_id, event_id: event.id, state: "rejected", lines: &[] };
        if let Some(body) = shortage(order, reservation_id, &free) {
            reservations.push(reservation);
            answers.push(answer(event, reservation_id, 1, &body)?);
            continue;
        }
        for (sku, quantity) in wanted(order) {
            *free.entry(sku.to_owned()).or_default() -= quantity;
            *taken.entry(sku.to_owned()).or_default() += quantity;
        }
        (reservation.state, reservation.lines) = ("held", &order.lines);
        reservations.push(reservation);
        answers.push(answer(event, reservation_id, 1, &StockReserved { reservation_id, order_id })?);
    }
    write(transaction, &reservations, taken).await?;
    Ok(answers)
}

/// Which of the orders are cancelled already, and the free quantity of each product that is ordered. The products are locked
/// until the commit, sorted by SKU, so that two transactions cannot deadlock.
///
/// One statement. The cancellations are no column beside the products: an order without any known product would have no row,
/// and be rejected although it is cancelled.
async fn cancelled_and_free(
    transaction: &mut PgConnection,
    orders: &[(&Event, &OrderCreated)],
) -> Result<(HashSet<Uuid>, BTreeMap<String, i64>), sqlx::Error> {
    let skus: HashSet<_> =
        orders.iter().flat_map(|(_, order)| &order.lines).map(|line| line.sku.clone()).collect();
    let row = sqlx::query!(
        r#"with free as materialized (
               select sku, on_hand - reserved as free from stock where sku = any($1) order by sku for update
           )
           select array(select order_id from cancelled_orders where order_id = any($2)) as "cancelled!",
                  array(select sku from free order by sku) as "skus!",
                  array(select free from free order by sku) as "free!""#,
        &skus.into_iter().collect::<Vec<_>>(),
        &orders.iter().map(|(_, order)| order.order_id).collect::<Vec<_>>(),
    )
    .fetch_one(transaction)
    .await?;
    Ok((row.cancelled.into_iter().collect(), row.skus.into_iter().zip(row.free).collect()))
}

/// Releases the reservations of cancelled orders, and records the cancellations.
async fn release(
    transaction: &mut PgConnection,
    orders: &HashMap<Uuid, (&Event, Uuid)>,
) -> Result<Vec<NewEvent>, Error> {
    let (event_ids, order_ids): (Vec<_>, Vec<_>) =
        orders.iter().map(|(event_id, (_, order_id))| (*event_id, *order_id)).unzip();
    let released = sqlx::query!(
        r#"update reservations set state = 'released', released_by = off.event_id, released_at = clock_timestamp()
           from unnest($1::uuid[], $2::uuid[]) as off (order_id, event_id)
           where reservations.order_id = off.order_id and state = 'held'
           returning reservations.id, reservations.order_id, released_by as "released_by!""#,
        &order_ids,
        &event_ids,
    )
    .fetch_all(&mut *transaction)
    .await?;
    sqlx::query!(
        "insert into cancelled_orders (order_id, event_id, came_first)
         select off.order_id, off.event_id,
                not exists (select from reservations asked where asked.order_id = off.order_id)
         from unnest($1::uuid[], $2::uuid[]) as off (order_id, event_id)
         on conflict (order_id) do nothing",
        &order_ids,
        &event_ids,
    )
    .execute(&mut *transaction)
    .await?;
    let reservations: Vec<_> = released.iter().map(|reservation| reservation.id).collect();
    give_back(transaction, &reservations).await?;

    let mut answers = vec![];
    for row in released {
        if let Some((event, _)) = orders.get(&row.released_by) {
            let body = StockReleased { reservation_id: row.id, order_id: row.order_id };
            answers.push(answer(event, row.id, 2, &body)?);
        }
    }
    Ok(answers)
}

/// An event that answers `cause`, in the same trace.
fn answer<D: Data>(cause: &Event, reservation_id: Uuid, version: i32, body: &D) -> Result<NewEvent, Error> {
    Ok(NewEvent::of(reservation_id, version, &cause.trace, body)?)
}

/// A row of `reservations`, with its lines if it is held.
struct Reservation<'event> {
    id: Uuid,
    order_id: Uuid,
    event_id: Uuid,
    state: &'static str,
    lines: &'event [Line],
}

/// Inserts reservations with their lines, and takes their quantities from the stock, whose rows are locked already.
async fn write(
    transaction: &mut PgConnection,
    reservations: &[Reservation<'_>],
    taken: BTreeMap<String, i64>,
) -> Result<(), sqlx::Error> {
    let numbered =
        |reservation: &Reservation<'_>| (1_i16..).zip(reservation.lines).map(|(n, _)| n).collect::<Vec<_>>();
    let lines = || reservations.iter().flat_map(|one| one.lines.iter().map(move |line| (one.id, line)));
    let (skus, amounts): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
    sqlx::query!(
        "with reservation as (
             insert into reservations (id, order_id, event_id, state)
             select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[])
         ), line as (
             insert into reservation_lines (reservation_id, line_number, sku, quantity)
             select * from unnest($5::uuid[], $6::smallint[], $7::text[], $8::int[])
         )
         update stock set reserved = stock.reserved + taken.amount
         from unnest($9::text[], $10::bigint[]) as taken (sku, amount)
         where stock.sku = taken.sku",
        &reservations.iter().map(|reservation| reservation.id).collect::<Vec<_>>(),
        &reservations.iter().map(|reservation| reservation.order_id).collect::<Vec<_>>(),
        &reservations.iter().map(|reservation| reservation.event_id).collect::<Vec<_>>(),
        &reservations.iter().map(|reservation| reservation.state.to_owned()).collect::<Vec<_>>(),
        &lines().map(|(id, _)| id).collect::<Vec<_>>(),
        &reservations.iter().flat_map(numbered).collect::<Vec<_>>(),
        &lines().map(|(_, line)| line.sku.clone()).collect::<Vec<_>>(),
        &lines().map(|(_, line)| line.quantity).collect::<Vec<_>>(),
        &skus,
        &amounts,
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Gives the quantities of reservations back. Rows are locked in the order of their SKUs, as in [`cancelled_and_free`].
async fn give_back(transaction: &mut PgConnection, reservations: &[Uuid]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "update stock set reserved = stock.reserved - back.amount
         from (
             select sku, amount
             from stock join (
                 select sku, sum(quantity)::bigint as amount from reservation_lines
                 where reservation_id = any($1) group by sku
             ) line using (sku)
             order by sku for update of stock
         ) back
         where stock.sku = back.sku",
        reservations,
    )
    .execute(transaction)
    .await?;
    Ok(())
}
