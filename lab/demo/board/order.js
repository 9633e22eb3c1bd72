// One order: placed by a click, and its steps as the rows tell them.
import { send, shown } from './board.js';

const CODE = [
  [/^wrote the order/, 'services/orders/src/place_order.rs'],
  [/^published/, 'shared/outbox/src/relay.rs'],
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

let followed = 0;

async function follow(id, answered) {
  const mine = ++followed;
  const line = document.getElementById('order-line');
  const steps = document.getElementById('order-steps');
  const end = Date.now() + FOLLOW_MILLISECONDS;
  let quiet = 0;
  let count = 0;
  while (mine === followed && Date.now() < end && quiet < 3) {
    try {
      const order = await (await fetch(`/orders/${id}`)).json();
      if (order && mine === followed) {
        line.textContent = `${id}: ${order.status}; answered 201 after ${shown(answered, 1)} ms`;
        line.dataset.status = order.status;
        if (order.steps.length !== count) steps.replaceChildren(...order.steps.map(step));
        quiet = ENDED.includes(order.status) && order.steps.length === count ? quiet + 1 : 0;
        count = order.steps.length;
      }
    } catch {
      line.textContent = `${id}: ? (its rows cannot be read)`;
    }
    await new Promise(done => setTimeout(done, 150));
  }
}

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
  document.getElementById('rate').onchange = async event => {
    try {
      await send('/load', { rate: Number(event.target.value) });
    } catch (error) {
      document.getElementById('order-line').textContent = error.message;
    }
  };
}
