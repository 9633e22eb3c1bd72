// Faults: predicted first, on screen while they last, and judged when everything is at rest again.
import { attempt, isRecording, made, send, shown } from './page.js';

const ORDERS = { accepted: 'accepted', refused: 'refused', hanging: 'left hanging' };
const yes = flag => flag ? 'yes' : 'no';

/** The form that begins a fault. */
export function startFaults() {
  document.getElementById('again').onclick = () => {
    document.getElementById('fault-section').dataset.view = 'form';
    document.querySelector('#fault input:checked').focus();
  };
  document.getElementById('fault').onsubmit = event => {
    event.preventDefault();
    const form = new FormData(event.target);
    attempt('fault-refusal', async () => {
      await send('/fault', {
        target: form.get('target'), action: form.get('action'), seconds: Number(form.get('seconds')),
        prediction: {
          orders: form.get('orders'), lost: form.get('lost') === 'true', doubled: form.get('doubled') === 'true',
        },
      });
    });
  };
}

function row(table, question, predicted, found) {
  const line = table.insertRow();
  for (const text of [question, predicted, found]) line.insertCell().textContent = text;
  line.cells[2].className = predicted === found ? 'right' : 'wrong';
}

let drawnVerdict = '';

function showVerdict({ verdict, predicted, number }) {
  const key = `${number} ${Boolean(verdict)}`;
  if (key === drawnVerdict) return;
  // One from before this page was opened hides no form.
  const isNew = drawnVerdict === `${number} false` || isRecording();
  drawnVerdict = key;
  const place = document.getElementById('verdict');
  place.replaceChildren();
  if (!verdict) return;
  const broken = verdict.findings > 0;
  const title = made('p', '', { id: 'verdict-line', class: broken ? 'wrong' : 'right' });
  title.append(made('strong', broken ? 'BROKEN' : 'HELD'), made('span', ` ${shown(verdict.acknowledged)} acknowledged, ${shown(verdict.lost)} lost, `
    + `${shown(verdict.doubled)} doubled, ${shown(verdict.findings)} findings. At rest ${shown(verdict.recoveredAfter, 1)} s after the repair. `
    + `You were right ${verdict.right} of 3 times.`));
  const table = document.createElement('table');
  const head = table.createTHead().insertRow();
  for (const text of ['', 'you said', 'it was']) head.append(made('th', text));
  const body = table.createTBody();
  const { accepted, refused, hanging } = verdict.answers;
  row(body, 'new orders meanwhile', ORDERS[predicted.orders], ORDERS[verdict.found.orders]);
  row(body, 'an order lost', yes(predicted.lost), yes(verdict.found.lost));
  row(body, 'charged twice', yes(predicted.doubled), yes(verdict.found.doubled));
  const counts = made('p', `Orders sent meanwhile: ${accepted} accepted, ${refused} refused, ${hanging} without an answer within 2 s.`);
  place.append(title, table, counts);
  if (isNew) document.getElementById('fault-section').dataset.view = 'verdict';
}

/** The name of a part's container. */
const CONTAINERS = { broker: 'rabbitmq', database: 'postgres' };

function lineToCopy() {
  const form = new FormData(document.getElementById('fault'));
  const name = CONTAINERS[form.get('target')] ?? form.get('target');
  return form.get('action') === 'kill'
    ? `docker compose kill -s SIGKILL ${name}; sleep ${form.get('seconds')}; docker compose start ${name}`
    : `docker compose pause ${name}; sleep ${form.get('seconds')}; docker compose unpause ${name}`;
}

/** The active fault, or the last one. */
export function showFault({ fault, at, canAct }) {
  const button = document.getElementById('strike');
  const line = document.getElementById('fault-line');
  button.disabled = !canAct || Boolean(fault && fault.phase !== 'over');
  if (!canAct) {
    line.textContent = `The board has no access to the container engine. Copy: ${lineToCopy()}`;
    return;
  }
  if (!fault) return;
  line.dataset.phase = fault.phase;
  const left = (fault.ends - at) / 1000;
  if (fault.phase === 'active') line.textContent = `${fault.what}: ${left > 0 ? `repaired in ${shown(left)} s` : 'is being repaired'}`;
  if (fault.phase === 'recovering') line.textContent = `${fault.what}: repaired; waiting until everything is at rest`;
  if (fault.phase === 'over') line.textContent = fault.error ? `${fault.what}: no verdict: ${fault.error}` : `${fault.what}: over`;
  showVerdict(fault);
}
