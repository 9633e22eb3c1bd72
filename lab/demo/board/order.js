// One order: placed by a click, and its steps as the rows tell them.
import { ask, attempt, send, shown } from './page.js';

const CODE = [
  [/^wrote the order/, 'services/orders/src/place_order.rs'],
  [/^marked/, 'shared/outbox/src/relay.rs'],
  [/^(reserved|rejected|released)/, 'services/inventory/src/stock_handler.rs'],
  [/^recorded the payment/, 'services/billing/src/payment_handler.rs'],
  [/^(charged|declined|refunded)/, 'services/billing/src/payment_worker.rs'],
  [/^(applied|confirmed|cancelled)/, 'services/orders/src/order_handler.rs'],
];

const ENDED = ['confirmed', 'cancelled'];
const FOLLOW_MILLISECONDS = 120_000;

function step({ at, who, what }) {
  const item = document.createElement('li');
  const cell = (name, text) => {
    const made = document.createElement('span');
    made.className = name;
    made.textContent = text;
    item.append(made);
  };
  cell('at', `${shown(at, 1)} ms`);
  cell('who', who);
  cell('what', what);
  item.title = CODE.find(([pattern]) => pattern.test(what))?.[1] ?? '';
  return item;
}

let drawnSteps = '';

/** Shows an order. `until` is the number of milliseconds after it was placed that are shown of it. */
export function showStory({ id, status, steps }, answered, until = Infinity) {
  const line = document.getElementById('order-line');
  line.textContent = `${id}: ${status}${answered === null ? '' : `; answered 201 after ${shown(answered, 1)} ms`}`;
  line.dataset.status = status;
  const visible = steps.filter(({ at }) => at <= until);
  const key = `${id} ${visible.length}`;
  if (key === drawnSteps) return;
  drawnSteps = key;
  document.getElementById('order-steps').replaceChildren(...visible.map(step));
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
