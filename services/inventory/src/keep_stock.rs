use std::collections::{BTreeMap, HashMap, HashSet};

use events::{
    Body, Data, Draft, Event, OrderCreated, StockRejected, StockReleased, StockReserved,
    transport::{Applied, Failure, Handler},
};
use faults::Point;
use outbox::Wake;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// The name under which this consumer's events are recorded.
pub const CONSUMER: &str = "inventory";

/// `OrderCreated` → stock is put aside for all of its lines, or for none. `OrderCancelled` → it is put back. Each answer
/// is an event, written in the transaction of what it tells of.
#[derive(Clone)]
pub struct KeepStock {
    pool: PgPool,
    wake: Wake,
}

impl KeepStock {
    /// Applies into the schema of the pool's login, and wakes the relays when there is something to publish.
    pub fn new(pool: PgPool, wake: Wake) -> Self {
        Self { pool, wake }
    }
}

impl Handler for KeepStock {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let mut transaction = self.pool.begin().await.map_err(inbox::failure)?;
        let first = inbox::first_time(&mut transaction, CONSUMER, group).await?;
        // Within a group all creations come before all cancellations. For each order that is the order of its events,
        // and a few statements for each kind do for hundreds of orders.
        let (mut created, mut cancelled) = (vec![], HashMap::new());
        for event in &first {
            match &event.body {
                Body::OrderCreated(order) => created.push((*event, order)),
                Body::OrderCancelled(order) => _ = cancelled.insert(event.id, (*event, order.order_id)),
                // Published for others, and of no consequence here.
                _ => {}
            }
        }
        let mut answers = vec![];
        if !created.is_empty() {
            answers.extend(reserve(&mut transaction, &created).await?);
        }
        if !cancelled.is_empty() {
            answers.extend(release(&mut transaction, &cancelled).await?);
        }
        outbox::append(&mut transaction, &answers).await.map_err(inbox::failure)?;
        faults::reach(Point::EffectWritten);
        // "Processed", the effect and the answer become true together, or not at all. The acknowledgement comes after
        // this line: before it, a crash would lose the event; after it, a crash only brings a duplicate.
        transaction.commit().await.map_err(inbox::failure)?;
        faults::reach(Point::EffectCommitted);
        if !answers.is_empty() {
            self.wake.after_commit();
        }
        Ok(inbox::applied(group, &first))
    }
}

/// Too little of something.
struct Shortage {
    sku: String,
    wanted: i64,
    available: i64,
}

/// What is lacking for an order, if anything is.
fn shortage(order: &OrderCreated, free: &BTreeMap<String, i64>) -> Option<Shortage> {
    wanted(order).into_iter().find_map(|(sku, wanted)| {
        let available = free.get(sku).copied().unwrap_or(0).max(0);
        (wanted > available).then(|| Shortage { sku: sku.to_owned(), wanted, available })
    })
}

/// An order's pieces by product. One product in two lines is legal in an event, whatever the API says.
fn wanted(order: &OrderCreated) -> BTreeMap<&str, i64> {
    let mut wanted = BTreeMap::new();
    for line in &order.lines {
        *wanted.entry(line.sku.as_str()).or_default() += i64::from(line.quantity);
    }
    wanted
}

/// Answers all orders, one after the other, except those that are off already: each gets all that it asks for, or nothing.
async fn reserve(
    transaction: &mut PgConnection,
    orders: &[(&Event, &OrderCreated)],
) -> Result<Vec<Draft>, Failure> {
    let ids: Vec<_> = orders.iter().map(|(_, order)| order.order_id).collect();
    let off = sqlx::query_scalar!("select order_id from cancelled_orders where order_id = any($1)", &ids)
        .fetch_all(&mut *transaction)
        .await
        .map_err(inbox::failure)?;
    let off: HashSet<_> = off.into_iter().collect();
    let mut free = free_stock(transaction, orders).await.map_err(inbox::failure)?;

    let (mut answers, mut decided, mut lines, mut taken) =
        (vec![], Columns::default(), Lines::default(), BTreeMap::new());
    for (event, order) in orders.iter().filter(|(_, order)| !off.contains(&order.order_id)) {
        let (reservation_id, order_id) = (Uuid::now_v7(), order.order_id);
        let shortage = shortage(order, &free);
        decided.push(reservation_id, order_id, event.id, shortage.is_none());
        if let Some(Shortage { sku, wanted, available }) = shortage {
            let body = StockRejected { reservation_id, order_id, sku, wanted, available };
            answers.push(answer(event, reservation_id, 1, &body)?);
            continue;
        }
        for (sku, quantity) in wanted(order) {
            *free.entry(sku.to_owned()).or_default() -= quantity;
            *taken.entry(sku.to_owned()).or_default() += quantity;
        }
        lines.push(reservation_id, order);
        answers.push(answer(event, reservation_id, 1, &StockReserved { reservation_id, order_id })?);
    }
    write(transaction, &decided, &lines).await.map_err(inbox::failure)?;
    move_stock(transaction, taken).await.map_err(inbox::failure)?;
    Ok(answers)
}

/// How many pieces are to be had of each product that is asked for. Locked until the commit, in one order for everybody.
async fn free_stock(
    transaction: &mut PgConnection,
    orders: &[(&Event, &OrderCreated)],
) -> Result<BTreeMap<String, i64>, sqlx::Error> {
    let skus: HashSet<_> =
        orders.iter().flat_map(|(_, order)| &order.lines).map(|line| line.sku.clone()).collect();
    let rows = sqlx::query!(
        r#"select sku, on_hand - reserved as "free!" from stock where sku = any($1) order by sku for update"#,
        &skus.into_iter().collect::<Vec<_>>(),
    )
    .fetch_all(transaction)
    .await?;
    Ok(rows.into_iter().map(|row| (row.sku, row.free)).collect())
}

/// Puts back what the orders hold, and notes that they are off.
async fn release(
    transaction: &mut PgConnection,
    orders: &HashMap<Uuid, (&Event, Uuid)>,
) -> Result<Vec<Draft>, Failure> {
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
    .await
    .map_err(inbox::failure)?;
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
    .await
    .map_err(inbox::failure)?;
    let back = sqlx::query!(
        r#"select sku, sum(quantity)::bigint as "quantity!" from reservation_lines
           where reservation_id = any($1) group by sku"#,
        &released.iter().map(|reservation| reservation.id).collect::<Vec<_>>(),
    )
    .fetch_all(&mut *transaction)
    .await
    .map_err(inbox::failure)?;
    let back = back.into_iter().map(|line| (line.sku, -line.quantity)).collect();
    move_stock(transaction, back).await.map_err(inbox::failure)?;

    let mut answers = vec![];
    for row in released {
        if let Some((event, _)) = orders.get(&row.released_by) {
            let body = StockReleased { reservation_id: row.id, order_id: row.order_id };
            answers.push(answer(event, row.id, 2, &body)?);
        }
    }
    Ok(answers)
}

/// An event of ours, in the trace of the one that it answers.
fn answer<D: Data>(cause: &Event, reservation_id: Uuid, version: i32, body: &D) -> Result<Draft, Failure> {
    let aggregate = ("reservation", reservation_id, version);
    Draft::of("/inventory", aggregate, &cause.trace.child(), body)
        .map_err(|error| Failure::Unexpected(error.into()))
}

/// Rows of `reservations`, by column.
#[derive(Default)]
struct Columns {
    ids: Vec<Uuid>,
    order_ids: Vec<Uuid>,
    event_ids: Vec<Uuid>,
    states: Vec<String>,
}

impl Columns {
    fn push(&mut self, id: Uuid, order_id: Uuid, event_id: Uuid, held: bool) {
        self.ids.push(id);
        self.order_ids.push(order_id);
        self.event_ids.push(event_id);
        self.states.push(if held { "held" } else { "rejected" }.into());
    }
}

/// Rows of `reservation_lines`, by column.
#[derive(Default)]
struct Lines {
    reservation_ids: Vec<Uuid>,
    numbers: Vec<i16>,
    skus: Vec<String>,
    quantities: Vec<i32>,
}

impl Lines {
    fn push(&mut self, reservation_id: Uuid, order: &OrderCreated) {
        for (number, line) in (1_i16..).zip(&order.lines) {
            self.reservation_ids.push(reservation_id);
            self.numbers.push(number);
            self.skus.push(line.sku.clone());
            self.quantities.push(line.quantity);
        }
    }
}

async fn write(transaction: &mut PgConnection, decided: &Columns, lines: &Lines) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "insert into reservations (id, order_id, event_id, state)
         select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[])",
        &decided.ids,
        &decided.order_ids,
        &decided.event_ids,
        &decided.states,
    )
    .execute(&mut *transaction)
    .await?;
    sqlx::query!(
        "insert into reservation_lines (reservation_id, line_number, sku, quantity)
         select * from unnest($1::uuid[], $2::smallint[], $3::text[], $4::int[])",
        &lines.reservation_ids,
        &lines.numbers,
        &lines.skus,
        &lines.quantities,
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Adds to what is spoken for. Sorted by SKU, as everywhere: two who touch the same rows lock them in the same order.
async fn move_stock(transaction: &mut PgConnection, moved: BTreeMap<String, i64>) -> Result<(), sqlx::Error> {
    let (skus, amounts): (Vec<_>, Vec<_>) = moved.into_iter().unzip();
    sqlx::query!(
        "update stock set reserved = stock.reserved + more.amount
         from (select * from unnest($1::text[], $2::bigint[]) as more (sku, amount) order by sku) more
         where stock.sku = more.sku",
        &skus,
        &amounts,
    )
    .execute(transaction)
    .await?;
    Ok(())
}
