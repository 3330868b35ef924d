// The live tail receives rows as server-sent events and adds them as text. A hidden page closes
// its stream.
"use strict";

const tail = document.getElementById("tail");
const rows = tail.querySelector("tbody");
const state = document.getElementById("tail-state");
const count = document.getElementById("tail-count");
const pauseButton = document.getElementById("tail-pause");
const exact = new Intl.NumberFormat("en-US");
const most = 200; // rows on the page
let source = null;
let paused = false;
let held = []; // rows that came while paused, the newest first
let missed = 0; // rows that came while paused and are not held
let dropped = 0;

function say(text, tone) {
  if (state.textContent === text) return;
  state.textContent = text;
  state.className = "pill " + tone;
}

function tally() {
  const parts = [];
  if (paused) parts.push(exact.format(held.length + missed) + " came while paused");
  if (dropped > 0) parts.push(exact.format(dropped) + " dropped: there were too many to show");
  count.textContent = parts.join("; ");
}

function cell(tr, ...content) {
  const td = document.createElement("td");
  td.append(...content);
  tr.append(td);
  return td;
}

function el(name, className, text) {
  const e = document.createElement(name);
  e.className = className;
  e.textContent = text;
  return e;
}

function rowOf(r) {
  const tr = document.createElement("tr");
  const time = document.createElement("time");
  time.dateTime = r.at;
  time.title = r.at.replace("T", " ").replace("Z", " UTC");
  time.textContent = r.at;
  const link = document.createElement("a");
  link.href = r.path + (tail.dataset.own ? "" : "?company=" + encodeURIComponent(r.company));
  link.append(time);
  cell(tr, link);
  cell(tr, el("span", "pill " + r.tone, r.status));
  cell(tr, r.type, document.createElement("br"), el("code", "dim cut", r.event));
  if (!tail.dataset.about && !tail.dataset.own) {
    const company = el("code", "", r.company.slice(0, 8));
    company.title = r.company;
    cell(tr, company);
  }
  cell(tr, el("span", "cut", r.subscriber));
  cell(tr, r.answer).className = "grow";
  cell(tr, r.took).className = "n";
  cell(tr, String(r.number)).className = "n";
  return tr;
}

function show(list) {
  rows.prepend(...list.map(rowOf));
  while (rows.children.length > most) rows.lastChild.remove();
  document.getElementById("tail-empty").hidden = rows.children.length > 0;
  localTimes(rows);
}

function open() {
  if (source || document.hidden) return;
  say("Connecting", "quiet");
  source = new EventSource(tail.dataset.stream);
  const live = () => say(paused ? "Paused" : "Live", paused ? "warn" : "good");
  source.addEventListener("open", live);
  source.addEventListener("idle", live);
  source.addEventListener("rows", (event) => {
    const data = JSON.parse(event.data);
    const list = data.rows || [];
    dropped += data.dropped;
    live();
    if (!paused) show(list);
    else {
      missed += Math.max(0, held.length + list.length - most);
      held = [...list, ...held].slice(0, most);
    }
    tally();
  });
  source.addEventListener("ended", () => { close(); location.reload(); });
  source.addEventListener("error", () => {
    say("Reconnecting", "warn");
    if (source && source.readyState === EventSource.CLOSED) { // the daemon refused the stream: the session has ended, or there are too many viewers
      close();
      say("Not connected", "bad");
      window.setTimeout(open, 5000);
    }
  });
}

function close() {
  if (source) source.close();
  source = null;
}

pauseButton.addEventListener("click", () => {
  paused = !paused;
  pauseButton.textContent = paused ? "Resume" : "Pause";
  pauseButton.setAttribute("aria-pressed", String(paused));
  say(paused ? "Paused" : "Live", paused ? "warn" : "good");
  if (!paused) {
    show(held);
    held = [];
    missed = 0;
  }
  tally();
});
document.getElementById("tail-clear").addEventListener("click", () => {
  rows.replaceChildren();
  held = [];
  missed = dropped = 0;
  document.getElementById("tail-empty").hidden = false;
  tally();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { close(); say("Not connected", "quiet"); } else open();
});
window.addEventListener("pagehide", close);
open();
