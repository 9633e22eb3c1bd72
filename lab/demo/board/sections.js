// All sections, from the snapshots of the last two minutes. What is null in a snapshot is unknown, and shown as "?".
import { showReconciliation } from './reconciliation.js';
import { drawFlow } from './flow.js';
import { drawLanes } from './lanes.js';
import { drawPlots } from './plots.js';
import { showFault } from './faults.js';
import { showTwin } from './twin.js';
import { showSteps } from './steps.js';
import { showFailed } from './failed.js';

/** How many snapshots are shown: two a second. */
export const SHOWN_SNAPSHOTS = 240;

/** Draws the last snapshot of a history; rates and plots need those before it. */
export function showSections(history) {
  const now = history.at(-1);
  const before = history.at(-5) ?? history[0];
  showReconciliation(now);
  drawFlow(now, before);
  drawLanes(now, history.at(-2) ?? now);
  drawPlots(history);
  showFault(now);
  showTwin(now);
  showSteps(now);
  showFailed(now);
  const rate = document.getElementById('rate');
  if (document.activeElement !== rate) rate.value = String(now.load);
}
