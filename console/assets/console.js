// Adds to the pages, which also work without this script: times in the viewer's time zone, parts
// that refresh themselves, and keyboard shortcuts.
"use strict";

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const year = new Intl.DateTimeFormat(undefined, { year: "numeric" });

// localTimes shows each time in the viewer's time zone. The title of the element has it in UTC.
function localTimes(root) {
  const now = new Date();
  for (const t of root.querySelectorAll("time[datetime]:not([data-local])")) {
    const at = new Date(t.dateTime);
    let text = clock.format(at);
    if (at.toDateString() !== now.toDateString()) text = day.format(at) + ", " + text;
    if (at.getFullYear() !== now.getFullYear()) text = year.format(at) + " " + text;
    t.textContent = text;
    t.title += " (shown in " + zone + ")";
    t.dataset.local = "";
  }
}

// refresh reloads the live part of the page, while the page is visible and the viewer does not use
// the part.
function refresh() {
  const part = document.getElementById("live");
  if (!part || !part.dataset.refresh) return;
  const wait = Number(part.dataset.refresh) * 1000;
  window.setTimeout(() => {
    const used = part.contains(document.activeElement) && document.activeElement !== document.body;
    const ticked = part.querySelector("input:checked, details[open]");
    const selected = window.getSelection() && !window.getSelection().isCollapsed;
    if (document.hidden || used || ticked || selected || !part.isConnected) return refresh();
    const url = new URL(location.href);
    url.searchParams.delete("done");
    htmx.ajax("GET", url.pathname + url.search, { source: part, target: part, select: "#live", swap: "outerHTML", headers: { "X-Refresh": "1" } })
      .then(refresh, refresh);
  }, wait);
}

// boxes updates the box that selects all rows, and the count in the button.
function boxes(root) {
  for (const all of root.querySelectorAll("[data-all]")) {
    const form = all.closest("form");
    if (!form || form.dataset.boxes) continue;
    form.dataset.boxes = "on";
    const each = () => [...form.querySelectorAll("input[name=id]")];
    const button = form.querySelector("[data-selected]");
    const show = () => {
      const n = each().filter((box) => box.checked).length;
      all.checked = n > 0 && n === each().length;
      all.indeterminate = n > 0 && n < each().length;
      button.disabled = n === 0;
      button.textContent = n === 0 ? "Retry the selected" : button.dataset.selected.replace("{n}", n);
    };
    all.addEventListener("change", () => { for (const box of each()) box.checked = all.checked; show(); });
    form.addEventListener("change", show);
    show();
  }
}

function copies(root) {
  for (const button of root.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", () => {
      navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent).then(() => { button.textContent = "Copied"; });
    });
  }
}

// In a narrow window the navigation is one line that scrolls. showCurrent scrolls to the link of
// the current page.
function showCurrent() {
  const link = document.querySelector("nav a[aria-current]"), nav = link && link.closest("nav");
  if (nav && nav.scrollWidth > nav.clientWidth) nav.scrollLeft = link.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2;
}

// finds hides the labels of a list that do not have what is typed in its search box.
function finds(root) {
  for (const box of root.querySelectorAll("[data-find]")) {
    box.closest("[data-script]").hidden = false;
    box.addEventListener("input", () => {
      for (const label of document.getElementById(box.dataset.find).children) {
        label.hidden = !(label.textContent + label.title).toLowerCase().includes(box.value.trim().toLowerCase());
      }
    });
  }
}

// In a narrow window a row of a list is a block that names its columns, and filters that are not used are folded.
function narrow(root) {
  for (const table of root.querySelectorAll("table.rows:not([data-named]), section > .wide > table:not([data-named])")) {
    if (!table.tBodies.length) continue;
    table.dataset.named = "";
    const names = [...table.querySelectorAll("thead th")].map((th) => th.textContent.trim());
    for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, i) => { cell.dataset.name = names[i]; });
  }
  for (const form of root.querySelectorAll("form.filters:not([data-fold])")) {
    if (form.querySelectorAll("input:not([type=hidden]), select").length < 2) continue;
    const used = [...new FormData(form)].some(([name, value]) => value && name !== "company");
    const button = document.createElement("button");
    const fold = (folded) => { form.dataset.fold = folded; button.setAttribute("aria-expanded", !folded); };
    button.type = "button";
    button.className = "fold";
    button.textContent = "Filter";
    button.addEventListener("click", () => fold(form.dataset.fold !== "true"));
    form.prepend(button);
    fold(!used);
  }
}

function dress(root) {
  finds(root);
  narrow(root);
  localTimes(root);
  boxes(root);
  copies(root);
}

// Keys: / selects the search, j and k move between the rows, Enter opens a row, and g with a letter
// opens a page.
let going = false;
let row = -1;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  if (going) {
    going = false;
    const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  const rows = [...document.querySelectorAll("table.rows tbody tr")];
  switch (event.key) {
    case "g": going = true; return;
    case "/": {
      const search = document.querySelector("[data-search]");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
      return;
    }
    case "j": case "k": {
      if (!rows.length) return;
      row = Math.max(0, Math.min(rows.length - 1, row + (event.key === "j" ? 1 : -1)));
      for (const r of rows) r.classList.toggle("at", r === rows[row]);
      const link = rows[row].querySelector("a");
      if (link) link.focus({ preventScroll: true });
      rows[row].scrollIntoView({ block: "nearest" });
    }
  }
});

document.addEventListener("htmx:load", (event) => dress(event.detail.elt.parentElement || event.detail.elt));
// After 401 and 403, show the whole error page.
document.addEventListener("htmx:responseError", (event) => {
  if (event.detail.xhr.status === 401 || event.detail.xhr.status === 403) location.reload();
});
// Reload a page that the browser restores from its memory: its session may have ended.
window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

dress(document);
showCurrent();
refresh();
