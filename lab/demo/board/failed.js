// What the services have set aside, by cause: shown, tried in a dry run, replayed, discarded.
import { ask, attempt, isRecording, made, send, shown } from './page.js';

const SERVICES = ['orders', 'inventory', 'billing'];

async function show(id) {
  document.getElementById('failed-item').textContent = JSON.stringify(await ask(`/failed/${id}`), null, 2);
}

const outcomes = list => list.map(({ id, outcome, meaning }) => `${id}: ${outcome}: ${meaning}`).join('\n');

function button(words, name, work) {
  const made_ = made('button', words, { type: 'button', 'data-action': name });
  made_.onclick = () => attempt('failed-line', work);
  return made_;
}

function group(cause, items) {
  const ids = items.map(({ id }) => id);
  const box = made('div', '', { class: 'group' });
  box.append(made('h3', `${cause}: ${items.length}`));
  for (const { id, kind, what, detail, since, behind } of items.slice(0, 20)) {
    const line = made('p', `${id}, ${kind}, ${what}, ${since.slice(0, 19)}${behind ? `, ${behind} wait behind it` : ''}: ${detail} `);
    line.append(button('show', 'show', async () => show(id)));
    box.append(line);
  }
  const parked = items.some(({ kind }) => kind === 'parked event');
  box.append(
    button('what would a replay do?', 'dry-run', async () => outcomes(await send('/failed/replay', { ids, dryRun: true }))),
    button('replay', 'replay', async () => { const done = outcomes(await send('/failed/replay', { ids, dryRun: false })); await list(); return done; }),
    button(parked ? 'discard, and accept the gap' : 'discard', 'discard', async () => {
      const done = outcomes(await send('/failed/discard', { ids, note: 'discarded on the board', acceptGap: parked }));
      await list();
      return done;
    }),
  );
  return box;
}

async function list() {
  const items = await ask('/failed');
  const causes = new Map();
  for (const item of items) {
    const cause = `${item.cause} at ${item.service}`;
    causes.set(cause, [...(causes.get(cause) ?? []), item]);
  }
  document.getElementById('failed-groups').replaceChildren(...[...causes].map(([cause, found]) => group(cause, found)));
  document.getElementById('failed-item').textContent = '';
}

/** The buttons of the section. */
export function startFailed() {
  document.getElementById('failed-list').onclick = () => attempt('failed-line', list);
  document.getElementById('failed-send').onclick = () => attempt('failed-line', async () => {
    await send('/failed/send', {});
    return 'sent into inventory.events; it is set aside within a second';
  });
}

let counted = '';

/** How many wait. The list is read again when that changes. */
export function showFailed({ metrics }) {
  const counts = SERVICES.map(service => {
    const of = name => metrics[service] ? metrics[service][name] ?? null : null;
    const [parked, letters] = [of('outbox_parked'), of('inbox_dead_letters')];
    return `${service}: ${shown(parked)} parked, ${shown(letters)} dead letters`;
  }).join('; ');
  document.getElementById('failed-counts').textContent = counts;
  if (counts !== counted && counted !== '' && !isRecording() && !counts.includes('?')) attempt('failed-line', list);
  counted = counts;
}
