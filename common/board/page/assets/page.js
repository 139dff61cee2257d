"use strict";
/* Shows the view that the address names: applies the filters, compares, draws the charts. */

const MAIN = document.getElementById("main");
const LANGUAGE = document.getElementById("language");
const ADDRESS = ["view", "device", "op", "track", "name"];
const NAMED = ["title", "aria-label", "data-label", "data-x", "data-ratio"];
let data; // each view's HTML by its address, the texts that views share by number, Korean words
let turn = 0;

/** Return the data of the page, which are compressed. */
async function unpack() {
  const packed = atob(document.getElementById("packed").textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

// --- views ---------------------------------------------------------------------------------------

/** Return a view as elements; its text is escaped where it was drawn. */
function view(address) {
  const template = document.createElement("template");
  template.innerHTML = data.views[Object.hasOwn(data.views, address) ? address : "missing"];
  for (const place of template.content.querySelectorAll("[data-text]")) {
    place.innerHTML = data.texts[place.dataset.text];
    place.querySelectorAll(".line").forEach((line, at) => (line.dataset.number = at + 1));
  }
  return template.content;
}

/** Show the view of the address; where only a filter changed, leave the rest as it is. */
function show() {
  turn += 1;
  const fields = new URLSearchParams(location.hash.slice(1));
  const address = ADDRESS.flatMap((name) => fields.get(name) ?? []).join(" ");
  const whole = [address, fields.get("one"), fields.get("other")].join("&");
  const fresh = MAIN.dataset.shown !== whole;
  if (fresh) {
    MAIN.dataset.shown = whole;
    MAIN.replaceChildren(address === "compare" ? comparison(fields) : view(address));
    translate(MAIN);
    document.querySelectorAll("[data-view]").forEach((link) => {
      link.toggleAttribute("aria-current", link.dataset.view === (fields.get("view") || "overview"));
    });
    document.title = `${MAIN.querySelector("h1").textContent} · ${document.querySelector(".title").textContent}`;
  }
  filter(fields);
  drawAll();
  point(fields, fresh);
  document.documentElement.dataset.ready = turn;
}

/** Set the form as the address says, take the ranking of that choice. */
function filter(fields) {
  for (const select of MAIN.querySelectorAll("[data-filters] select")) select.value = fields.get(select.name) ?? "";
  const place = MAIN.querySelector("#ranking");
  if (!place) return;
  const found = MAIN.querySelector(`template[data-case="${CSS.escape(fields.get("case") ?? "")}"]`) ?? MAIN.querySelector("template");
  place.replaceChildren(found.content.cloneNode(true));
  translate(place);
}

/** Draw the charts that can be seen; those in closed details are drawn when they open. */
function drawAll() {
  for (const figure of MAIN.querySelectorAll("[data-chart]:not([data-drawn])")) {
    if (!figure.checkVisibility()) continue;
    figure.dataset.drawn = "";
    drawChart(figure, JSON.parse(data.texts[figure.dataset.chart]));
  }
}

/** Lead the eye and the focus to the row or the part that the address names, or to the heading. */
function point(fields, fresh) {
  const [row, part] = ["row", "part"].map((name) => fields.get(name) && MAIN.querySelector(`[data-${name}="${CSS.escape(fields.get(name))}"]`));
  MAIN.querySelectorAll("tr[aria-current]").forEach((each) => each.removeAttribute("aria-current"));
  if (row) {
    row.setAttribute("aria-current", "true");
    row.closest("details")?.setAttribute("open", "");
    row.scrollIntoView({ block: "center" });
  } else if (part) {
    if (part.matches("details")) part.open = true;
    part.scrollIntoView();
  } else if (fresh && turn > 1) {
    MAIN.querySelector("h1").focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

// --- two solutions -------------------------------------------------------------------------------

function comparison(fields) {
  const names = ["one", "other"].map((name) => fields.get(name));
  const sides = names.map((name) => view(`solution ${name}`));
  if (sides.some((side) => !side.querySelector("[data-part=source]"))) return view("missing");
  const page = view("compare");
  const place = page.querySelector("[data-merged]");
  for (const one of sides[0].querySelectorAll("[data-both]:is(table)")) {
    const other = sides[1].querySelector(`table[data-both="${CSS.escape(one.dataset.both)}"]`);
    if (other) place.append(merged(one, other, names, place.dataset.ratio));
  }
  return page;
}

/** Return the columns marked `data-both` of two tables beside each other, with the ratios of times. */
function merged(one, other, names, ratio) {
  const table = Object.assign(document.createElement("table"), { className: "data merged" });
  const keys = Number(one.dataset.keys);
  const cells = [...one.tHead.rows[0].cells];
  const both = cells.filter((cell) => "both" in cell.dataset);
  const add = (row, tag, text, fields) => {
    row.append(Object.assign(document.createElement(tag), { textContent: text, className: "num", ...fields }));
    return row.lastChild;
  };
  const head = table.createTHead().insertRow();
  cells.slice(0, keys).forEach((cell) => add(head, "th", cell.textContent, { scope: "col", className: "" }));
  both.forEach((cell) => add(head, "th", cell.textContent, { scope: "colgroup", colSpan: 2 }));
  const body = table.createTBody();
  const twins = new Map([...other.tBodies[0].rows].map((row) => [row.dataset.key, row]));
  for (const row of one.tBodies[0].rows) {
    const [twin, line] = [twins.get(row.dataset.key), body.insertRow()];
    for (let key = 0; key < keys; key += 1) {
      line.append(row.cells[key].cloneNode(true));
      line.lastChild.classList.add("key");
    }
    for (const { cellIndex } of both) {
      const sides = [row, twin].map((side) => side?.cells[cellIndex]?.cloneNode(true) ?? document.createElement("td"));
      const times = sides[1].dataset.time / sides[0].dataset.time;
      if (times) sides[0].append(Object.assign(document.createElement("b"), { className: "ratio", textContent: `${times.toFixed(2)} ${ratio}` }));
      line.append(...sides);
    }
  }
  const caption = one.caption.cloneNode(true);
  caption.append(" ", Object.assign(document.createElement("small"), { textContent: names.join(" | "), translate: false }));
  table.prepend(caption);
  const box = Object.assign(document.createElement("div"), { className: "scroll" });
  box.append(table);
  return box;
}

// --- what a reader does --------------------------------------------------------------------------

function go(form) {
  const fields = new URLSearchParams(new FormData(form));
  for (const [name, value] of [...fields]) if (!value) fields.delete(name);
  location.hash = fields;
}

/** Draw what depends on colours or on the width again. */
function redraw() {
  MAIN.querySelectorAll("[data-drawn]").forEach((figure) => figure.removeAttribute("data-drawn"));
  drawAll();
}

/** Return a text in the language: the whole of it, or each piece between commas and semicolons. */
function inWords(text, words) {
  const known = (each) => (Object.hasOwn(words, each) ? words[each] : each);
  return Object.hasOwn(words, text) ? words[text] : text.replace(/[^;,\s][^;,]*/g, known);
}

/** Put the page's own words into the language; what people wrote is marked and stays. */
function translate(place) {
  const words = data[LANGUAGE.value];
  if (!words) return;
  const walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
  for (let node = walker.currentNode; node; node = walker.nextNode()) {
    const owner = node.parentElement?.closest("[translate]") ?? node;
    if (node.nodeType === Node.ELEMENT_NODE) {
      for (const name of NAMED) {
        const said = node.getAttribute(name);
        if (said) node.setAttribute(name, inWords(said, words));
      }
    } else if (owner.translate !== false) {
      const said = node.data.trim();
      if (Object.hasOwn(words, said)) node.data = node.data.replace(said, words[said]);
    }
  }
}

/** Return the choices that the browser keeps; it may keep none for a page from the disk. */
function kept() {
  try {
    return localStorage;
  } catch {
    return {};
  }
}

async function start() {
  data = await unpack();
  LANGUAGE.value = kept().language || (navigator.language.startsWith("ko") ? "ko" : "en");
  document.documentElement.lang = LANGUAGE.value;
  translate(document.body);
  show();
  addEventListener("hashchange", show);
  addEventListener("change", ({ target }) => {
    if (target === LANGUAGE) {
      kept().language = target.value;
      location.reload();
    } else if (target.form?.matches("[data-filters]")) go(target.form);
  });
  addEventListener("submit", (event) => {
    event.preventDefault();
    go(event.target);
  });
  document.querySelector("[data-skip]").addEventListener("click", (event) => {
    event.preventDefault();
    MAIN.querySelector("h1").focus();
  });
  MAIN.addEventListener("toggle", drawAll, { capture: true });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width !== innerWidth) redraw();
    width = innerWidth;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

start();
