// Step mode: one order stops at crash points; a person continues, freezes or kills the process there.
import { attempt, made, send, shown } from './page.js';

/** The form that starts the system, and places orders. */
export function startSteps() {
  const request = body => attempt('steps-refusal', async () => { await send('/steps', body); });
  document.getElementById('steps-start').onclick = () => request({ do: 'start' });
  document.getElementById('steps-stop').onclick = () => request({ do: 'stop' });
  document.getElementById('steps').onsubmit = event => {
    event.preventDefault();
    const point = new FormData(event.target).get('point');
    const points = [...event.target.elements.point.options].map(({ value }) => value).filter(Boolean);
    // Those that only a message passes that cannot be applied are stopped at when they are chosen.
    const all = points.filter(name => !name.startsWith('dead-letter'));
    request({ do: 'place', points: point ? [point] : all });
  };
}

const ACTIONS = [['continue', 'continue'], ['freeze', 'freeze for 33 s'], ['kill', 'kill (SIGKILL)']];

function stoppedBox({ pid, service, point, frozen, source }) {
  const box = made('div', '', { class: 'stopped', 'data-point': point });
  box.append(made('h3', `${service} (process ${pid}) has stopped at ${point}`), made('p', '', { class: 'ends' }));
  if (source) {
    box.append(made('p', source.place), made('pre', source.code));
  }
  for (const [action, words] of frozen ? [] : ACTIONS) {
    const button = made('button', words, { type: 'button', 'data-action': action });
    button.onclick = () => attempt('steps-refusal', async () => { await send('/steps', { do: 'act', pid, action }); });
    box.append(button);
  }
  return box;
}

/** The boxes on the page. One that is there already stays the same: a person may be about to press its button. */
let boxes = new Map();

function fillPoints(points) {
  const select = document.querySelector('#steps select');
  if (select.options.length > 1) return;
  for (const point of points) select.append(made('option', point, { value: point }));
}

const PHASES = {
  off: 'off', starting: 'starting (the first time the lab programs are built: some minutes) …',
  ready: 'ready', running: 'an order is on its way',
};

/** What has stopped where, and what became of the order. */
export function showSteps({ steps, hasProcesses, at }) {
  fillPoints(steps.points);
  const by = id => document.getElementById(id);
  by('steps-start').disabled = !hasProcesses || steps.phase !== 'off';
  by('steps-stop').disabled = !['ready', 'running'].includes(steps.phase);
  document.querySelector('#steps button[type=submit]').disabled = steps.phase !== 'ready';
  by('steps-line').textContent = hasProcesses ? PHASES[steps.phase] : 'Only beside processes: cargo demo --with local up';
  by('steps-line').dataset.phase = steps.phase;
  const key = ({ pid, point, frozen }) => `${pid} ${point} ${frozen}`;
  const before = boxes;
  boxes = new Map(steps.stopped.map(stop => [key(stop), before.get(key(stop)) ?? stoppedBox(stop)]));
  for (const [name, box] of before) if (!boxes.has(name)) box.remove();
  for (const [name, box] of boxes) if (!before.has(name)) by('steps-stopped').append(box);
  for (const stop of steps.stopped) {
    const left = shown(Math.max(0, (stop.ends - at) / 1000));
    boxes.get(key(stop)).querySelector('.ends').textContent =
      stop.frozen ? `frozen for ${left} s more` : `continued by itself in ${left} s`;
  }
  by('steps-lines').textContent = steps.lines.join('\n');
  const verdict = by('steps-verdict');
  verdict.textContent = steps.verdict?.sentence ?? (steps.error ? `no verdict: ${steps.error}` : '');
  verdict.className = !steps.verdict ? '' : steps.verdict.held ? 'right' : 'wrong';
}
