// What waits, as the largest plot of the page, and two small ones. Faults are shaded. What is unknown is a gap.
import { drawn, made, pending, queued, rate, shown } from './page.js';

const SERVICES = ['orders', 'inventory', 'billing'];
const STEP = 4;
const SHOWN_MILLISECONDS = 120_000;
const TICKS = 3;
const BANDS = 4;
/** A reading that comes so late is no gap: the database is busy. */
const LATE_MILLISECONDS = 3_000;

const known = (...values) => values.includes(null) ? null : values.reduce((sum, value) => sum + value, 0);
const queues = now => known(...SERVICES.map(service => queued(now, service)));

/** The parts of the backlog, from the lowest area to the highest. */
const PARTS = [
  ['outbox of orders', 'one', now => pending(now, 'orders')],
  ['other outboxes', 'two', now => known(pending(now, 'inventory'), pending(now, 'billing'))],
  ['queues', 'three', queues],
];

/** How many events wait somewhere. */
export function backlog(now) {
  return known(...PARTS.map(([, , value]) => value(now)));
}

/** The time that a part of the requests was faster than, from the buckets between two snapshots. In milliseconds. */
function quantile(now, before, part) {
  const prefix = 'http_request_seconds_bucket:201:';
  const [new_, old] = [now.metrics.orders, before.metrics.orders];
  if (!new_ || !old) return null;
  const counts = Object.keys(new_).filter(key => key.startsWith(prefix))
    .map(key => [key.slice(prefix.length), new_[key] - (old[key] ?? 0)])
    .map(([le, count]) => [le === '+Inf' ? Infinity : Number(le), count])
    .sort((a, b) => a[0] - b[0]);
  const all = counts.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  let [below, lower] = [0, 0];
  for (const [le, count] of counts) {
    if (count >= all * part) {
      const within = count > below ? (all * part - below) / (count - below) : 1;
      return le === Infinity ? lower * 1000 : (lower + (le - lower) * within) * 1000;
    }
    [below, lower] = [count, le];
  }
  return null;
}

const SMALL = [
  ['Per second', [
    ['accepted', 'one', (now, before) => rate(now, before, 'orders', 'http_request_seconds_count:201')],
    ['published', 'two', (now, before) => rate(now, before, 'orders', 'outbox_published_total')],
    ['refused (503)', 'bad', (now, before) => rate(now, before, 'orders', 'http_request_seconds_count:503')],
  ]],
  ['Answer to POST /orders, in ms', [
    ['p50', 'one', (now, before) => quantile(now, before, 0.5)],
    ['p99', 'three', (now, before) => quantile(now, before, 0.99)],
  ]],
];

/** When each fault of the shown time began, and when its repair began. */
function faultsIn(history) {
  const found = new Map();
  for (const { fault, at } of history) {
    if (fault?.phase === 'active') found.set(fault.number, { what: fault.what, from: fault.began, to: at });
  }
  return [...found.values()].slice(-BANDS);
}

/** A plot whose elements are made once. */
function plot(parent, names, filled) {
  const svg = drawn('svg', { class: 'plot', role: 'img', 'aria-label': names.join(', ') }, parent);
  const bands = Array.from({ length: BANDS }, () => [drawn('rect', { class: 'band' }, svg), drawn('text', { class: 'band' }, svg)]);
  const ticks = Array.from({ length: TICKS }, () => [drawn('path', { class: 'tick' }, svg), drawn('text', { class: 'quiet' }, svg)]);
  const times = [-90, -60, -30].map(seconds => [seconds, drawn('text', { class: 'quiet', 'text-anchor': 'middle' }, svg, `${-seconds} s ago`)]);
  const lines = names.map(name => drawn('path', { class: `${filled ? 'area' : 'curve'} ${name}` }, svg)).reverse();
  return { svg, bands, ticks, times, lines: lines.reverse(), filled };
}

/** A round number that is not smaller. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find(factor => factor * power >= value) * power;
}

/** Draws points `[at, value, from]`; a value that is null is unknown. */
function draw({ svg, bands, ticks, times, lines, filled }, now, series, faults) {
  const { width, height } = svg.getBoundingClientRect();
  const em = parseFloat(getComputedStyle(svg).fontSize);
  const [left, bottom] = [em * 3.6, height - em * 1.7];
  const top = roundUp(Math.max(filled ? 20 : 4, ...series.flat().map(([, value]) => value ?? 0)) * 1.05);
  const x = at => left + (width - left) * (1 - (now.at - at) / SHOWN_MILLISECONDS);
  const y = value => bottom - (bottom - em * 0.6) * value / top;
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  ticks.forEach(([line, text], index) => {
    const value = top * index / (TICKS - 1);
    line.setAttribute('d', `M${left} ${y(value)} H${width}`);
    text.textContent = value.toLocaleString('en', { notation: 'compact' });
    text.setAttribute('x', left - em * 0.5);
    text.setAttribute('y', y(value) + em * 0.35);
    text.setAttribute('text-anchor', 'end');
  });
  for (const [seconds, text] of times) {
    text.setAttribute('x', x(now.at + seconds * 1000));
    text.setAttribute('y', height - em * 0.45);
  }
  series.forEach((points, index) => {
    const runs = [];
    for (const point of points.filter(([, value]) => value !== null)) {
      const last = runs.at(-1)?.at(-1);
      if (last && point[0] - last[0] < LATE_MILLISECONDS) runs.at(-1).push(point); else runs.push([point]);
    }
    const run = points => {
      const upper = points.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join('L');
      if (!filled) return `M${upper}`;
      const lower = points.map(([at, , from]) => `${x(at).toFixed(1)} ${y(from).toFixed(1)}`).reverse().join('L');
      return `M${upper}L${lower}Z`;
    };
    lines[index].setAttribute('d', runs.filter(points => points.length > 1).map(run).join(''));
  });
  bands.forEach(([rect, text], index) => {
    const fault = faults[index];
    const [from, to] = fault ? [Math.max(left, x(fault.from)), Math.max(left, x(fault.to))] : [0, 0];
    rect.setAttribute('x', from);
    rect.setAttribute('width', to - from);
    rect.setAttribute('height', bottom);
    text.textContent = filled && to > from ? fault.what : '';
    const late = from > left + (width - left) / 2;
    text.setAttribute('x', late ? from - em * 0.4 : from + em * 0.4);
    text.setAttribute('text-anchor', late ? 'end' : 'start');
    text.setAttribute('y', em * 1.3);
  });
}

let plots;

function buildPlots() {
  const rows = PARTS.map(([label, name]) => {
    const row = made('li', '', { class: name });
    const number = made('b', '');
    row.append(made('span', label), number);
    document.getElementById('backlog-parts').append(row);
    return number;
  });
  const small = SMALL.map(([title, lines]) => {
    const figure = made('figure', '');
    const caption = made('figcaption', `${title}: `);
    for (const [label, name] of lines) caption.append(made('span', label, { class: name }));
    figure.append(caption);
    document.getElementById('plots').append(figure);
    return plot(figure, lines.map(([, name]) => name), false);
  });
  return { rows, hero: plot(document.getElementById('backlog-plot'), PARTS.map(([, name]) => name), true), small };
}

/** Draws the last two minutes of a history. */
export function drawPlots(all) {
  plots ??= buildPlots();
  const now = all.at(-1);
  const history = all.filter(({ at }) => at > now.at - SHOWN_MILLISECONDS);
  const faults = faultsIn(history);
  document.getElementById('backlog-now').textContent = shown(backlog(now));
  PARTS.forEach(([, , value], index) => { plots.rows[index].textContent = shown(value(now)); });
  let lower = history.map(() => 0);
  const areas = PARTS.map(([, , value]) => {
    const upper = history.map((then, index) => lower[index] + (value(then) ?? 0));
    const points = history.map((then, index) => [then.at, backlog(then) === null ? null : upper[index], lower[index]]);
    lower = upper;
    return points;
  });
  draw(plots.hero, now, areas, faults);
  plots.small.forEach((small, index) => draw(small, now, SMALL[index][1].map(([, , value]) =>
    history.map((then, position) => [then.at, value(then, history[Math.max(0, position - STEP)])])), faults));
}
