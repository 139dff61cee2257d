"use strict";
/* Two solutions side by side: their lines with the differences marked, their tables merged. */

const FEW = 3; // equal lines between two differences that do not separate them

/** Fill the rows of `table` with both sides' lines, each a list of elements: a row for each block. */
function drawDifferences(table, names, sides) {
  const head = table.tHead.insertRow();
  for (const name of names) {
    const heading = document.createElement("th");
    Object.assign(heading, { scope: "col", textContent: name });
    head.append(heading);
  }
  const [texts, others] = sides.map((lines) => lines.map((line) => line.textContent.trimEnd()));
  const next = [0, 0];
  for (const { differ, counts } of blocks(Diff.diffArrays(texts, others))) {
    const row = table.tBodies[0].insertRow();
    row.className = differ ? "differ" : "same";
    counts.forEach((count, side) => {
      const cell = row.insertCell();
      cell.className = ["removed", "added"][side];
      cell.classList.toggle("none", !count);
      cell.append(...sides[side].slice(next[side], (next[side] += count)).map((line) => line.cloneNode(true)));
    });
  }
}

/** Return the number of each side's lines in each block; differences with few lines between are one. */
function blocks(parts) {
  const found = [];
  parts.forEach((part, at) => {
    const between = part.count < FEW && at > 0 && at < parts.length - 1;
    const differ = Boolean(part.added || part.removed || between);
    if (found.at(-1)?.differ !== differ) found.push({ differ, counts: [0, 0] });
    const { counts } = found.at(-1);
    if (!part.added) counts[0] += part.count;
    if (!part.removed) counts[1] += part.count;
  });
  return found;
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
