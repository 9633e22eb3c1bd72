// What all sections use.

/** Sends a change. Returns the answer's JSON; a refusal is an error in the server's words. */
export async function send(path, body) {
  const token = document.querySelector('meta[name=board-token]').content;
  const response = await fetch(path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-board-token': token },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

/** Reads what the server knows. */
export async function ask(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

/** A number for people: "?" if it is unknown. */
export function shown(value, digits = 0) {
  return value === null || value === undefined || Number.isNaN(value)
    ? '?' : value.toLocaleString('en', { maximumFractionDigits: digits });
}

/** An element with a text, and with attributes. */
export function made(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** An element of a drawing, in its parent. */
export function drawn(name, attributes, parent, text) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

/** Says what went wrong beside a button, until something else is to be said there. */
export async function attempt(lineId, work) {
  const line = document.getElementById(lineId);
  try {
    line.textContent = await work() ?? '';
  } catch (error) {
    line.textContent = error.message;
  }
}

/** Whether the page is a recording: it has no server to ask. */
export function isRecording() {
  return document.getElementById('recording') !== null;
}

/** A service's metric. One that counts is not there before it has counted; the others are unknown then. */
export function metric({ metrics }, service, name, missing = null) {
  return metrics[service] ? metrics[service][name] ?? missing : null;
}

/** Per second between two snapshots. Unknown, or a restart in between: null. */
export function rate(now, before, service, name) {
  const seconds = (now.at - before.at) / 1000;
  const [new_, old] = [metric(now, service, name, 0), metric(before, service, name, 0)];
  if (new_ === null || old === null || seconds <= 0 || new_ < old) return null;
  return (new_ - old) / seconds;
}

/** The events that are pending in an outbox, as its table says. */
export function pending({ pending: lanes }, service) {
  return lanes ? lanes[service].reduce((sum, events) => sum + events, 0) : null;
}

/** The events that wait in a queue. A service that is down says nothing of its queue; the tables do. */
export function queued(now, service) {
  return metric(now, service, 'broker_queue_ready') ?? now.waiting?.[service] ?? null;
}
