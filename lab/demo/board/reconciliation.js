// The reconciliation in one sentence, above everything else.
import { shown } from './page.js';

const money = minor => `${shown(minor / 100, 2)} EUR`;

/** The line on top. What cannot be read is unknown, and never zero. */
export function showReconciliation({ reconciliation: read, unreadableSince, unreadableBecause, at }) {
  const section = document.getElementById('reconciliation');
  const sentence = document.getElementById('sentence');
  const sums = document.getElementById('sums');
  if (!read) {
    section.className = 'unknown';
    const since = unreadableSince ? ` since ${new Date(unreadableSince).toLocaleTimeString()}` : '';
    sentence.textContent = `? The records cannot be read${since}: whether anything is lost is unknown.`;
    sums.textContent = unreadableBecause ?? '';
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
