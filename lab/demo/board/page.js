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
