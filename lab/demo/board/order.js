// One order: placed by a click, and its life as the rows tell it, each step with the time since the order was placed.
import { ask, attempt, made, send, shown } from './page.js';

/** The steps: what each looks like, the source of its code, and the steps that it waited for. */
const STEPS = [
  [/^wrote the order/, 'services/orders/src/place_order.rs'],
  [/^marked OrderCreated/, 'shared/messaging/src/relay.rs', /^wrote the order/],
  [/^marked OrderC/, 'shared/messaging/src/relay.rs', /^(confirmed|cancelled) the order/],
  [/^marked Stock/, 'shared/messaging/src/relay.rs', /the stock$|out of stock/],
  [/^marked Payment/, 'shared/messaging/src/relay.rs', /^(charged|declined|refunded)/],
  [/^(reserved|rejected)/, 'services/inventory/src/stock_handler.rs', /^wrote the order/],
  [/^released/, 'services/inventory/src/stock_handler.rs', /^cancelled the order/],
  [/^recorded the payment/, 'services/billing/src/payment_handler.rs', /^wrote the order/],
  [/^(charged|declined)/, 'services/billing/src/payment_worker.rs', /^recorded the payment/],
  [/^refunded/, 'services/billing/src/payment_worker.rs', /^cancelled the order/],
  [/^applied Stock/, 'services/orders/src/order_handler.rs', /the stock$|out of stock/],
  [/^applied Payment/, 'services/orders/src/order_handler.rs', /^(charged|declined)/],
  [/^(confirmed|cancelled)/, 'services/orders/src/order_handler.rs', /^applied/],
];

const ENDED = ['confirmed', 'cancelled'];
const FOLLOW_MILLISECONDS = 120_000;

function stepRow({ at, who, what }, steps, end) {
  const [, source, cause] = STEPS.find(([pattern]) => pattern.test(what)) ?? [];
  const item = made('li', '', { title: source ?? '' });
  const earlier = steps.filter(step => cause?.test(step.what) && step.at <= at);
  const from = Math.max(0, ...earlier.map(step => step.at));
  const bar = made('i', '', { class: who.replace(/^relay of.*/, 'relay').replace(/ .*/, '') });
  bar.style.left = `${100 * from / end}%`;
  bar.style.width = `${100 * Math.max(0.004, (at - from) / end)}%`;
  const track = made('span', '', { class: 'track' });
  track.append(bar);
  item.append(made('span', who, { class: 'who' }), made('span', what, { class: 'what' }), track,
    made('span', `${shown(at, at < 100 ? 1 : 0)} ms`, { class: 'at' }));
  return item;
}

let drawnSteps = '';

/** Shows an order. `until` is the number of milliseconds after it was placed that are shown of it. */
export function showStory({ id, status, steps }, answered, until = Infinity) {
  const line = document.getElementById('order-line');
  const visible = steps.filter(({ at }) => at <= until);
  const end = Math.max(1, ...visible.map(({ at }) => at));
  line.textContent = `Order …${id.slice(-8)}: ${status}${answered === null ? '' : `, answered 201 after ${shown(answered, 1)} ms`}. `
    + 'A bar begins where its cause was written.';
  line.dataset.status = status;
  const key = `${id} ${visible.length}`;
  if (key === drawnSteps) return;
  drawnSteps = key;
  document.getElementById('order-steps').replaceChildren(...visible.map(step => stepRow(step, visible, end)));
}

let followed = 0;

async function follow(id, answered) {
  const mine = ++followed;
  const line = document.getElementById('order-line');
  const end = Date.now() + FOLLOW_MILLISECONDS;
  let [quiet, count] = [0, 0];
  while (mine === followed && Date.now() < end && quiet < 3) {
    try {
      const order = await ask(`/orders/${id}`);
      if (mine !== followed) return;
      if (order) {
        showStory(order, answered);
        quiet = ENDED.includes(order.status) && order.steps.length === count ? quiet + 1 : 0;
        count = order.steps.length;
      } else {
        line.textContent = `${id}: acknowledged with 201, and its row does NOT EXIST`;
      }
    } catch {
      line.textContent = `${id}: ? (its rows cannot be read)`;
    }
    await new Promise(done => setTimeout(done, 150));
  }
}

/** The buttons that place orders. */
export function startOrder() {
  document.getElementById('place').onclick = async () => {
    const line = document.getElementById('order-line');
    line.textContent = 'placing an order …';
    delete line.dataset.status;
    document.getElementById('order-steps').replaceChildren();
    drawnSteps = '';
    try {
      const { id, milliseconds } = await send('/orders', {});
      await follow(id, milliseconds);
    } catch (error) {
      line.textContent = `not accepted: ${error.message}`;
    }
  };
  document.getElementById('rate').onchange = event =>
    attempt('rate-line', async () => { await send('/load', { rate: Number(event.target.value) }); });
}

/** Marks the rate that the board places, also if another page has chosen it. */
export function showRate({ load }) {
  const chosen = document.querySelector(`#rate [value="${load}"]`);
  for (const button of document.querySelectorAll('#rate input')) button.checked = button === chosen;
}
