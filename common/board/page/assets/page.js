"use strict";
/* Shows the view that the address names: unpacks it, applies the filters, draws its charts. */

const PARTS = JSON.parse(document.getElementById("parts").textContent);
const MAIN = document.getElementById("main");
const WORDS = JSON.parse(document.getElementById("words").textContent);
const LANGUAGE = document.getElementById("language");
const THEME = document.getElementById("theme");
const NAMED = ["title", "aria-label", "data-label", "data-x", "data-ratio"];
let turn = 0;

/** Return the text of a part. */
async function unpack(name) {
  const bytes = Uint8Array.from(atob(PARTS[name]), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).text();
}

/** Return a part as elements; its text is escaped where it was drawn. */
async function fragment(name) {
  const template = document.createElement("template");
  template.innerHTML = await unpack(Object.hasOwn(PARTS, name) ? name : "missing");
  for (const place of template.content.querySelectorAll("[data-file]")) {
    place.innerHTML = await unpack(place.dataset.file);
    place.querySelectorAll(".line").forEach((line, at) => (line.dataset.number = at + 1));
  }
  return template.content;
}

// --- views ---------------------------------------------------------------------------------------

function partOf(fields) {
  const [device, op, track] = ["device", "op", "track"].map((name) => fields.get(name));
  switch (fields.get("view") || "") {
    case "":
      return MAIN.dataset.first;
    case "board":
      return device ? `board/${device}/${op}/${track}` : MAIN.dataset.board;
    case "solution":
      return `solution/${fields.get("name")}`;
    default:
      return fields.get("view");
  }
}

/** Show the view of the address; where only a filter changed, leave the rest as it is. */
async function show() {
  const mine = ++turn;
  const fields = new URLSearchParams(location.hash.slice(1));
  if (fields.get("view") === "compare" && !fields.get("one")) {
    fields.set("one", MAIN.dataset.one);
    fields.set("other", MAIN.dataset.other);
  }
  const whole = [partOf(fields), fields.get("one"), fields.get("other")].join("&");
  const fresh = MAIN.dataset.shown !== whole;
  if (fresh) {
    const content = await fragment(partOf(fields));
    if (fields.get("view") === "compare") await fillComparison(content, fields);
    if (mine !== turn) return;
    MAIN.dataset.shown = whole;
    MAIN.replaceChildren(content);
    translate(MAIN);
    mark(fields);
  }
  filter(fields);
  await drawAll();
  point(fields, fresh);
  performance.mark("shown");
  document.documentElement.dataset.ready = mine;
}

function mark(fields) {
  const view = fields.get("view") || MAIN.dataset.first;
  document.querySelectorAll("[data-view]").forEach((link) => {
    link.toggleAttribute("aria-current", link.dataset.view === view);
  });
  document.title = `${MAIN.querySelector("h1").textContent} · ${document.querySelector(".title").textContent}`;
}

/** Set the form as the address says, take the ranking of that choice and hide the other rows. */
function filter(fields) {
  const form = MAIN.querySelector("[data-filters]");
  if (!form) return;
  for (const select of form.querySelectorAll("select")) select.value = fields.get(select.name) ?? "";
  const place = MAIN.querySelector("#ranking");
  if (!place) return;
  const choice = ["direction", "case"].map((name) => `[data-${name}="${CSS.escape(fields.get(name) ?? "")}"]`);
  const found = MAIN.querySelector(`template${choice.join("")}`) ?? MAIN.querySelector("template");
  place.replaceChildren(found.content.cloneNode(true));
  translate(place);
  for (const row of place.querySelectorAll("tbody tr")) {
    row.hidden = ["kind", "who"].some((name) => fields.get(name) && fields.get(name) !== row.dataset[name]);
  }
}

async function fillComparison(content, address) {
  const fields = new URLSearchParams(address);
  const names = ["one", "other"].map((name) => fields.get(name));
  if (!names.every((name) => Object.hasOwn(PARTS, `solution/${name}`))) {
    return content.replaceChildren(await fragment("missing"));
  }
  const sides = await Promise.all(names.map((name) => fragment(`solution/${name}`)));
  const lines = sides.map((side) => [...side.querySelectorAll("[data-part=source] .line")]);
  drawDifferences(content.querySelector(".diff"), names, lines);
  for (const link of content.querySelectorAll("[data-jump]")) {
    fields.set("part", link.dataset.jump);
    link.href = `#${fields}`;
  }
  const merged = content.querySelector("[data-merged]");
  for (const one of sides[0].querySelectorAll("table[data-both]")) {
    const other = sides[1].querySelector(`table[data-both="${CSS.escape(one.dataset.both)}"]`);
    if (other) merged.append(scrolling(mergeTables(names, [one, other], merged.dataset.ratio)));
  }
  const beside = content.querySelector("[data-beside]");
  sides.forEach((side, at) => {
    const box = document.createElement("div");
    const found = side.querySelectorAll("[data-part=work]");
    box.append(Object.assign(document.createElement("h3"), { textContent: names[at], translate: false }));
    found.forEach((part) => box.append(...[...part.children].filter((each) => !each.matches("h2, .explained"))));
    beside.append(box);
  });
}

function scrolling(table) {
  const box = Object.assign(document.createElement("div"), { className: "scroll" });
  box.append(table);
  return box;
}

/** Draw the charts that can be seen; those in closed details are drawn when they open. */
async function drawAll() {
  for (const figure of MAIN.querySelectorAll("[data-chart]:not([data-drawn])")) {
    if (!figure.checkVisibility()) continue;
    figure.dataset.drawn = "";
    drawChart(figure, JSON.parse(await unpack(figure.dataset.chart)));
  }
}

/** Lead the eye and the focus to the row or the part that the address names, or to the heading. */
function point(fields, fresh) {
  const row = fields.get("row") && MAIN.querySelector(`tr[data-row="${CSS.escape(fields.get("row"))}"]`);
  const part = fields.get("part") && MAIN.querySelector(`[data-part="${CSS.escape(fields.get("part"))}"]`);
  MAIN.querySelectorAll("tr[aria-current]").forEach((each) => each.removeAttribute("aria-current"));
  if (row) {
    row.setAttribute("aria-current", "true");
    row.closest("details")?.setAttribute("open", "");
    row.scrollIntoView({ block: "center" });
  } else if (part) {
    part.scrollIntoView();
  } else if (fresh && turn > 1) {
    MAIN.querySelector("h1").focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

// --- what a reader does --------------------------------------------------------------------------

function go(form) {
  const fields = new URLSearchParams(new FormData(form));
  for (const [name, value] of [...fields]) if (!value) fields.delete(name);
  location.hash = fields;
}

/** Draw what depends on colours or on the width again. */
function redraw() {
  document.documentElement.dataset.theme = THEME.value;
  MAIN.querySelectorAll("[data-drawn]").forEach((figure) => figure.removeAttribute("data-drawn"));
  return drawAll();
}

/** Return a text in the language: the whole of it, or each piece between commas and semicolons. */
function inWords(text, words) {
  const known = (each) => (Object.hasOwn(words, each) ? words[each] : each);
  return Object.hasOwn(words, text) ? words[text] : text.replace(/[^;,\s][^;,]*/g, known);
}

/** Put the page's own words into the language; what people wrote is marked and stays. */
function translate(place) {
  const words = WORDS[LANGUAGE.value];
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

function remembered(name) {
  try {
    return localStorage.getItem(name) ?? "";
  } catch {
    return ""; // a browser may keep nothing for a page from the disk
  }
}

function remember({ id, value }) {
  try {
    localStorage.setItem(id, value);
  } catch {
    // the choice holds until the page is closed
  }
}

addEventListener("hashchange", show);
addEventListener("change", ({ target }) => {
  if (target === THEME || target === LANGUAGE) remember(target);
  if (target === LANGUAGE) location.reload();
  else if (target === THEME) redraw();
  else if (target.form?.matches("[data-filters]")) go(target.form);
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
THEME.value = remembered("theme");
LANGUAGE.value = remembered("language") || (navigator.language.startsWith("ko") ? "ko" : "en");
document.documentElement.dataset.theme = THEME.value;
document.documentElement.lang = LANGUAGE.value;
translate(document.body);
show();
