// The verdict on everything so far, above everything else. What cannot be read is unknown, and never zero.
import { made, shown } from './page.js';

const money = minor => `${shown(minor / 100)} €`;

const TILES = ['acknowledged', 'confirmed', 'cancelled', 'open', 'missing', 'doubled'];
let tiles;

function buildTiles() {
  return TILES.map(name => {
    const tile = made('div', '', { class: name });
    const number = made('dd', '');
    tile.append(made('dt', name), number);
    document.getElementById('counts').append(tile);
    return number;
  });
}

/** The line on top. */
export function showReconciliation({ reconciliation: read, unreadableSince, unreadableBecause, at }) {
  const section = document.getElementById('reconciliation');
  const sentence = document.getElementById('sentence');
  const sums = document.getElementById('sums');
  tiles ??= buildTiles();
  const of = kind => read.findings.filter(finding => finding.kind === kind).reduce((sum, { count }) => sum + count, 0);
  const counts = read ? { ...read, missing: of('missing'), doubled: of('doubled') } : {};
  TILES.forEach((name, index) => {
    tiles[index].textContent = shown(counts[name]);
    tiles[index].className = ['missing', 'doubled'].includes(name) && counts[name] > 0 ? 'wrong' : '';
  });
  if (!read) {
    section.className = 'unknown';
    const since = unreadableSince ? ` since ${new Date(unreadableSince).toLocaleTimeString('en-GB')}` : '';
    sentence.textContent = `? The records cannot be read${since}`;
    sums.textContent = `Whether anything is lost is unknown. ${unreadableBecause ?? ''}`;
    return;
  }
  const wrong = read.findings[0];
  section.className = wrong ? 'broken' : 'holds';
  sentence.textContent = wrong
    ? `✕ BROKEN: ${shown(wrong.count)} × ${wrong.what}`
    : `✓ Nothing lost, nothing doubled${read.inProgress ? ' so far' : ''}`;
  const agree = read.charged - read.refunded === read.confirmedTotal && read.reserved === read.confirmedPieces;
  const books = agree
    ? [`${money(read.confirmedTotal)} charged and confirmed`, 'the stock agrees']
    : [`charged ${money(read.charged - read.refunded)}, confirmed ${money(read.confirmedTotal)}`,
      `pieces ${shown(read.reserved)} and ${shown(read.confirmedPieces)}`];
  const aside = read.setAside ? [`${shown(read.setAside)} set aside`] : [];
  sums.textContent = wrong
    ? `The first: ${wrong.first} at ${wrong.place}`
    : [`counted ${shown((at - read.at) / 1000)} s ago in ${read.milliseconds} ms`, `${shown(read.inProgress)} in progress`,
      ...aside, ...books].join(' · ');
  sums.title = sums.textContent;
}
