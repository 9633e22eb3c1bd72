// The path of the events: each part with its state, what waits in each outbox and queue, and what moves between them.
import { drawn, metric, pending, queued, rate, shown } from './page.js';

const PARTS = {
  orders: { x: 130, y: 6, w: 240, h: 188, title: 'orders' },
  broker: { x: 510, y: 6, w: 180, h: 188, title: 'RabbitMQ' },
  inventory: { x: 830, y: 6, w: 226, h: 88, title: 'inventory' },
  billing: { x: 830, y: 106, w: 226, h: 88, title: 'billing' },
  provider: { x: 1112, y: 106, w: 128, h: 88, title: 'provider' },
  database: { x: 130, y: 200, w: 926, h: 31, title: 'PostgreSQL' },
};
const WORDS = { up: '', down: '✕ DOWN', frozen: 'NO ANSWER', unknown: '?' };
const LANES = 16;

/** What moves along each path: the hop of a row, the ends of the path, and the counter of its rate. */
const PATHS = {
  'written orders': { d: 'M72 100 C100 100 100 100 142 100', parts: ['orders', 'database'], of: ['orders', 'http_request_seconds_count:201'] },
  'published orders': { d: 'M370 78 C430 78 440 78 508 78', parts: ['orders', 'broker', 'database'], of: ['orders', 'outbox_published_total'] },
  'applied inventory': { d: 'M690 62 C750 62 760 34 828 34', parts: ['broker', 'inventory', 'database'], of: ['inventory', 'inbox_applied_total'] },
  'applied billing': { d: 'M690 100 C750 100 760 134 828 134', parts: ['broker', 'billing', 'database'], of: ['billing', 'inbox_applied_total'] },
  'published inventory': { d: 'M828 74 C740 74 760 144 692 144', parts: ['inventory', 'broker', 'database'], of: ['inventory', 'outbox_published_total'] },
  'published billing': { d: 'M828 176 C740 176 760 156 692 156', parts: ['billing', 'broker', 'database'], of: ['billing', 'outbox_published_total'] },
  'applied orders': { d: 'M510 150 C450 150 440 150 372 150', parts: ['broker', 'orders', 'database'], of: ['orders', 'inbox_applied_total'] },
};

const QUEUES = { inventory: 62, billing: 100, orders: 150 };

const DOTS = 240;
const TRAVEL_MILLISECONDS = 800;
/** Rows are up to so old when the page hears of them: a dot starts so long after its event, and dots keep their distances. */
const DELAY_MILLISECONDS = 1200;

let built;

function tray(parent, x, y, width, height) {
  const step = width / LANES;
  return Array.from({ length: LANES }, (_, lane) => {
    drawn('rect', { class: 'lane', x: x + lane * step, y, width: step - 1.5, height }, parent);
    return { bar: drawn('rect', { class: 'waiting', x: x + lane * step, y: y + height, width: step - 1.5, height: 0 }, parent), y, height };
  });
}

function build() {
  const svg = drawn('svg', { viewBox: '0 0 1240 232', role: 'img', 'aria-label': 'The parts of the system, and what moves and waits between them' },
    document.getElementById('flow'));
  const client = drawn('g', { class: 'client' }, svg);
  drawn('text', { x: 36, y: 78, 'text-anchor': 'middle' }, client, 'clients');
  const accepted = drawn('text', { x: 36, y: 106, 'text-anchor': 'middle', class: 'number' }, client);
  drawn('text', { x: 36, y: 126, 'text-anchor': 'middle', class: 'quiet' }, client, 'accepted');
  const paths = {};
  for (const [name, { d }] of Object.entries(PATHS)) {
    const group = drawn('g', { class: 'path' }, svg);
    const line = drawn('path', { class: 'line', d }, group);
    const flow = drawn('path', { class: 'flow', d }, group);
    const length = line.getTotalLength();
    const middle = line.getPointAtLength(length / 2);
    const cut = drawn('text', { class: 'cut', x: middle.x, y: middle.y + 7, 'text-anchor': 'middle' }, group, '✕');
    const moving = flow.animate([{ strokeDashoffset: 26 }, { strokeDashoffset: 0 }], { duration: 1000, iterations: Infinity });
    moving.pause();
    paths[name] = { group, line, flow, length, cut, moving };
  }
  const parts = {};
  for (const [name, { x, y, w, h, title }] of Object.entries(PARTS)) {
    const group = drawn('g', {}, svg);
    drawn('rect', { class: 'part', x, y, width: w, height: h, rx: 8 }, group);
    drawn('text', { class: 'title', x: x + 14, y: y + 25 }, group, title);
    // In a narrow box below everything else.
    const state = drawn('text', { class: 'state', x: x + w - 12, y: w < 200 ? y + h - 9 : y + 25, 'text-anchor': 'end' }, group);
    parts[name] = { group, state };
  }
  const text = (part, x, y, name = 'quiet', anchor = 'start') =>
    drawn('text', { class: name, x: PARTS[part].x + x, y: PARTS[part].y + y, 'text-anchor': anchor }, parts[part].group);
  const texts = {
    ordersOutbox: text('orders', 14, 50, 'label'), oldest: text('orders', 14, 140), ordersCopies: text('orders', 228, 25, 'quiet', 'end'), ordersInbox: text('orders', 14, 172),
    published: text('orders', 258, 60), answers: text('orders', 258, 134),
    inventoryOutbox: text('inventory', 14, 50), inventoryInbox: text('inventory', 212, 50, 'quiet', 'end'),
    inventoryCopies: text('inventory', 212, 25, 'quiet', 'end'), billingCopies: text('billing', 212, 25, 'quiet', 'end'),
    billingOutbox: text('billing', 14, 50), billingInbox: text('billing', 212, 50, 'quiet', 'end'),
    provider: text('provider', 14, 54, 'number'), providerWhat: text('provider', 14, 74),
    database: text('database', 170, 23),
  };
  texts.database.textContent = 'every order, event and record is committed here first';
  texts.providerWhat.textContent = 'to be called';
  const trays = {
    orders: tray(parts.orders.group, 144, 64, 212, 60),
    inventory: tray(parts.inventory.group, 844, 64, 198, 20),
    billing: tray(parts.billing.group, 844, 164, 198, 20),
  };
  const queues = Object.fromEntries(Object.entries(QUEUES).map(([name, y]) => {
    drawn('rect', { class: 'lane', x: 524, y: y - 14, width: 152, height: 28, rx: 14 }, parts.broker.group);
    const bar = drawn('rect', { class: 'waiting queue', x: 524, y: y - 14, width: 0, height: 28, rx: 14 }, parts.broker.group);
    drawn('text', { class: 'quiet', x: 536, y: y + 5 }, parts.broker.group, `for ${name}`);
    return [name, { bar, number: drawn('text', { class: 'label', x: 666, y: y + 6, 'text-anchor': 'end' }, parts.broker.group) }];
  }));
  const wire = drawn('path', { class: 'line', d: 'M1058 150 L1110 150' }, svg);
  const dots = Array.from({ length: DOTS }, () => drawn('circle', { class: 'dot', r: 6.5, cx: -20, cy: -20 }, svg));
  return { svg, accepted, paths, parts, texts, trays, queues, wire, dots };
}

/** The dots that are on their way: each is one event. */
let travelling = [];
const calm = matchMedia('(prefers-reduced-motion: reduce)');

const kind = type => /Confirmed/.test(type) ? 'confirmed' : /Created/.test(type) ? 'created'
  : /Cancelled|Rejected|Declined|Released|Refunded/.test(type) ? 'undone' : 'answer';

function travel(time) {
  const { paths, dots } = built;
  travelling = travelling.filter(({ starts, dot }) => {
    if (time < starts + TRAVEL_MILLISECONDS) return true;
    if (dot) {
      dot.setAttribute('class', 'dot');
      dots.push(dot);
    }
    return false;
  });
  for (const move of travelling) {
    if (time < move.starts) continue;
    move.dot ??= dots.pop();
    if (!move.dot) continue;
    const { line, length } = paths[move.path];
    const done = (time - move.starts) / TRAVEL_MILLISECONDS;
    const { x, y } = line.getPointAtLength(length * (1 - (1 - done) ** 2));
    move.dot.setAttribute('class', `dot ${kind(move.type)}`);
    move.dot.setAttribute('cx', x);
    move.dot.setAttribute('cy', y);
  }
  if (travelling.length) requestAnimationFrame(travel);
}

function start(moves) {
  const began = performance.now();
  const idle = !travelling.length;
  for (const [path, type, , age] of moves) {
    // An event that orders writes when it applies an answer comes from no client.
    if (!PATHS[path] || (path === 'written orders' && type !== 'OrderCreated')) continue;
    travelling.push({ path, type, starts: began + Math.max(0, DELAY_MILLISECONDS - age) });
  }
  if (idle && travelling.length) requestAnimationFrame(travel);
}

let lastMoves;

/** What is known of a part that does not answer: the board has frozen it, or it starts after the board's kill. */
function word({ fault }, name, state) {
  const struck = state === 'frozen' && fault && fault.phase !== 'over' && fault.what.startsWith(`${name}: `);
  return !struck ? WORDS[state] : fault.what.includes('SIGKILL') ? 'STARTING' : 'FROZEN';
}

/** Shows a snapshot. `before` is one of some seconds earlier, for the rates. */
export function drawFlow(now, before) {
  built ??= build();
  const { parts, paths, texts, trays, queues, wire } = built;
  const isUp = name => now.parts[name] === 'up';
  for (const name of Object.keys(PARTS)) {
    const state = now.parts[name] ?? 'unknown';
    parts[name].group.setAttribute('class', state);
    parts[name].state.textContent = word(now, name, state);
  }
  const flows = now.moves === null;
  let moving = 0;
  for (const [name, { parts: ends, of: [service, counter] }] of Object.entries(PATHS)) {
    const { group, flow, moving: animation } = paths[name];
    const perSecond = rate(now, before, service, counter);
    const cut = !ends.every(isUp);
    group.setAttribute('class', cut ? 'path cut' : 'path');
    const visible = flows && !cut && perSecond > 0;
    moving += visible ? 1 : 0;
    flow.setAttribute('class', visible ? 'flow moving' : 'flow');
    flow.style.strokeWidth = `${Math.min(14, 3 + Math.log2(1 + (perSecond ?? 0)))}`;
    animation.updatePlaybackRate(Math.min(4, 0.5 + (perSecond ?? 0) / 100));
    if (visible && !calm.matches) animation.play(); else animation.pause();
  }
  wire.setAttribute('class', isUp('billing') && isUp('provider') ? 'line' : 'line off');
  const most = Math.max(16, ...Object.values(now.pending ?? {}).flat());
  for (const [service, columns] of Object.entries(trays)) {
    columns.forEach(({ bar, y, height }, lane) => {
      const events = now.pending?.[service][lane] ?? 0;
      const tall = events ? Math.max(3, height * events / most) : 0;
      bar.setAttribute('y', y + height - tall);
      bar.setAttribute('height', tall);
    });
  }
  const per = (service, name) => `${shown(rate(now, before, service, name), 0)}/s`;
  built.accepted.textContent = per('orders', 'http_request_seconds_count:201');
  texts.ordersOutbox.textContent = `outbox: ${shown(pending(now, 'orders'))} pending`;
  texts.oldest.textContent = `oldest: ${shown(metric(now, 'orders', 'outbox_oldest_pending_age_seconds'), 1)} s`;
  texts.ordersInbox.textContent = 'inbox: the answers';
  for (const service of ['orders', 'inventory', 'billing']) {
    const copies = metric(now, service, 'inbox_duplicates_total', 0);
    texts[`${service}Copies`].textContent = copies && isUp(service) ? `copies: ${shown(copies)}` : '';
  }
  texts.published.textContent = `relay ${per('orders', 'outbox_published_total')}`;
  texts.answers.textContent = `answers ${per('orders', 'inbox_applied_total')}`;
  for (const service of ['inventory', 'billing']) {
    texts[`${service}Outbox`].textContent = `outbox: ${shown(pending(now, service))}`;
    texts[`${service}Inbox`].textContent = `inbox: ${per(service, 'inbox_applied_total')}`;
  }
  texts.providerWhat.setAttribute('visibility', isUp('provider') ? 'visible' : 'hidden');
  texts.provider.textContent = shown(metric(now, 'billing', 'payments_pending'));
  for (const [name, { bar, number }] of Object.entries(queues)) {
    const ready = queued(now, name);
    number.textContent = shown(ready);
    bar.setAttribute('width', ready ? Math.min(152, 28 + 124 * ready / Math.max(most * LANES / 4, ready)) : 0);
  }
  if (now.moves && now.moves !== lastMoves && !calm.matches) start(now.moves);
  lastMoves = now.moves;
  document.getElementById('flow-note').textContent = !flows
    ? calm.matches ? 'The numbers are measured. Nothing moves, because this machine asks for reduced motion.'
      : 'Each dot is one event: its row was written, published or applied about a second ago. The columns are lanes; copies were delivered again, and dropped.'
    : moving ? 'Too many events for dots: a line moves while events pass, and is as thick as their measured rate.'
      : 'Nothing is known to move.';
}
