// A recording: the same sections from the snapshots in this file, without any server.
import { showStory } from './order.js';
import { SHOWN_SNAPSHOTS, showSections } from './sections.js';

const { snapshots, stories } = JSON.parse(document.getElementById('recording').textContent);
const header = document.querySelector('header');
const connection = document.getElementById('connection');
for (const form of document.querySelectorAll('form, button, fieldset, select')) form.inert = true;

const slider = Object.assign(document.createElement('input'),
  { type: 'range', id: 'replay-position', min: 0, max: Math.max(0, snapshots.length - 1), value: 0, ariaLabel: 'moment' });
const play = Object.assign(document.createElement('button'), { id: 'replay-play', textContent: 'pause' });
header.append(play, slider);
document.getElementById('save').hidden = true;

/** The last followed order that was placed before a moment. */
function storyAt(time) {
  const placed = stories.map(story => [story, Date.parse(story.placedAt)]).filter(([, at]) => at <= time);
  return placed.sort((one, other) => one[1] - other[1]).at(-1);
}

function showMoment(index) {
  if (!snapshots.length) return;
  showSections(snapshots.slice(Math.max(0, index - SHOWN_SNAPSHOTS + 1), index + 1));
  const { at } = snapshots[index];
  connection.textContent = `a recording: ${new Date(at).toLocaleString()}, ${index + 1} of ${snapshots.length}`;
  const story = storyAt(at);
  if (story) showStory(story[0], null, at - story[1]);
}

let playing = true;
play.onclick = () => {
  playing = !playing;
  play.textContent = playing ? 'pause' : 'play';
};
slider.oninput = () => showMoment(Number(slider.value));
showMoment(0);
setInterval(() => {
  if (!playing || Number(slider.value) >= Number(slider.max)) return;
  slider.value = String(Number(slider.value) + 1);
  showMoment(Number(slider.value));
}, 500);
