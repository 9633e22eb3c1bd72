// The page: one stream of snapshots, given to each part. What is null in a snapshot is unknown, and shown as "?".
import { drawFlow } from './flow.js';
import { drawPlots } from './plots.js';
import { startOrder } from './order.js';
import { startFaults, showFault } from './faults.js';

const token = document.querySelector('meta[name=board-token]').content;

/** Sends a change. Returns the answer's JSON; a refusal is an error in the server's words. */
export async function send(path, body) {
  const response = await fetch(path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-board-token': token },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

/** A number for people: "?" if it is unknown. */
export function shown(value, digits = 0) {
  return value === null || value === undefined || Number.isNaN(value)
    ? '?' : value.toLocaleString('en', { maximumFractionDigits: digits });
}

const money = minor => `${shown(minor / 100, 2)} EUR`;

function showReconciliation({ reconciliation: read, unreadableSince, at }) {
  const section = document.getElementById('reconciliation');
  const sentence = document.getElementById('sentence');
  const sums = document.getElementById('sums');
  if (!read) {
    section.className = 'unknown';
    const since = unreadableSince ? ` since ${new Date(unreadableSince).toLocaleTimeString()}` : '';
    sentence.textContent = `? The records cannot be read${since}: whether anything is lost is unknown.`;
    sums.textContent = '';
    return;
  }
  const wrong = read.missing + read.doubled + read.phantom + read.wrongSums + read.outOfOrder;
  section.className = wrong ? 'broken' : 'holds';
  sentence.textContent =
    `${shown(read.acknowledged)} acknowledged; of ${shown(read.orders)} orders ${shown(read.confirmed)} confirmed + `
    + `${shown(read.cancelled)} cancelled + ${shown(read.open)} open. Missing ${shown(read.missing)}, `
    + `doubled ${shown(read.doubled)}${wrong ? `. BROKEN: ${read.firstFinding}` : ''}`;
  const still = read.inProgress ? `${shown(read.inProgress)} in progress` : 'nothing in progress';
  const aside = read.setAside ? `, ${shown(read.setAside)} set aside` : '';
  const agree = read.charged - read.refunded === read.confirmedTotal && read.reserved === read.confirmedPieces;
  sums.textContent =
    `${still}${aside}. Charged ${money(read.charged)} − refunded ${money(read.refunded)}; confirmed orders cost `
    + `${money(read.confirmedTotal)}. ${shown(read.reserved)} pieces reserved, ${shown(read.confirmedPieces)} in confirmed `
    + `orders${agree ? ': they agree' : read.inProgress ? ' (in progress)' : ''}. `
    + `Read ${shown((at - read.at) / 1000)} s ago, in ${read.milliseconds} ms.`;
}

const history = [];
const LONGEST = 240;

function show(snapshot) {
  history.push(snapshot);
  if (history.length > LONGEST) history.shift();
  showReconciliation(snapshot);
  drawFlow(snapshot, history[history.length - 5] ?? history[0]);
  drawPlots(history);
  showFault(snapshot);
  const rate = document.getElementById('rate');
  if (document.activeElement !== rate) rate.value = String(snapshot.load);
}

const connection = document.getElementById('connection');
const stream = new EventSource('/stream');
stream.onopen = () => { connection.textContent = 'live'; };
stream.onerror = () => {
  connection.textContent = 'the board does not answer; trying again …';
  showReconciliation({ reconciliation: null, unreadableSince: null });
};
stream.onmessage = event => {
  const snapshot = JSON.parse(event.data);
  if (snapshot) show(snapshot);
};

startOrder();
startFaults();
