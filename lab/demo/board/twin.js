// The twin: the same drill on the order service and on a variant, two verdicts next to each other.
import { attempt, made, send, shown } from './page.js';

/** The form that begins a comparison. */
export function startTwin() {
  document.getElementById('twin').onsubmit = event => {
    event.preventDefault();
    const variant = new FormData(event.target).get('variant');
    attempt('twin-refusal', async () => { await send('/twin', { variant }); });
  };
}

function verdictBox({ name, verdict, reason, findings }) {
  const box = made('div', '', { class: verdict === 'HELD' ? 'twin held' : 'twin broken' });
  box.append(made('h3', `${name}: ${verdict}`), made('p', reason));
  for (const { place, what, count, first } of findings ?? []) {
    box.append(made('p', `${place}: ${what}: ${shown(count)}`));
    const list = made('ul', '');
    for (const id of first.slice(0, 5)) list.append(made('li', id));
    if (count > 5) list.append(made('li', `and ${shown(count - 5)} more`));
    box.append(list);
  }
  return box;
}

let drawnTwin = '';

/** The comparison that runs, or the last one. */
export function showTwin({ twin, hasProcesses, at }) {
  const line = document.getElementById('twin-line');
  document.querySelector('#twin button').disabled = !hasProcesses || Boolean(twin?.running);
  if (!hasProcesses) line.textContent = 'Only beside processes: cargo demo --with local up';
  if (!twin) return;
  const seconds = shown((at - twin.began) / 1000);
  if (twin.running) line.textContent = `two systems start, lose RabbitMQ, and are judged: ${seconds} s so far (about a minute and a half)`;
  else line.textContent = twin.error ? `no verdict: ${twin.error}` : '';
  document.getElementById('twin-lines').textContent = twin.running ? twin.lines.join('\n') : '';
  const key = `${twin.began} ${twin.verdicts.length}`;
  if (key === drawnTwin) return;
  drawnTwin = key;
  document.getElementById('twin-verdicts').replaceChildren(...twin.verdicts.map(verdictBox));
}
