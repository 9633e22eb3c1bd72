// Killed, detected, recovered, drained: when each was first seen in a snapshot, two of which are made each second.
import { backlog } from './backlog.js';
import { made } from './page.js';

/** What counts as drained: as few events as in this time before the fault. */
const BEFORE_MILLISECONDS = 10_000;
const FEW = 5;

/** The moments of the last fault, as far as they have come. */
export function moments(history) {
  const { fault } = history.at(-1);
  // Of a fault from before the first snapshot nothing was seen.
  if (!fault || history[0].at > fault.began + 1000) return null;
  const part = fault.what.split(':')[0];
  const first = (after, condition) => after && history.find(then => then.at > after && condition(then))?.at;
  const before = history.filter(({ at }) => at <= fault.began && at > fault.began - BEFORE_MILLISECONDS).map(then => backlog(then) ?? 0);
  const few = Math.max(FEW, ...before);
  const struck = fault.began;
  const detected = first(struck, then => ['down', 'frozen'].includes(then.parts[part]));
  const recovered = first(detected, then => then.parts[part] === 'up');
  const drained = first(recovered, then => backlog(then) !== null && backlog(then) <= few);
  return { frozen: fault.what.includes('SIGSTOP'), struck, detected, recovered, drained };
}

const STEPS = [
  ['struck', 'the signal was sent'], ['detected', 'the part no longer answers'],
  ['recovered', 'the part answers again'], ['drained', 'as little waits as before'],
];
let cells;

function buildStrip() {
  return STEPS.map(([name, meaning]) => {
    const cell = made('li', '', { title: meaning, class: name });
    const time = made('b', '');
    const word = made('span', name);
    cell.append(word, time);
    document.getElementById('strip').append(cell);
    return { cell, word, time };
  });
}

/** Shows the moments of the last fault. */
export function showStrip(history) {
  cells ??= buildStrip();
  const found = moments(history);
  const now = history.at(-1).at;
  let waits = Boolean(found);
  STEPS.forEach(([name], index) => {
    const { cell, word, time } = cells[index];
    const at = found?.[name];
    if (name === 'struck') word.textContent = found?.frozen ? 'frozen' : 'killed';
    cell.dataset.state = at ? 'done' : waits ? 'waits' : 'off';
    const since = found ? ((at ?? now) - found.struck) / 1000 : 0;
    time.textContent = at ? name === 'struck' ? new Date(at).toLocaleTimeString('en-GB') : `+${since.toFixed(1)} s`
      : waits ? `${since.toFixed(0)} s …` : '–';
    waits = waits && Boolean(at);
  });
}
