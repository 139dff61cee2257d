"use strict";
/* Two solutions side by side: their lines with the differences marked, their tables merged. */

/** Fill the rows of `table` with both sides' lines, each a list of elements. */
function drawDifferences(table, names, sides) {
  const head = table.tHead.insertRow();
  for (const name of names) {
    const heading = document.createElement("th");
    Object.assign(heading, { colSpan: 2, scope: "colgroup", textContent: name });
    head.append(heading);
  }
  const [texts, others] = sides.map((lines) => lines.map((line) => line.textContent.trimEnd()));
  const next = [0, 0];
  const take = (side, count) => Array.from({ length: count }, () => next[side]++);
  let removed = [];
  for (const part of [...Diff.diffArrays(texts, others), { count: 0 }]) {
    if (part.removed) {
      removed = take(0, part.count);
      continue;
    }
    const added = part.added ? take(1, part.count) : [];
    for (let i = 0; i < Math.max(removed.length, added.length); i++) {
      addLines(table, sides, removed[i], added[i], true);
    }
    removed = [];
    if (!part.added) take(0, part.count).forEach((at) => addLines(table, sides, at, next[1]++, false));
  }
}

function addLines(table, sides, left, right, differ) {
  const row = table.tBodies[0].insertRow();
  row.className = differ ? "differ" : "same";
  [left, right].forEach((at, side) => {
    const line = sides[side][at];
    const mark = row.insertCell();
    const code = row.insertCell();
    mark.className = "mark";
    code.className = ["removed", "added"][side];
    if (!line) return code.classList.add("none");
    mark.textContent = (differ ? ["−", "+"][side] : "") + line.dataset.number;
    code.classList.toggle("kernel", line.classList.contains("kernel"));
    code.append(line.cloneNode(true));
  });
}

/** Return one table of both sides' columns that are marked for it, and of the ratio of values. */
function mergeTables(names, [one, other], ratio) {
  const table = document.createElement("table");
  table.className = "data merged";
  const kept = [...one.tHead.rows[0].cells];
  const keys = kept.filter((cell) => !("both" in cell.dataset) && cell.cellIndex < 2);
  const both = kept.filter((cell) => "both" in cell.dataset);
  table.append(one.caption.cloneNode(true));
  const head = table.createTHead();
  const [top, below] = [head.insertRow(), head.insertRow()];
  const add = (row, text, attributes) =>
    row.append(Object.assign(document.createElement("th"), { textContent: text, ...attributes }));
  keys.forEach((cell) => add(top, cell.textContent, { rowSpan: 2, scope: "col" }));
  add(top, ratio, { rowSpan: 2, scope: "col", className: "num" });
  names.forEach((name) => add(top, name, { colSpan: both.length, scope: "colgroup", translate: false }));
  names.forEach(() => both.forEach((cell) => add(below, cell.textContent, { scope: "col", className: "num" })));
  const body = table.createTBody();
  const rows = new Map([...other.tBodies[0].rows].map((row) => [row.dataset.key, row]));
  for (const row of one.tBodies[0].rows) {
    const twin = rows.get(row.dataset.key);
    const merged = body.insertRow();
    keys.forEach((cell) => merged.append(row.cells[cell.cellIndex].cloneNode(true)));
    const times = twin ? twin.dataset.value / row.dataset.value : NaN;
    const cell = Object.assign(merged.insertCell(), { className: "num", textContent: times ? times.toFixed(2) : "–" });
    cell.dataset.label = ratio;
    [row, twin].forEach((side, at) => {
      for (const { cellIndex } of both) {
        const copy = side ? side.cells[cellIndex].cloneNode(true) : document.createElement("td");
        copy.classList.add(["left", "right"][at]);
        merged.append(copy);
      }
    });
  }
  return table;
}
