/* The comparison of models: scores, pairs, learning curves, lengths, sizes and outputs, each where there is data. */
"use strict";

const MANY_PAIRS = 10;
const OUTPUTS_AT_ONCE = 20;

PAGES.comparison = (root, data) => {
  const styles = data.models.map((model, index) => styleOf(model, index, data.palette));
  const page = {
    ...data,
    styles,
    styleOfName: new Map(styles.map((style) => [style.name, style])),
    choice: new ModelChoice(styles),
    label: data.metric_labels[data.metric],
    order: "given",
    reordered: [],
    format: (number) => (isNumber(number) ? number.toFixed(data.digits) : "-"),
  };
  root.querySelector("header").append(make("p", { class: "lead" }, data.lead), make("p", { class: "verdict" }, data.verdict));
  addSections(root, [
    ["scores", "Scores", true, showStandings],
    ["pairs", "Pairwise differences", data.pairs.length, showPairs],
    ["learning", "Learning curves", data.models.some(({ curves }) => curves.some(({ points }) => points.length)), showCurves],
    ["lengths", "Scores by length", data.models.some((model) => model.by_length.length), showLengths],
    ["sizes", `Scores by training ${data.size_unit}`, data.models.some((model) => model.by_size.length), showSizes],
    ["samples", data.is_text ? "Continuations" : "Outputs", data.samples.length, showOutputs],
    ["notes", "Notes", data.notes.length, (section, { notes }) => section.append(makeNotes(notes))],
    ["settings", "Setup", true, showSetup],
  ], page);
  onColorsChange(() => {}); /* The style sheet chooses the colors. */
};

/* The models in the chosen order. */
const inOrder = (page) => (page.order === "given" ? page.styles : page.ranking.map((name) => page.styleOfName.get(name)));

function addOrderChoice(section, page) {
  const choose = (order) => {
    page.order = order;
    page.reordered.forEach((redraw) => redraw());
  };
  if (page.ranking.some((name, place) => name !== page.styles[place].name)) {
    section.querySelector(".section-head").append(makeChoices("Order", [["given", "as given"], ["best", "best first"]], page.order, choose));
  }
}

/* One row for each model: its score on an axis that all share, and its costs. */
function showStandings(section, page) {
  const metrics = Object.keys(page.metric_labels);
  const table = make("table", { class: "standings" });
  let metric = page.metric;
  const draw = () => {
    drawStandings(table, page, metric);
    drawPlots(table, page, metric);
  };
  addOrderChoice(section, page);
  if (metrics.length > 1) {
    section.append(makeChoices("Metric", metrics.map((name) => [name, page.metric_labels[name]]), metric, (name) => {
      metric = name;
      draw();
    }));
  }
  const seeds = page.seeds.length > 1 ? ` and seeds; small dots are the ${page.seeds.length} seeds.`
    : ". There is one seed, so the variation between seeds is not included.";
  section.append(make("div", { class: "card standings-card" }, table),
    make("p", { class: "chart-note" }, `Bars are 95 % intervals over ${page.unit}${seeds}`));
  page.reordered.push(draw);
  draw();
  onWidthChange(table, () => drawPlots(table, page, metric));
}

const scoreOf = (model, page, metric) => (metric === page.metric ? model.score : model.scores[metric]);

function drawStandings(table, page, metric) {
  const format = metric === page.metric ? page.format
    : scoreFormatter(page.models.map((model) => model.scores[metric]).find((score) => isNumber(score?.value)) ?? { value: 0 });
  const rows = inOrder(page).map((style) => {
    const model = page.models[style.index];
    const score = scoreOf(model, page, metric);
    return make("tr", { class: "tinted", style: style.tint },
      make("th", { scope: "row" }, make("div", { class: "title-line" }, makeName(style), makeBadge(page, style.name)),
        model.description ? make("div", { class: "description" }, model.description) : null),
      make("td", { class: "plot", "data-model": style.index }),
      make("td", { class: "value" }, make("b", {}, format(score?.value)),
        score?.interval ? make("div", { class: "between" }, score.interval.map(format).join(" to ")) : null),
      ...page.costs.map(({ name, texts, shares }) => make("td", { class: "cost", "data-label": name },
        make("span", {}, texts[style.index]),
        make("i", { style: `width: ${shares[style.index] ? Math.max(2, shares[style.index] * 100) : 0}%` }))));
  });
  if (page.baseline) rows.push(makeBaselineRow(page, page.baseline, page.baseline.scores[metric], format));
  table.replaceChildren(
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "model"), make("th", { class: "plot axis", "aria-label": "interval" }),
      make("th", { scope: "col", class: "value" }, page.metric_labels[metric],
        page.is_lower_better ? make("div", { class: "better-way" }, "lower is better") : null),
      ...page.costs.map(({ name }) => make("th", { scope: "col", class: "cost" }, name)))),
    make("tbody", {}, ...rows));
}

const makeBaselineRow = ({ costs }, { name }, score, format) => make("tr", { class: "baseline-row" },
  make("th", { scope: "row" }, make("div", { class: "title-line" }, "baseline"), make("div", { class: "description" }, name)),
  make("td"),
  make("td", { class: "value" }, make("b", {}, score ? format(score.value) : "-"),
    score?.interval ? make("div", { class: "between" }, score.interval.map(format).join(" to ")) : null),
  ...costs.map(() => make("td", { class: "cost" })));

function makeBadge({ leaders, ranking }, name) {
  if (!leaders.includes(name)) return null;
  const hint = name === ranking[0] ? "best score" : `not significantly different from ${ranking[0]}, which has the best score`;
  return make("span", { class: "badge", title: hint }, leaders.length === 1 ? "best" : "among the best");
}

function drawPlots(table, page, metric) {
  const isMain = metric === page.metric;
  const numbers = page.models.flatMap((model) => {
    const score = scoreOf(model, page, metric);
    return [score?.value, ...(score?.interval ?? []), ...(isMain ? model.seed_scores : [])].filter(isNumber);
  });
  const axis = table.querySelector("th.plot");
  const cells = [...table.querySelectorAll("td.plot")];
  cells.forEach((cell) => cell.replaceChildren());
  const width = cells[0].clientWidth;
  const heights = cells.map((cell) => Math.max(50, cell.clientHeight));
  if (!numbers.length || !width) return;
  const [start, end] = commonAxis(numbers, 4);
  const pad = 14;
  const place = (number) => pad + ((number - start) / (end - start)) * (width - 2 * pad);
  const ticks = linearTicks(start, end, Math.min(5, width / 70));
  axis.replaceChildren(makeSvg("svg", { viewBox: `0 0 ${width} 18`, width, height: 18, "aria-hidden": "true" },
    ...ticks.map((tick) => makeSvg("text", { x: place(tick), y: 13, "text-anchor": "middle" }, formatNumber(tick)))));
  cells.forEach((cell, row) => {
    const style = page.styles[Number(cell.dataset.model)];
    const model = page.models[style.index];
    const seedScores = isMain && model.seed_scores.length > 1 ? model.seed_scores : [];
    cell.replaceChildren(makePlot(style, scoreOf(model, page, metric), seedScores, { width, height: heights[row], place, ticks }));
  });
}

function makePlot(style, score, seedScores, { width, height, place, ticks }) {
  const y = height / 2 - (seedScores.length ? 7 : 0);
  const svg = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${style.name}: ${formatNumber(score?.value)}` },
    ...ticks.map((tick) => makeSvg("line", { class: "grid", x1: place(tick), x2: place(tick), y1: 0, y2: height })));
  if (score?.interval?.every(isNumber)) {
    const [low, high] = score.interval.map(place);
    svg.append(makeSvg("line", { class: "range", x1: low, x2: Math.max(high, low + 0.1), y1: y, y2: y }));
  }
  if (isNumber(score?.value)) svg.append(makeMark(style.shape, place(score.value), y, 5));
  svg.append(...seedScores.filter(isNumber).map((value) =>
    makeSvg("circle", { class: "seed", cx: place(value), cy: y + 16, r: 2.6 }, makeSvg("title", {}, `seed: ${formatNumber(value)}`))));
  return svg;
}

/* The pair with `a` first. */
function pairBetween(page, a, b) {
  const found = page.pairs.find((pair) => (pair.a === a && pair.b === b) || (pair.a === b && pair.b === a));
  if (!found || found.a === a) return found;
  return { ...found, a, b, difference: -found.difference, interval: found.interval?.map((end) => -end).reverse() };
}

const formatP = (p) => (!isNumber(p) ? "p unknown" : p < 0.001 ? "p <\u20090.001" : `p = ${p.toFixed(3)}`);
const formatSigned = (page, number) => {
  const size = isNumber(number) ? page.format(Math.abs(number)) : "-";
  return Number(size) > 0 ? `${number < 0 ? "\u2212" : "+"}${size}` : size;
};
/* Where lower is better, in words: a sign could be read the wrong way. */
const formatDifference = (page, number) => {
  const signed = formatSigned(page, number);
  return page.is_lower_better ? signed.replace(/^\u2212(.*)/, "$1 lower").replace(/^\+(.*)/, "$1 higher") : signed;
};
const formatRange = (page, [low, high]) => {
  if (!page.is_lower_better || !isNumber(low) || !isNumber(high)) return [low, high].map((number) => formatSigned(page, number)).join(" to ");
  if (high <= 0) return `${page.format(-high)} to ${page.format(-low)} lower`;
  return low >= 0 ? `${page.format(low)} to ${page.format(high)} higher` : `${formatDifference(page, high)} to ${formatDifference(page, low)}`;
};
const isBetter = (page, { difference }) => (page.is_lower_better ? difference < 0 : difference > 0);

function showPairs(section, page) {
  section.append(make("p", { class: "lead" }, page.method));
  const body = make("div", { class: "card" });
  let show = page.pairs.length > MANY_PAIRS ? makeMatrix : makePairList;
  const draw = () => body.replaceChildren(...show(page));
  if (page.styles.length > 2) {
    section.querySelector(".section-head").append(makeChoices("", [[makePairList, "list"], [makeMatrix, "table"]], show, (chosen) => {
      show = chosen;
      draw();
    }));
  }
  section.append(body);
  page.reordered.push(draw);
  draw();
}

/* The better model of each pair first, and its lead over the other on an axis with 0. */
function makePairList(page) {
  const rank = new Map(page.ranking.map((name, place) => [name, place]));
  const pairs = page.pairs.map((pair) => (rank.get(pair.a) < rank.get(pair.b) ? pair : pairBetween(page, pair.b, pair.a)))
    .sort((first, second) => rank.get(first.a) - rank.get(second.a) || rank.get(first.b) - rank.get(second.b));
  const lead = (number) => (page.is_lower_better ? -number : number);
  const ends = pairs.flatMap(({ difference, interval }) => [difference, ...(interval ?? [])].filter(isNumber)).map(lead);
  const [start, end] = [Math.min(0, ...ends), Math.max(0, ...ends)];
  const place = (number) => 6 + ((lead(number) - start) / (end - start || 1)) * 188;
  const rows = pairs.map((pair) => make("tr", { class: pair.is_significant ? "" : "unsure" },
    make("th", { scope: "row" }, make("div", { class: "versus" },
      makeName(page.styleOfName.get(pair.a)), make("span", { class: "against" }, " vs. "), makeName(page.styleOfName.get(pair.b)))),
    make("td", { class: "forest" }, makeLead(pair, place)),
    make("td", { class: "value" }, make("b", {}, formatDifference(page, pair.difference)),
      pair.interval ? make("div", { class: "between" }, formatRange(page, pair.interval)) : null),
    make("td", { class: "p-value", title: `${formatP(pair.p_uncorrected)} before the correction` }, formatP(pair.p)),
    make("td", { class: "significance" }, make("span", { class: pair.is_significant ? "yes" : "no" }, findingOf(pair)))));
  return [make("table", { class: "pair-list" }, make("tbody", {}, ...rows))];
}

const findingOf = (pair) => (pair.not_comparable ? "not comparable" : pair.is_significant ? "significant" : "not significant");

function makeLead({ difference, interval, is_significant: isSignificant }, place) {
  const [y, width, height] = [14, 200, 28];
  return makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: isSignificant ? "lead-plot" : "lead-plot unsure", "aria-hidden": "true" },
    makeSvg("line", { class: "zero", x1: place(0), x2: place(0), y1: 0, y2: height }),
    interval?.every(isNumber) ? makeSvg("line", { class: "range", x1: place(interval[0]), x2: place(interval[1]), y1: y, y2: y }) : null,
    isNumber(difference) ? makeSvg("circle", { class: "point", cx: place(difference), cy: y, r: 4 }) : null);
}

/* Each row minus each column; the sentence below is about the cell under the pointer. */
function makeMatrix(page) {
  const styles = inOrder(page);
  const largest = Math.max(...page.pairs.map(({ difference }) => Math.abs(difference ?? 0))) || 1;
  const sense = page.is_lower_better ? "; where it is negative, the row is lower, which is better" : "";
  const hint = `Each cell is the score of its row minus that of its column${sense}. Point at a cell to read its test.`;
  const sentence = make("p", { class: "pair-sentence on-screen", "aria-live": "polite" }, hint);
  const cell = (row, column) => {
    const pair = row === column ? null : pairBetween(page, row.name, column.name);
    if (!pair) return make("td", { class: "self" }, row === column ? "" : "-");
    const kind = !pair.is_significant ? "unsure" : isBetter(page, pair) ? "better" : "worse";
    const describe = () => { sentence.textContent = formatPair(page, pair); };
    return make("td", {
      class: kind, tabindex: 0, style: `--strength: ${Math.round(14 + 36 * (Math.abs(pair.difference) / largest))}%`,
      "aria-label": formatPair(page, pair), onpointerenter: describe, onfocus: describe, onpointerleave: () => { sentence.textContent = hint; },
    }, pair.is_significant ? formatSigned(page, pair.difference) : "≈");
  };
  const table = make("table", { class: `pair-matrix${styles.length > 5 ? " many" : ""}` },
    make("thead", {}, make("tr", {}, make("td"), ...styles.map((style) => make("th", { scope: "col" }, make("div", {}, makeName(style)))))),
    make("tbody", {}, ...styles.map((row) => make("tr", {}, make("th", { scope: "row" }, makeName(row)), ...styles.map((column) => cell(row, column))))));
  const key = make("div", { class: "matrix-key" },
    ...[["better", "significantly better"], ["worse", "significantly worse"], ["unsure", "≈ not significant"]].map(([kind, words]) =>
      make("span", {}, make("i", { class: kind }), words)));
  return [make("div", { class: "scroll" }, table), key, sentence];
}

function formatPair(page, pair) {
  const range = pair.interval ? ` (${formatRange(page, pair.interval)})` : "";
  const test = `${formatDifference(page, pair.difference)}${range}, ${formatP(pair.p)}, ${formatP(pair.p_uncorrected)} before the correction`;
  if (pair.not_comparable) return `${pair.a} and ${pair.b} are not comparable: ${pair.not_comparable}.`;
  if (!pair.is_significant) return `${pair.a} and ${pair.b} do not differ significantly: ${test}.`;
  return `${pair.a} is significantly ${isBetter(page, pair) ? "better" : "worse"} than ${pair.b}: ${test}.`;
}

/* Time in the unit in which the longest run has a handy number. */
function timeAxis(page) {
  const longest = Math.max(...page.models.flatMap(({ curves }) => curves.flatMap(({ points }) => points.map(({ seconds }) => seconds))).filter(isNumber));
  const [unit, name] = longest > 10800 ? [3600, "hours"] : longest > 300 ? [60, "minutes"] : [1, "seconds"];
  return { kind: "linear", name: `${name} of training`, format: formatNumber, formatPlace: (value) => `${formatNumber(Number(value.toPrecision(3)))} ${name}`, of: ({ seconds }) => seconds / unit };
}

function showCurves(section, page) {
  const axes = {
    seconds: timeAxis(page),
    step: { kind: "linear", name: "steps", format: formatNumber, formatPlace: (value) => `step ${formatNumber(value)}`, of: ({ step }) => step },
    tokens: { kind: "linear", name: "training tokens", format: formatCount, formatPlace: (value) => `${formatCount(value)} tokens`, of: ({ tokens }) => tokens },
  };
  const has = (name) => page.models.some(({ curves }) => curves.some(({ points }) => points.some((point) => isNumber(point[name]))));
  const names = Object.keys(axes).filter(has);
  if (!names.length) return;
  const card = make("div", { class: `card${page.seeds.length > 1 ? " several-seeds" : ""}` },
    page.choice.legend(), make("div", { class: "chart-title" }, "validation loss"));
  const chart = page.choice.addChart(card, {
    axis: axes[names[0]], name: "validation loss", isLogarithmic: true, isLowFirst: true,
    linesOf: ({ index }) => page.models[index].curves.map(({ points }) =>
      points.map((point) => ({ x: chart.axis.of(point), y: point.valid_loss })).filter(({ x }) => isNumber(x)).sort((a, b) => a.x - b.x)),
    format: (points) => {
      const values = points.map(({ y }) => y).sort((a, b) => a - b);
      return [...new Set([values[0], values.at(-1)].map((value) => value.toPrecision(3)))].join(" to ");
    },
  });
  const redraw = (change) => {
    Object.assign(chart, change);
    chart.draw();
  };
  section.querySelector(".section-head").append(make("div", { class: "choice-row" },
    makeChoices("Over", names.map((name) => [name, { step: "steps", seconds: "time", tokens: "tokens" }[name]]), names[0], (name) => redraw({ axis: axes[name] })),
    makeChoices("Loss axis", [[false, "linear"], [true, "logarithmic"]], true, (isLogarithmic) => redraw({ isLogarithmic }))));
  section.append(card, make("p", { class: "chart-note" }, page.seeds.length > 1 ? "One line for each seed. " : "",
    make("span", { class: "on-screen" }, "Click a name to hide or show a model; double-click to show only that model.")));
}

const partFormatter = (page) => ([{ y, low, high }]) => (isNumber(low) ? `${page.format(y)}  ${page.format(low)} to ${page.format(high)}` : page.format(y));
const asPoint = (x, { value, interval }) => ({ x, y: value, low: interval?.[0], high: interval?.[1] });

function showLengths(section, page) {
  const keyOf = ({ low, high }) => `${low}:${high}`;
  const ranges = [...new Map(page.models.flatMap((model) => model.by_length).map((part) => [keyOf(part), part])).values()]
    .sort((a, b) => a.low - b.low || a.high - b.high);
  const places = new Map(ranges.map((range, place) => [keyOf(range), place]));
  const ticks = ranges.map(({ low, high }) => (low === high ? String(low) : `${low}–${high}`));
  const card = make("div", { class: "card" }, page.choice.legend(), make("div", { class: "chart-title" }, page.label));
  section.append(card, make("p", { class: "chart-note" }, "Whiskers are 95 % intervals; they are long where a range has few rows."));
  page.choice.addChart(card, {
    axis: { kind: "ranges", name: "length of the source in tokens", ticks, formatPlace: (place) => `${ticks[place]} tokens, ${formatNumber(ranges[place].rows)} rows` },
    name: page.label, isLowFirst: page.is_lower_better, format: partFormatter(page),
    linesOf: ({ index }) => [page.models[index].by_length.map((part) => asPoint(places.get(keyOf(part)), part))],
  });
}

function showSizes(section, page) {
  const name = `training ${page.size_unit}`;
  const title = page.label + (page.is_lower_better ? ", lower is better" : "");
  const card = make("div", { class: "card" }, page.choice.legend(), make("div", { class: "chart-title" }, title));
  section.append(card);
  page.choice.addChart(card, {
    axis: { kind: "logarithmic", name, format: formatCount, formatPlace: (rows) => `${formatNumber(rows)} ${name}` },
    name: page.label, isLowFirst: page.is_lower_better, format: partFormatter(page),
    linesOf: ({ index }) => [page.models[index].by_size.map((part) => asPoint(part.rows, part))],
  });
}

function showOutputs(section, page) {
  const differs = ({ outputs }) => new Set(Object.values(outputs)).size > 1;
  const differing = page.samples.filter(differs);
  const groups = differing.length < page.samples.length ? { differing, all: page.samples } : { all: page.samples };
  showGroups(section, make("div", { class: "outputs" }), groups, groups.differing?.length ? "differing" : "all", OUTPUTS_AT_ONCE, (sample) => makeOutput(sample, page));
}

/* Equal outputs are grouped, right ones first. */
function makeOutput({ source, target, outputs }, page) {
  const written = new Map();
  for (const style of page.styles) {
    const output = outputs[style.name];
    if (typeof output === "string") written.set(output, [...(written.get(output) ?? []), style]);
  }
  const isKnown = typeof target === "string";
  const expected = isKnown && !page.is_text ? target : null; /* A text has many right continuations. */
  const answers = [...written].sort(([a], [b]) => Number(b === target) - Number(a === target));
  return make("article", { class: page.is_text ? "output continued" : "output" },
    make("div", { class: "output-source", dir: "auto" }, source),
    isKnown ? make("div", { class: "output-target", dir: "auto" }, target) : null,
    make("ul", {}, ...answers.map(([output, styles]) => makeAnswer(output, styles, expected))));
}

function makeAnswer(output, styles, target) {
  const isRight = output === target;
  const kind = target === null ? "" : isRight ? "right" : "wrong";
  return make("li", { class: kind },
    make("span", { class: "sign", "aria-label": kind }, { right: "✓", wrong: "✗" }[kind] ?? ""),
    make("span", { class: "text", dir: "auto" }, ...makeRuns(target === null || isRight ? [[output, true]] : differences(target, output)[1])),
    make("span", { class: "model-names" }, ...styles.map(makeName)));
}

function showSetup(section, page) {
  section.append(makeTiles([
    ["data", page.data], ["task", page.task], ["metric", page.label], [page.unit, formatNumber(page.rows)], ["budget", page.budget],
    ["seeds", page.seeds.join(", ")], ["hardware", page.hardware], ["regard", page.version],
  ]));
  const signatures = signaturesOf(page);
  if (signatures.length) {
    section.append(make("details", { class: "folded" }, make("summary", {}, "Signatures: everything that the scores depend on"),
      ...signatures.map(([line, names]) => make("div", {}, makeSignature(line),
        names.length < page.models.length ? make("div", { class: "signed" }, names.join(", ")) : null))));
  }
  const runs = page.models.filter((model) => model.runs?.length);
  if (runs.length) {
    section.append(make("details", { class: "folded" }, make("summary", {}, "Run folders"),
      make("dl", { class: "folders" }, ...runs.flatMap((model) => [make("dt", {}, model.name), make("dd", {}, ...model.runs.map((run) => make("code", {}, run)))]))));
  }
}

/* Each line once, with the models that share it. */
function signaturesOf(page) {
  const lines = new Map();
  for (const metric of Object.keys(page.metric_labels)) {
    for (const model of page.models) {
      const signature = scoreOf(model, page, metric)?.signature;
      if (signature) lines.set(`${metric}|${signature}`, [...(lines.get(`${metric}|${signature}`) ?? []), model.name]);
    }
  }
  return [...lines];
}
