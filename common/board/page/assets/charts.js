"use strict";
/* Draws the times of cases with uPlot: intervals as whiskers, and a legend that hides series. */

/** Return a colour of the style sheet, or another, as the browser shows it now. */
function ink(name) {
  const probe = document.createElement("i");
  probe.style.color = name.includes("(") ? name : `var(--${name})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

/** Draw one figure, anew where it has been drawn. */
function drawChart(figure, chart) {
  const place = figure.querySelector(".plot");
  const shown = figure.plot ? figure.plot.series.map((each) => each.show) : [];
  place.replaceChildren();
  const values = chart.series.map((each) => each.values.map((value) => value && value[0]));
  figure.plot = new uPlot(options(figure, chart, shown), [chart.cases.map((_, at) => at), ...values], place);
  enableKeys(place);
}

function options(figure, chart, shown) {
  const text = { stroke: ink("quiet"), font: "12px system-ui", grid: { stroke: ink("grid"), width: 1 }, ticks: { stroke: ink("grid"), width: 1 } };
  const across = {
    ...text,
    splits: () => chart.cases.map((_, at) => at),
    values: () => chart.cases.map((_, at) => at + 1), // the list below the chart has the names
    size: 34,
  };
  return {
    width: figure.querySelector(".plot").clientWidth,
    height: 300,
    scales: { x: { time: false, range: [-0.5, chart.cases.length - 0.5] }, y: { distr: 3, range: (plot) => reach(plot, chart) } },
    axes: [across, { ...text, label: "µs", size: 64, values: (_, ticks) => ticks.map(number) }],
    series: [
      { label: figure.dataset.x, value: (_, value) => (value === null ? "" : chart.cases[value]) },
      ...chart.series.map((each, at) => series(figure, each, shown[at + 1])),
    ],
    hooks: { drawSeries: [(plot, at) => at && whiskers(plot, at, chart.series[at - 1])] },
    cursor: { points: { size: 9 }, focus: { prox: 24 } },
    focus: { alpha: 0.2 },
    legend: {
      live: true,
      markers: { fill: (plot, at) => (chart.series[at - 1]?.peer ? "transparent" : plot.series[at].stroke(plot, at)) },
    },
  };
}

/** Return the range of values that holds the intervals of the series that are shown. */
function reach(plot, chart) {
  const seen = chart.series.filter((_, at) => plot.series[at + 1].show);
  const values = seen.flatMap((each) => each.values).filter((value) => value);
  if (!values.length) return [1, 10];
  return uPlot.rangeLog(Math.min(...values.map((value) => value[1])), Math.max(...values.map((value) => value[2])), 10, false);
}

/** Return a hue that no other number has: steps of the golden angle never meet. */
function colour(hue) {
  const angle = (hue * 137.508) % 360;
  return `light-dark(hsl(${angle} ${55 + 35 * (hue % 2)}% ${hue % 3 ? 34 : 45}%), hsl(${angle} ${55 + 35 * (hue % 2)}% ${hue % 3 ? 74 : 64}%))`;
}

function series(figure, each, show) {
  const { mine } = figure.dataset;
  const others = mine && mine !== each.name;
  const hue = data.hues[each.name]; // a solution has the same in every chart
  const stroke = ink(others ? "other" : hue === undefined ? "quiet" : colour(hue));
  return {
    label: each.name,
    show: show ?? true,
    stroke,
    width: mine === each.name ? 3 : 1.5,
    paths: () => null, // cases have no order: dots alone
    points: { show: true, size: others ? 4 : 7, fill: each.peer ? ink("paper") : stroke },
    value: (_, value) => (value === null ? "" : number(value)),
  };
}

/** Draw the 95 % interval of each value. */
function whiskers(plot, at, { values }) {
  const { ctx } = plot;
  ctx.save();
  ctx.strokeStyle = plot.series[at].stroke(plot, at);
  ctx.beginPath();
  values.forEach((value, i) => {
    if (!value) return;
    const x = plot.valToPos(plot.data[0][i], "x", true);
    ctx.moveTo(x, plot.valToPos(value[1], "y", true));
    ctx.lineTo(x, plot.valToPos(value[2], "y", true));
  });
  ctx.lineWidth = 2;
  ctx.stroke();
  ctx.restore();
}

function number(value) {
  return value === null || value === undefined ? "–" : Number(value.toPrecision(3)).toLocaleString("en");
}

/** Let the keyboard hide and show a series, as a click on its name does. */
function enableKeys(place) {
  for (const name of place.querySelectorAll(".u-legend .u-series:not(:first-child) th")) {
    name.tabIndex = 0;
    name.setAttribute("role", "button");
    name.onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      name.click();
    };
  }
}
