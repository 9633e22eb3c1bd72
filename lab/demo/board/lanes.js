// The sixteen lanes of each outbox: which of them a relay holds.
import { made } from './page.js';

const SERVICES = ['orders', 'inventory', 'billing'];
const LANES = 16;

let cells;

function build() {
  const table = document.getElementById('lanes');
  const head = table.createTHead().insertRow();
  head.append(made('th', ''));
  for (let lane = 0; lane < LANES; lane += 1) head.append(made('th', String(lane), { scope: 'col' }));
  const body = table.createTBody();
  return SERVICES.map(service => {
    const row = body.insertRow();
    row.append(made('th', service, { scope: 'row' }));
    return Array.from({ length: LANES }, () => row.insertCell());
  });
}

/** A lane that this snapshot and the one before show as held: a step of the relay waits for something. */
export function drawLanes(now, before) {
  cells ??= build();
  SERVICES.forEach((service, row) => {
    const held = (snapshot, lane) => snapshot.metrics[service]?.[`outbox_lane_held:${lane}`] === 1;
    cells[row].forEach((cell, lane) => {
      const known = Boolean(now.metrics[service]);
      cell.textContent = known ? '' : '?';
      cell.className = !known ? '' : held(now, lane) ? (held(before, lane) ? 'waits' : 'held') : 'free';
    });
  });
}
