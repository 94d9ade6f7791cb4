/* The comparison: scores on one axis, pairs, curves, lengths, sizes and samples, each where there is something to show. */
"use strict";

const MANY_PAIRS = 10;
const SAMPLES_SHOWN = 20;

function showComparison(root, data) {
  const looks = data.models.map((model, index) => lookOf(model, index, data.palette));
  const page = {
    ...data,
    looks,
    lookOfName: new Map(looks.map((look) => [look.name, look])),
    choice: new ModelChoice(looks),
    order: "given",
    reordered: [],
    say: (number) => (isNumber(number) ? number.toFixed(data.digits) : "-"),
  };
  const sections = [
    ["scores", "Scores", true, showStandings],
    ["pairs", "Which differences are real", data.pairs.length, showPairs],
    ["learning", "Learning", data.models.some((model) => model.curves.some(({ points }) => points.length)), showCurves],
    ["lengths", "By length", data.models.some((model) => model.by_length.length), showLengths],
    ["sizes", `By training ${data.size_unit}`, data.models.some((model) => model.by_size.length), showSizes],
    ["samples", data.is_text ? "How they go on" : "What they wrote", data.samples.length, showOutputs],
    ["notes", "Notes", data.notes.length, showNotes],
    ["settings", "How it was measured", true, showCircumstances],
  ].filter(([, , isThere]) => isThere);
  root.querySelector("header").append(
    make("p", { class: "lead" }, data.lead),
    make("p", { class: "verdict" }, data.verdict),
    make("nav", { class: "contents" }, ...sections.map(([name, words]) => make("a", { href: `#${name}` }, words))));
  for (const [name, words, , show] of sections) {
    const section = make("section", { id: name }, make("div", { class: "section-head" }, make("h2", {}, words)));
    root.append(section);
    show(section, page);
  }
  openForPrint(root);
  onColorsChange(() => {}); /* The style sheet does the rest. */
}

/* The models in the order that was chosen. */
function inOrder(page) {
  if (page.order === "given") return page.looks;
  return page.ranking.map((name) => page.lookOfName.get(name));
}

function addOrderChoice(section, page) {
  const choose = (order) => {
    page.order = order;
    page.reordered.forEach((redraw) => redraw());
  };
  if (page.ranking.some((name, place) => name !== page.looks[place].name)) {
    section.querySelector(".section-head").append(makeChoices("Order", [["given", "as given"], ["best", "best first"]], page.order, choose));
  }
}

const saySeconds = (seconds) => (seconds < 120 ? `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`
  : seconds < 7200 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`);

/* Header, number, and how it is said; a bar below shows it as a part of the largest. */
const COSTS = [
  ["parameters", ({ params }) => params, (count) => sayShort(count, false)],
  ["tokens/s", (model) => model.tokens_per_s, (count) => sayShort(count, false)],
  ["time", ({ seconds }) => seconds, saySeconds],
  ["memory", (model) => model.memory_mib, (size) => (size < 1024 ? `${size.toFixed(0)} MiB` : `${(size / 1024).toPrecision(3)} GiB`)],
];

/* One row for each model: its score on the axis that all share, and what it cost. */
function showStandings(section, page) {
  const metrics = Object.keys(page.metric_names);
  const costs = COSTS.filter(([, get]) => page.models.some((model) => isNumber(get(model))));
  const table = make("table", { class: "standings" });
  let metric = page.metric;
  const draw = () => {
    drawStandings(table, page, metric, costs);
    drawPlots(table, page, metric);
  };
  addOrderChoice(section, page);
  if (metrics.length > 1) {
    section.append(makeChoices("Score", metrics.map((name) => [name, page.metric_names[name]]), metric, (name) => {
      metric = name;
      draw();
    }));
  }
  section.append(make("div", { class: "card standings-card" }, table),
    make("p", { class: "chart-note" }, page.seeds.length > 1
      ? `Bars are 95 % intervals, over other ${page.unit} of this kind and other seeds; the small dots are the ${page.seeds.length} seeds.`
      : `Bars are 95 % intervals, over other ${page.unit} of this kind. There is one seed: what another start would bring is not known.`));
  page.reordered.push(draw);
  draw();
  onWidthChange(table, () => drawPlots(table, page, metric));
}

const scoreOf = (model, page, metric) => (metric === page.metric ? model.score : model.scores[metric]);

function drawStandings(table, page, metric, costs) {
  const say = metric === page.metric ? page.say
    : scoreWriter(page.models.map((model) => model.scores[metric]).find((score) => isNumber(score?.value)) ?? { value: 0 });
  const best = Object.fromEntries(costs.map(([words, get]) => [words, Math.max(...page.models.map(get).filter(isNumber))]));
  const rows = inOrder(page).map((look) => {
    const model = page.models[look.index];
    const score = scoreOf(model, page, metric);
    return make("tr", { class: "tinted", style: look.tint },
      make("th", { scope: "row" }, make("div", { class: "title-line" }, makeName(look), showBadge(page, look.name)),
        model.description ? make("div", { class: "description" }, model.description) : null),
      make("td", { class: "plot", "data-model": look.index }),
      make("td", { class: "value" }, make("b", {}, say(score?.value)),
        score?.interval ? make("div", { class: "between" }, score.interval.map(say).join(" to ")) : null),
      ...costs.map(([words, get, write]) => make("td", { class: "cost", "data-label": words },
        make("span", {}, isNumber(get(model)) ? write(get(model)) : "-"),
        make("i", { style: `width: ${isNumber(get(model)) ? Math.max(2, (get(model) / best[words]) * 100) : 0}%` }))));
  });
  table.replaceChildren(
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "model"), make("th", { class: "plot axis", "aria-label": "interval" }),
      make("th", { scope: "col", class: "value" }, page.metric_names[metric],
        page.is_lower_better ? make("div", { class: "better-way" }, "lower is better") : null),
      ...costs.map(([words]) => make("th", { scope: "col", class: "cost" }, words)))),
    make("tbody", {}, ...rows));
}

function showBadge({ leaders, ranking }, name) {
  if (!leaders.includes(name)) return null;
  const hint = name === ranking[0] ? "scores best" : `cannot be told apart from ${ranking[0]}, which scores best`;
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
    ...ticks.map((tick) => makeSvg("text", { x: place(tick), y: 13, "text-anchor": "middle" }, sayNumber(tick)))));
  cells.forEach((cell, row) => {
    const look = page.looks[Number(cell.dataset.model)];
    const model = page.models[look.index];
    const seedScores = isMain && model.seed_scores.length > 1 ? model.seed_scores : [];
    cell.replaceChildren(drawPlot(look, scoreOf(model, page, metric), seedScores, { width, height: heights[row], place, ticks }));
  });
}

function drawPlot(look, score, seedScores, { width, height, place, ticks }) {
  const y = height / 2 - (seedScores.length ? 7 : 0);
  const svg = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${look.name}: ${sayNumber(score?.value)}` },
    ...ticks.map((tick) => makeSvg("line", { class: "grid", x1: place(tick), x2: place(tick), y1: 0, y2: height })));
  if (score?.interval?.every(isNumber)) {
    const [low, high] = score.interval.map(place);
    svg.append(makeSvg("line", { class: "range", x1: low, x2: Math.max(high, low + 0.1), y1: y, y2: y }));
  }
  if (isNumber(score?.value)) svg.append(makeMark(look, place(score.value), y, 5));
  svg.append(...seedScores.filter(isNumber).map((value) =>
    makeSvg("circle", { class: "seed", cx: place(value), cy: y + 16, r: 2.6 }, makeSvg("title", {}, `one seed: ${sayNumber(value)}`))));
  return svg;
}

/* Each pair seen from `a`. */
function pairBetween(page, a, b) {
  const found = page.pairs.find((pair) => (pair.a === a && pair.b === b) || (pair.a === b && pair.b === a));
  if (!found || found.a === a) return found;
  return { ...found, a, b, difference: -found.difference, interval: found.interval?.map((end) => -end).reverse() };
}

const sayChance = (p) => (!isNumber(p) ? "-" : p < 0.001 ? "<\u20090.001" : p.toFixed(3));
const saySigned = (page, number) => {
  const size = isNumber(number) ? page.say(Math.abs(number)) : "-";
  return Number(size) > 0 ? `${number < 0 ? "\u2212" : "+"}${size}` : size;
};
/* Where lower is better, in words: a sign could be taken for the wrong one. */
const sayDifference = (page, number) => {
  const signed = saySigned(page, number);
  return page.is_lower_better ? signed.replace(/^\u2212(.*)/, "$1 lower").replace(/^\+(.*)/, "$1 higher") : signed;
};
const sayRange = (page, [low, high]) => {
  if (!page.is_lower_better || !isNumber(low) || !isNumber(high)) return [low, high].map((number) => saySigned(page, number)).join(" to ");
  if (high <= 0) return `${page.say(-high)} to ${page.say(-low)} lower`;
  return low >= 0 ? `${page.say(low)} to ${page.say(high)} higher` : `${sayDifference(page, high)} to ${sayDifference(page, low)}`;
};
const isBetter = (page, { difference }) => (page.is_lower_better ? difference < 0 : difference > 0);

function showPairs(section, page) {
  section.append(make("p", { class: "lead" }, page.explanation));
  const body = make("div", { class: "card" });
  let show = page.pairs.length > MANY_PAIRS ? drawMatrix : drawPairList;
  const draw = () => body.replaceChildren(...show(page));
  if (page.looks.length > 2) {
    section.querySelector(".section-head").append(makeChoices("", [[drawPairList, "list"], [drawMatrix, "table"]], show, (chosen) => {
      show = chosen;
      draw();
    }));
  }
  section.append(body);
  page.reordered.push(draw);
  draw();
}

/* The better model of each pair first, its lead over the other on an axis with nothing in the middle of it. */
function drawPairList(page) {
  const rank = new Map(page.ranking.map((name, place) => [name, place]));
  const pairs = page.pairs.map((pair) => (rank.get(pair.a) < rank.get(pair.b) ? pair : pairBetween(page, pair.b, pair.a)))
    .sort((first, second) => rank.get(first.a) - rank.get(second.a) || rank.get(first.b) - rank.get(second.b));
  const lead = (number) => (page.is_lower_better ? -number : number);
  const ends = pairs.flatMap(({ difference, interval }) => [difference, ...(interval ?? [])].filter(isNumber)).map(lead);
  const [start, end] = [Math.min(0, ...ends), Math.max(0, ...ends)];
  const place = (number) => 6 + ((lead(number) - start) / (end - start || 1)) * 188;
  const rows = pairs.map((pair) => make("tr", { class: pair.is_real ? "" : "unsure" },
    make("th", { scope: "row" }, make("div", { class: "versus" },
      makeName(page.lookOfName.get(pair.a)), make("span", { class: "against" }, " against "), makeName(page.lookOfName.get(pair.b)))),
    make("td", { class: "forest" }, drawLead(pair, place)),
    make("td", { class: "value" }, make("b", {}, sayDifference(page, pair.difference)),
      pair.interval ? make("div", { class: "between" }, sayRange(page, pair.interval)) : null),
    make("td", { class: "chance", title: `${sayChance(pair.p_uncorrected)} before the correction` }, `p ${isNumber(pair.p) && pair.p < 0.001 ? "" : "= "}${sayChance(pair.p)}`),
    make("td", { class: "words" }, make("span", { class: pair.is_real ? "real" : "chance-only" }, pair.is_real ? "real" : "cannot be told apart"))));
  return [make("table", { class: "pair-list" }, make("tbody", {}, ...rows))];
}

function drawLead({ difference, interval, is_real: isReal }, place) {
  const [y, width, height] = [14, 200, 28];
  return makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: isReal ? "lead-plot" : "lead-plot unsure", "aria-hidden": "true" },
    makeSvg("line", { class: "zero", x1: place(0), x2: place(0), y1: 0, y2: height }),
    interval?.every(isNumber) ? makeSvg("line", { class: "range", x1: place(interval[0]), x2: place(interval[1]), y1: y, y2: y }) : null,
    isNumber(difference) ? makeSvg("circle", { class: "point", cx: place(difference), cy: y, r: 4 }) : null);
}

/* Each row against each column; the sentence below speaks of the cell pointed at. */
function drawMatrix(page) {
  const looks = inOrder(page);
  const largest = Math.max(...page.pairs.map(({ difference }) => Math.abs(difference ?? 0))) || 1;
  const sentence = make("p", { class: "pair-sentence on-screen", "aria-live": "polite" });
  const sense = page.is_lower_better ? ": below zero the row is lower, which is better" : "";
  const silent = `Each cell is the score of its row less that of its column${sense}. Point at one to read its test.`;
  sentence.textContent = silent;
  const cell = (row, column) => {
    const pair = row === column ? null : pairBetween(page, row.name, column.name);
    if (!pair) return make("td", { class: "self" }, row === column ? "" : "-");
    const kind = !pair.is_real ? "unsure" : isBetter(page, pair) ? "better" : "worse";
    const tell = () => { sentence.textContent = sayPair(page, pair); };
    return make("td", {
      class: kind, tabindex: 0, style: `--strength: ${Math.round(14 + 36 * (Math.abs(pair.difference) / largest))}%`,
      "aria-label": sayPair(page, pair), onpointerenter: tell, onfocus: tell, onpointerleave: () => { sentence.textContent = silent; },
    }, pair.is_real ? saySigned(page, pair.difference) : "≈");
  };
  const table = make("table", { class: `pair-matrix${looks.length > 5 ? " many" : ""}` },
    make("thead", {}, make("tr", {}, make("td"), ...looks.map((look) => make("th", { scope: "col" }, make("div", {}, makeName(look)))))),
    make("tbody", {}, ...looks.map((row) => make("tr", {}, make("th", { scope: "row" }, makeName(row)), ...looks.map((column) => cell(row, column))))));
  const key = make("div", { class: "matrix-key" },
    ...[["better", "really better"], ["worse", "really worse"], ["unsure", "≈ cannot be told apart"]].map(([kind, words]) =>
      make("span", {}, make("i", { class: kind }), words)));
  return [make("div", { class: "scroll" }, table), key, sentence];
}

function sayPair(page, pair) {
  const range = pair.interval ? ` (${sayRange(page, pair.interval)})` : "";
  const chances = `p ${isNumber(pair.p) && pair.p < 0.001 ? "" : "= "}${sayChance(pair.p)}, ${sayChance(pair.p_uncorrected)} before the correction`;
  if (!pair.is_real) return `${pair.a} and ${pair.b} cannot be told apart: ${sayDifference(page, pair.difference)}${range}, ${chances}.`;
  return `${pair.a} is really ${isBetter(page, pair) ? "better" : "worse"} than ${pair.b}: ${sayDifference(page, pair.difference)}${range}, ${chances}.`;
}

/* Seconds are counted in the unit in which the longest run has a handy number of them. */
function timeAxis(page) {
  const longest = Math.max(...page.models.flatMap(({ curves }) => curves.flatMap(({ points }) => points.map(({ seconds }) => seconds))).filter(isNumber));
  const [unit, words] = longest > 10800 ? [3600, "hours"] : longest > 300 ? [60, "minutes"] : [1, "seconds"];
  return { kind: "linear", words: `${words} of training`, say: (value) => sayNumber(value), sayPlace: (value) => saySeconds(value * unit), of: ({ seconds }) => seconds / unit };
}

function showCurves(section, page) {
  const axes = {
    step: { kind: "linear", words: "steps", say: sayNumber, sayPlace: (value) => `step ${sayNumber(value)}`, of: ({ step }) => step },
    seconds: timeAxis(page),
    tokens: { kind: "linear", words: "tokens read", say: sayShort, sayPlace: (value) => `${sayShort(value)} tokens`, of: ({ tokens }) => tokens },
  };
  const has = (name) => page.models.some(({ curves }) => curves.some(({ points }) => points.some((point) => isNumber(point[name]))));
  const names = ["seconds", "step", "tokens"].filter(has);
  if (!names.length) return;
  let axis = axes[names[0]];
  const card = make("div", { class: `card${page.seeds.length > 1 ? " several-seeds" : ""}` });
  card.append(page.choice.legend(), make("div", { class: "chart-title" }, "validation loss"));
  const chart = new ModelChart(card, page.choice, {
    axis, words: "validation loss", isLogarithmic: true, isLowFirst: true,
    lines: (look) => page.models[look.index].curves.map(({ points }) =>
      points.map((point) => ({ x: axis.of(point), y: point.valid_loss })).filter(({ x }) => isNumber(x)).sort((a, b) => a.x - b.x)),
    say: (points) => {
      const values = points.map(({ y }) => y).sort((a, b) => a - b);
      return [...new Set([values[0], values.at(-1)].map((value) => value.toPrecision(3)))].join(" to ");
    },
  });
  const redraw = (change) => {
    change();
    chart.draw();
  };
  section.querySelector(".section-head").append(make("div", { class: "choice-row" },
    makeChoices("Over", names.map((name) => [name, { step: "steps", seconds: "time", tokens: "tokens" }[name]]), names[0], (name) =>
      redraw(() => { axis = chart.axis = axes[name]; })),
    makeChoices("Loss axis", [[false, "linear"], [true, "logarithmic"]], true, (isLogarithmic) => redraw(() => { chart.isLogarithmic = isLogarithmic; }))));
  section.append(card, make("p", { class: "chart-note" }, page.seeds.length > 1 ? "One line for each seed. " : "",
    make("span", { class: "on-screen" }, "Click a name to hide it, double-click to see it alone.")));
}

const sayPart = (page) => ([{ y, low, high }]) => (isNumber(low) ? `${page.say(y)}  ${page.say(low)} to ${page.say(high)}` : page.say(y));
const asPoint = (x, { value, interval }) => ({ x, y: value, low: interval?.[0], high: interval?.[1] });

function showLengths(section, page) {
  const parts = page.models.flatMap((model) => model.by_length);
  const keyOf = ({ low, high }) => `${low}:${high}`;
  const bands = [...new Map(parts.map((part) => [keyOf(part), part])).values()].sort((a, b) => a.low - b.low || a.high - b.high);
  const places = new Map(bands.map((band, place) => [keyOf(band), place]));
  const words = bands.map(({ low, high }) => (low === high ? String(low) : `${low}–${high}`));
  const card = make("div", { class: "card" }, page.choice.legend(), make("div", { class: "chart-title" }, page.metric_names[page.metric]));
  section.append(card, make("p", { class: "chart-note" }, "Whiskers are 95 % intervals; bands with few rows have long ones."));
  new ModelChart(card, page.choice, {
    axis: { kind: "bands", words: "length of the source in tokens", ticks: words, sayPlace: (band) => `${words[band]} tokens, ${sayNumber(bands[band].rows)} rows` },
    words: page.metric_names[page.metric], isLowFirst: page.is_lower_better, say: sayPart(page),
    lines: (look) => [page.models[look.index].by_length.map((part) => asPoint(places.get(keyOf(part)), part))],
  });
}

function showSizes(section, page) {
  const words = `training ${page.size_unit}`;
  const title = page.metric_names[page.metric] + (page.is_lower_better ? ", lower is better" : "");
  const card = make("div", { class: "card" }, page.choice.legend(), make("div", { class: "chart-title" }, title));
  section.append(card);
  new ModelChart(card, page.choice, {
    axis: { kind: "logarithmic", words, say: sayShort, sayPlace: (rows) => `${sayNumber(rows)} ${words}` },
    words: page.metric_names[page.metric], isLowFirst: page.is_lower_better, say: sayPart(page),
    lines: (look) => [page.models[look.index].by_size.map((part) => asPoint(part.rows, part))],
  });
}

/* Outputs that are the same stand together, the right ones first. */
function showOutputs(section, page) {
  const differs = ({ outputs }) => new Set(Object.values(outputs)).size > 1;
  const groups = { differ: page.samples.filter(differs), all: page.samples };
  const list = make("div", { class: "outputs" });
  const more = make("button", { type: "button", class: "quiet-button more" });
  const show = (name, count) => {
    list.replaceChildren(...groups[name].slice(0, count).map((sample) => showOutput(sample, page)));
    more.hidden = groups[name].length <= count;
    more.textContent = `Show all ${groups[name].length}`;
    more.onclick = () => show(name, Infinity);
  };
  const first = groups.differ.length ? "differ" : "all";
  if (groups.differ.length && groups.differ.length < groups.all.length) {
    section.querySelector(".section-head").append(makeChoices("",
      [["differ", `where they differ ${groups.differ.length}`], ["all", `all ${groups.all.length}`]], first, (name) => show(name, SAMPLES_SHOWN)));
  }
  section.append(list, more);
  show(first, SAMPLES_SHOWN);
}

function showOutput({ source, target, outputs }, page) {
  const written = new Map();
  for (const look of page.looks) {
    const output = outputs[look.name];
    if (typeof output === "string") written.set(output, [...(written.get(output) ?? []), look]);
  }
  const isKnown = typeof target === "string";
  const isRightKnown = isKnown && !page.is_text; /* A text may go on in many ways. */
  const answers = [...written].sort(([a], [b]) => Number(b === target) - Number(a === target));
  return make("article", { class: page.is_text ? "output continued" : "output" },
    make("div", { class: "output-source", dir: "auto" }, source),
    isKnown ? make("div", { class: "output-target", dir: "auto" }, target) : null,
    make("ul", {}, ...answers.map(([output, looks]) => showAnswer(output, looks, isRightKnown ? target : null))));
}

function showAnswer(output, looks, target) {
  const isRight = output === target;
  const runs = target === null || isRight ? [[output, true]] : differences(target, output)[1];
  const kind = target === null ? "" : isRight ? "right" : "wrong";
  return make("li", { class: kind },
    make("span", { class: "sign", "aria-label": kind }, { right: "✓", wrong: "✗" }[kind] ?? ""),
    make("span", { class: "text", dir: "auto" },
      ...(output ? runs.map(([run, isSame]) => (isSame ? run : make("mark", {}, run))) : [make("span", { class: "nothing" }, "nothing")])),
    make("span", { class: "who" }, ...looks.map(makeName)));
}

function showCircumstances(section, page) {
  const facts = [
    ["data", page.data], ["task", page.task], ["score", page.metric_names[page.metric]], [page.unit, sayNumber(page.rows)], ["budget", page.budget],
    ["seeds", page.seeds.join(", ")], ["hardware", page.hardware], ["regard", page.version],
  ];
  section.append(make("dl", { class: "tiles" }, ...facts.map(([label, text]) => make("div", {}, make("dt", {}, label), make("dd", {}, text)))));
  const signatures = signaturesOf(page);
  if (signatures.length) {
    section.append(make("details", { class: "signatures" }, make("summary", {}, "Signatures: all that the scores depend on"),
      ...signatures.map(([line, names]) => {
        const code = make("code", {}, line);
        return make("div", {}, make("div", { class: "signature" }, code, copyButton(code)),
          names.length < page.models.length ? make("div", { class: "signed" }, names.join(", ")) : null);
      })));
  }
  const runs = page.models.filter((model) => model.runs?.length);
  if (runs.length) {
    section.append(make("details", { class: "signatures" }, make("summary", {}, "Folders of the runs"),
      make("dl", { class: "folders" }, ...runs.flatMap((model) => [make("dt", {}, model.name), make("dd", {}, ...model.runs.map((run) => make("code", {}, run)))]))));
  }
}

/* Each line once, with the models that share it. */
function signaturesOf(page) {
  const lines = new Map();
  for (const metric of Object.keys(page.metric_names)) {
    for (const model of page.models) {
      const signature = scoreOf(model, page, metric)?.signature;
      if (signature) lines.set(`${metric}|${signature}`, [...(lines.get(`${metric}|${signature}`) ?? []), model.name]);
    }
  }
  return [...lines];
}
