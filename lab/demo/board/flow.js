// The way of the events: each part with its state, each arrow with its rate and what waits there.
import { shown } from './page.js';

const NS = 'http://www.w3.org/2000/svg';
const PARTS = {
  orders: { x: 10, y: 60, w: 150, h: 150, title: 'orders' },
  broker: { x: 260, y: 60, w: 130, h: 150, title: 'RabbitMQ' },
  inventory: { x: 490, y: 10, w: 140, h: 92, title: 'inventory' },
  billing: { x: 490, y: 168, w: 140, h: 92, title: 'billing' },
  provider: { x: 490, y: 290, w: 140, h: 46, title: 'provider' },
  database: { x: 10, y: 290, w: 380, h: 46, title: 'PostgreSQL: all tables' },
};
const WORDS = { up: 'up', down: 'DOWN', frozen: 'FROZEN', unknown: '?' };

let built;

function element(name, attributes, parent, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function build() {
  const svg = element('svg', { viewBox: '0 0 640 346', role: 'img', 'aria-label': 'The parts of the system and what waits between them' },
    document.getElementById('flow'));
  const defs = element('defs', {}, svg);
  const marker = element('marker', { id: 'head', viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: 'auto' }, defs);
  element('path', { d: 'M0 0 L8 4 L0 8 z' }, marker);
  const parts = {};
  for (const [name, { x, y, w, h, title }] of Object.entries(PARTS)) {
    const group = element('g', {}, svg);
    element('rect', { class: 'part', x, y, width: w, height: h, rx: 5 }, group);
    element('text', { x: x + 10, y: y + 20 }, group, title);
    const state = element('text', { x: x + w - 10, y: y + 20, 'text-anchor': 'end', class: 'number' }, group);
    const lines = [0, 1, 2, 3, 4].map(line =>
      element('text', { x: x + 10, y: y + 42 + 19 * line, class: 'quiet' }, group));
    parts[name] = { group, state, lines };
  }
  const arrow = (d, x, y) => {
    element('path', { class: 'arrow', d, 'marker-end': 'url(#head)' }, svg);
    return element('text', { x, y, 'text-anchor': 'middle', class: 'quiet' }, svg);
  };
  const arrows = {
    published: arrow('M160 110 H256', 208, 102),
    inventory: arrow('M390 90 L486 56', 432, 58),
    billing: arrow('M390 180 L486 214', 432, 222),
    answers: arrow('M260 180 H164', 210, 198),
  };
  return { parts, arrows };
}

/** Per second between two snapshots. Unknown, or a restart in between: null. */
export function rate(now, before, service, name) {
  const at = snapshot => snapshot.metrics[service]?.[name];
  const seconds = (now.at - before.at) / 1000;
  // A counter that has not counted yet is not there; the page itself is.
  if (!now.metrics[service] || !before.metrics[service] || seconds <= 0) return null;
  const difference = (at(now) ?? 0) - (at(before) ?? 0);
  return difference < 0 ? null : difference / seconds;
}

function outboxLines(now, before, service) {
  const value = name => now.metrics[service] ? now.metrics[service][name] ?? null : null;
  return [
    `outbox: ${shown(value('outbox_pending'))} pending`,
    `oldest: ${shown(value('outbox_oldest_pending_age_seconds'), 1)} s`,
    `published: ${shown(rate(now, before, service, 'outbox_published_total'), 0)}/s`,
  ];
}

export function drawFlow(now, before) {
  built ??= build();
  const { parts, arrows } = built;
  for (const name of Object.keys(PARTS)) {
    const state = now.parts[name] ?? 'unknown';
    parts[name].group.setAttribute('class', state);
    parts[name].state.textContent = WORDS[state];
  }
  const set = (name, lines) => parts[name].lines.forEach((line, index) => { line.textContent = lines[index] ?? ''; });
  const metric = (service, name) => now.metrics[service] ? now.metrics[service][name] ?? null : null;
  const answered = rate(now, before, 'orders', 'http_request_seconds_count:201');
  set('orders', [`POST: ${shown(answered, 0)} accepted/s`, ...outboxLines(now, before, 'orders'),
    `open orders: ${shown(metric('orders', 'orders_open'))}`]);
  for (const service of ['inventory', 'billing']) {
    set(service, [`applied: ${shown(rate(now, before, service, 'inbox_applied_total'))}/s`,
      `copies dropped: ${shown(metric(service, 'inbox_duplicates_total') ?? (now.metrics[service] ? 0 : null))}`,
      `outbox: ${shown(metric(service, 'outbox_pending'))} pending`]);
  }
  set('provider', [`payments waiting: ${shown(metric('billing', 'payments_pending'))}`]);
  set('database', ['every order, event and record: written before it is answered']);
  set('broker', ['waiting messages:', ...['inventory', 'billing', 'orders'].map(service =>
    `${service}: ${shown(metric(service, 'broker_queue_ready'))}`)]);
  arrows.published.textContent = `${shown(rate(now, before, 'orders', 'outbox_published_total'))}/s`;
  arrows.inventory.textContent = `${shown(rate(now, before, 'inventory', 'inbox_applied_total'))}/s`;
  arrows.billing.textContent = `${shown(rate(now, before, 'billing', 'inbox_applied_total'))}/s`;
  arrows.answers.textContent = `${shown(rate(now, before, 'orders', 'inbox_applied_total'))}/s`;
}
