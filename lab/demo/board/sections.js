// All sections, from the last snapshots. What is null in a snapshot is unknown, and shown as "?".
import { showReconciliation } from './reconciliation.js';
import { drawFlow } from './flow.js';
import { drawPlots } from './backlog.js';
import { showStrip } from './strip.js';
import { showRate } from './order.js';
import { showFault } from './faults.js';
import { showTwin } from './twin.js';
import { showSteps } from './steps.js';
import { showFailed } from './failed.js';

/** How many snapshots are kept, of two a second: those of a fault of a minute, and of what follows it. */
export const SHOWN_SNAPSHOTS = 600;

/** Draws the last snapshot of a history; rates and plots need those before it. */
export function showSections(history) {
  const now = history.at(-1);
  const before = history.at(-5) ?? history[0];
  showReconciliation(now);
  drawFlow(now, before);
  drawPlots(history);
  showStrip(history);
  showFault(now);
  showTwin(now);
  showSteps(now);
  showFailed(now);
  showRate(now);
}
