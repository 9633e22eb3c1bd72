// The live page: one stream of snapshots.
import { startOrder } from './order.js';
import { startFaults } from './faults.js';
import { startTwin } from './twin.js';
import { startSteps } from './steps.js';
import { startFailed } from './failed.js';
import { SHOWN_SNAPSHOTS, showSections } from './sections.js';

/** After this time without a snapshot nothing is known any more. */
const SILENCE_MILLISECONDS = 4000;

const history = [];
const connection = document.getElementById('connection');
let heardAt = Date.now();

function show(snapshot) {
  history.push(snapshot);
  if (history.length > SHOWN_SNAPSHOTS) history.shift();
  showSections(history);
}

/** The same page with everything unknown. */
function unknown(last) {
  return {
    ...last, at: Date.now(), parts: {}, metrics: {}, moves: null, pending: null, waiting: null, reconciliation: null, unreadableSince: heardAt,
    unreadableBecause: 'The board does not answer.',
  };
}

const stream = new EventSource('/stream');
stream.onopen = () => { connection.textContent = 'live'; connection.dataset.live = ''; };
stream.onerror = () => {
  delete connection.dataset.live;
  connection.textContent = stream.readyState === EventSource.CLOSED
    ? 'the board has no place for another page: close one, and load this again' : 'the board does not answer; trying again …';
};
stream.onmessage = event => {
  const snapshot = JSON.parse(event.data);
  if (!snapshot) return;
  heardAt = Date.now();
  connection.textContent = 'live';
  connection.dataset.live = '';
  show(snapshot);
};
setInterval(() => {
  if (Date.now() - heardAt < SILENCE_MILLISECONDS || !history.length) return;
  delete connection.dataset.live;
  connection.textContent = `nothing heard from the board for ${Math.round((Date.now() - heardAt) / 1000)} s`;
  show(unknown(history.at(-1)));
}, 1000);

startOrder();
startFaults();
startTwin();
startSteps();
startFailed();
