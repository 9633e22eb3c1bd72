// Three plots of the last two minutes. Faults are shaded. What is unknown is a gap.
/* global uPlot */
import { rate } from './flow.js';

const COLOURS = ['#3b82f6', '#f0883e', '#2ea043', '#a371f7', '#f85149', '#1b9e9e'];
const SERVICES = ['orders', 'inventory', 'billing'];
const STEP = 4;
const HEIGHT = 104;

const metric = name => service => (now) => now.metrics[service] ? now.metrics[service][name] ?? null : null;

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

const PLOTS = [
  {
    title: 'What waits', lines: [
      ...SERVICES.map(service => [`outbox of ${service}`, metric('outbox_pending')(service)]),
      ...SERVICES.map(service => [`queue of ${service}`, metric('broker_queue_ready')(service)]),
    ],
  },
  {
    title: 'Each second', lines: [
      ['orders accepted', (now, before) => rate(now, before, 'orders', 'http_request_seconds_count:201')],
      ['refused (503)', (now, before) => rate(now, before, 'orders', 'http_request_seconds_count:503')],
      ['events published', (now, before) => rate(now, before, 'orders', 'outbox_published_total')],
      ['applied by billing', (now, before) => rate(now, before, 'billing', 'inbox_applied_total')],
    ],
  },
  {
    title: 'Time to answer POST /orders (ms)', lines: [
      ['p50', (now, before) => quantile(now, before, 0.5)],
      ['p99', (now, before) => quantile(now, before, 0.99)],
    ],
  },
];

let faults = [];

/** When each fault of the shown time began, and when its repair began. */
function faultsIn(history) {
  const found = new Map();
  for (const { fault, at } of history) {
    if (fault?.phase === 'active') {
      found.set(fault.number, { what: fault.what, from: fault.began / 1000, to: at / 1000 });
    }
  }
  return [...found.values()];
}

function shade(plot) {
  const { ctx, bbox } = plot;
  ctx.save();
  for (const { from, to, what } of faults) {
    const left = Math.max(plot.valToPos(from, 'x', true), bbox.left);
    const right = Math.min(plot.valToPos(to, 'x', true), bbox.left + bbox.width);
    if (right <= left) continue;
    ctx.fillStyle = 'rgba(248, 81, 73, 0.18)';
    ctx.fillRect(left, bbox.top, right - left, bbox.height);
    ctx.fillStyle = colourOf('--bad');
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = 'left';
    ctx.fillText(what, left + 4, bbox.top + 12 * devicePixelRatio);
  }
  ctx.restore();
}

let plots;

function colourOf(name) {
  const probe = document.createElement('span');
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

function build() {
  const parent = document.getElementById('plots');
  const [text, line] = [colourOf('--quiet'), colourOf('--line')];
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
  return PLOTS.map(({ title, lines }) => new uPlot({
    title, width: parent.clientWidth, height: HEIGHT,
    cursor: { show: false },
    series: [{ label: 'time' }, ...lines.map(([label], index) =>
      ({ label, stroke: COLOURS[index % COLOURS.length], width: 2, dash: index > 2 && lines.length > 4 ? [5, 4] : undefined }))],
    axes: [{ ...axis, size: 24, values: (_, times) => times.map(time => new Date(time * 1000).toTimeString().slice(3, 8)) },
      { ...axis, size: 54 }],
    scales: { y: { range: (_, low, high) => [0, Math.max(1, high ?? 1) * 1.1] } },
    legend: { live: false },
    hooks: { drawClear: [shade] },
  }, [[], ...lines.map(() => [])], parent));
}

export function drawPlots(history) {
  plots ??= build();
  faults = faultsIn(history);
  const times = history.map(({ at }) => at / 1000);
  plots.forEach((plot, index) => {
    const data = PLOTS[index].lines.map(([, value]) =>
      history.map((now, position) => value(now, history[Math.max(0, position - STEP)])));
    plot.setData([times, ...data]);
  });
}

addEventListener('resize', () => plots?.forEach(plot =>
  plot.setSize({ width: document.getElementById('plots').clientWidth, height: HEIGHT })));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  plots?.forEach(plot => plot.destroy());
  plots = undefined;
});
