/* The report of a run: each section is drawn from its part of the data, and left out where that is empty. */
"use strict";

const SAMPLES_AT_ONCE = 24;
const MOST_TILES = 6;
/* A curve of more points than this is smoothed, over a thin line of the logged values. */
const MANY_POINTS = 60;

PAGES.report = (root, data) => {
  if (data.warning) root.append(make("p", { class: "warning" }, `${data.warning[0].toUpperCase()}${data.warning.slice(1)}.`));
  if (data.baseline && !data.baseline.is_beaten) root.append(makeWarning(data.baseline));
  if (data.scores.length) root.append(makeScores(data.scores, data.baseline));
  if (data.summary.length) root.append(makeTiles(data.summary));
  addSections(root, [
    ["notes", "Choices", data.notes.length, (section, { notes }) => section.append(makeNotes(notes))],
    ["next", "Next", data.commands?.length, showCommands],
    ["learning", "Learning curves", data.curves.length, showLearning],
    ...(data.sections ?? []).map((each) => [each.title.toLowerCase().replace(/\W+/g, "-"), each.title, true, (section) => showTaskSection(section, each)]),
    ["confusion", "Confusion matrix", data.confusion, showConfusion],
    ["labels", "Scores by label", data.labels?.length, showLabels],
    ["samples", "Samples", data.samples.length, showSamples],
    ["attention", "Attention", data.attention.length, showAttention],
    ["certificate", "Certificate", data.certificate, showCertificate],
    ["settings", "Settings", data.settings.trim().length, showSettings],
  ], data);
};

/* What can be done next. */
const showCommands = (section, { commands }) => section.append(make("dl", { class: "commands" },
  ...commands.flatMap(([command, purpose]) => [make("dt", {}, make("code", {}, command)), make("dd", {}, purpose)])));

/* What a task shows: a plot, drawings, images, texts with shaded words, a table. */
function showTaskSection(section, { lead, figure, description, drawings = [], images, texts, table, note }) {
  const above = lead || (texts.length ? HIGHLIGHTS_LEAD : "");
  if (above) section.append(make("p", { class: "lead" }, above));
  if (figure) section.append(makeDrawing(figure, description));
  section.append(...drawings.map(({ caption, svg }) => make("figure", { class: "drawing" }, make("figcaption", {}, caption), makeDrawing(svg, caption))));
  if (images.length) section.append(make("div", { class: "drawn" }, ...images.map(makeDrawn)));
  if (texts.length) showHighlights(section, texts);
  if (table.rows.length) section.append(makeTable(table));
  if (note) section.append(make("p", { class: "between" }, note));
}

/* An image, not part of the page: whatever the names in a plot are, they are only drawn. */
const makeDrawing = (svg, description) => make("img", { class: "figure", src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`, alt: description });

/* Each generated image is larger than the training images that differ least from it: copies would be seen at once. */
function makeDrawn(image) {
  const draw = ({ png, label, distance }, name) => make("figure", {},
    make("img", { src: `data:image/png;base64,${png}`, alt: `${name}${label ? ` of class ${label}` : ""}` }),
    make("figcaption", {}, [label, isNumber(distance) ? distance.toFixed(1) : ""].filter(Boolean).join(" \u00b7 ") || name));
  return make("div", { class: "drawn-image" }, draw(image, "drawn"),
    image.nearest.length ? make("div", { class: "nearest" }, ...image.nearest.map((other) => draw(other, "training image"))) : null);
}

/* Where the model is not better than its baseline, that comes first, with what may help. */
const makeWarning = ({ sentence, advice }) => make("div", { class: "not-better", role: "note" }, make("p", {}, sentence),
  advice.length ? make("p", {}, "Most likely to help: ", advice.join("; "), ".") : null);

/* The baseline's score on the same rows, below the model's. */
const makeBaseline = ({ name, score, sentence, is_beaten: isBeaten }) => make("div", { class: "baseline" },
  make("div", { class: "score" }, make("div", { class: "name" }, `Baseline: ${name}`),
    make("div", { class: "value" }, scoreFormatter(score)(score.value)),
    ...(hasInterval(score) ? [intervalBar(score, 160, false), make("div", { class: "between" }, formatInterval(score))] : [])),
  isBeaten ? make("p", { class: "between" }, sentence) : null);

/* The first score large, with that of the baseline, a few others beside it; many others as a table. */
function makeScores([main, ...others], baseline) {
  const isTable = others.length > MOST_TILES;
  const rows = others.map((score) => make("div", {}, make("dt", {}, score.label),
    make("dd", {}, scoreFormatter(score)(score.value)), make("dd", { class: "between" }, hasInterval(score) ? formatInterval(score) : "")));
  const beside = isTable ? make("dl", { class: "score-table" }, ...rows)
    : make("div", { class: "other-scores" }, ...others.map((score) => makeScore(score, false)));
  const block = make("div", { class: `scores${others.length ? "" : " single"}` }, 
    make("div", {}, makeScore(main, true), baseline ? makeBaseline(baseline) : null), others.length ? beside : null);
  const signed = [main, ...others].filter(({ signature }) => signature);
  return make("div", {}, block, signed.length ? make("details", { class: "folded" }, make("summary", {}, "Signatures: everything that the scores depend on"),
    ...signed.map((score) => makeSignature(`${score.name}|${score.signature} = ${scoreFormatter(score)(score.value)}`))) : null);
}

/* The interval of a bootstrap in which all resamples agree has no width and carries no information. */
const hasInterval = ({ value, interval }) => isNumber(value) && interval?.every(isNumber) && interval[1] > interval[0];
const formatInterval = (score) => score.interval.map(scoreFormatter(score)).join(" to ");

const makeScore = (score, isMain) => make("div", { class: `score${isMain ? " main" : ""}` },
  make("div", { class: "name" }, score.label),
  make("div", { class: "value" }, scoreFormatter(score)(score.value)),
  ...(hasInterval(score) ? [intervalBar(score, isMain ? 300 : 160, isMain),
    make("div", { class: "between" }, `${isMain ? "95 % interval " : ""}${formatInterval(score)}`)] : []));

function showCertificate(section, { certificate: { findings, tables, footnote } }) {
  section.append(makeNotes(findings), ...tables.map(makeTable), make("p", { class: "ledger" }, footnote));
}

/* A row for each true label, a column for each predicted label; shades are shares of the row. */
function showConfusion(section, { confusion: { labels, counts } }) {
  const totals = counts.map((row) => row.reduce((sum, count) => sum + count, 0));
  const cell = (count, row, column) => {
    const share = totals[row] ? count / totals[row] : 0;
    const color = row === column ? "right" : "wrong";
    return make("td", { style: `background: color-mix(in srgb, var(--${color}) ${Math.round(70 * share)}%, transparent)`,
      title: `${labels[row]} predicted as ${labels[column]}: ${count} of ${totals[row]}` }, count ? String(count) : "");
  };
  section.append(make("div", { class: "confusion" }, make("table", {},
    make("thead", {}, make("tr", {}, make("th", { class: "corner" }, "true ↓ predicted →"),
      ...labels.map((label) => make("th", { scope: "col" }, label)), make("th", { class: "total" }, "rows"))),
    make("tbody", {}, ...counts.map((row, number) => make("tr", {}, make("th", { scope: "row" }, labels[number]),
      ...row.map((count, column) => cell(count, number, column)), make("td", { class: "total" }, String(totals[number]))))))));
}

/* A label that occurs rarely has scores of little precision: its support is beside them. */
const showLabels = (section, { labels }) => section.append(
  ...labels.map(({ columns, rows }) => makeTable({ columns, rows, left: [0], note: LABELS_NOTE })));
const LABELS_NOTE = "precision: the share of a label's predictions that are right; recall: the share of its occurrences that are found; support: how often it occurs";

const showAttention = (section, { attention }) => {
  section.append(make("p", { class: "lead" }, leadOf(attention)));
  viewAttention(section, attention);
};

/* The mean over a window around each point, which narrows towards the ends. */
function smoothed(points) {
  const reach = Math.ceil(points.length / 60);
  return points.map(({ x }, i) => {
    const side = Math.min(reach, i, points.length - 1 - i);
    const window = points.slice(i - side, i + side + 1);
    return { x, y: window.reduce((sum, { y }) => sum + y, 0) / window.length };
  });
}

const makeKey = (words, color) => make("span", {}, make("i", { style: `border-color: var(--${color})` }), words);

/* The ring is around the weights that were kept. */
function showLearning(section, { curves, kept_step: keptStep, score_label: scoreLabel, score_digits: scoreDigits }) {
  const pointsOf = (name) => curves.filter((line) => isNumber(line[name])).map((line) => ({ x: line.step, y: line[name] }));
  const [training, validation, scores, rates] = ["loss", "valid_loss", "valid_score", "learning_rate"].map(pointsOf);
  const isNoisy = training.length > MANY_POINTS;
  const axis = { kind: "linear", name: "steps", end: curves.at(-1).step, format: formatNumber, formatPlace: (step) => `step ${formatNumber(step)}` };
  const card = make("div", { class: "card" });
  section.append(card);
  const charts = [];
  if (training.length || validation.length) {
    const values = [...training, ...validation].map(({ y }) => y).filter((y) => y > 0);
    const isLogarithmic = values.reduce((a, b) => Math.max(a, b), 0) > 30 * values.reduce((a, b) => Math.min(a, b), Infinity);
    const legend = make("div", { class: "chart-legend" },
      training.length ? makeKey(isNoisy ? "training loss, smoothed; thin: as logged" : "training loss", "accent") : null);
    if (validation.length) {
      const { x: step, y: lowest } = lowestOf(validation);
      legend.append(makeKey(`validation loss, lowest ${formatNumber(lowest)} at step ${formatNumber(step)}`, "second"));
    }
    card.append(legend);
    const chart = new LineChart(card, {
      height: 318, axis, name: "training loss and validation loss", isLogarithmic, startsAtZero: true, describe: (step) => describeStep(curves, step),
      lines: () => [
        { name: "raw", points: isNoisy ? training : [] },
        { name: "loss", points: isNoisy ? smoothed(training) : training, marks: training.length > 1 ? "none" : "all" },
        { name: "valid_loss", points: validation, marks: validation.length <= 40 ? "all" : "none", ringAt: keptStep ?? (validation.length ? lowestOf(validation).x : null) },
      ],
    });
    charts.push(chart);
    section.querySelector(".section-head").append(makeChoices("Loss axis", [[false, "linear"], [true, "logarithmic"]], isLogarithmic, (choice) => {
      chart.isLogarithmic = choice;
      chart.draw();
    }));
  }
  if (scores.length) {
    const kept = scores.find(({ x }) => x === keptStep);
    const words = `${scoreLabel} on validation rows${kept ? `, kept: ${scoreFormatter({ value: kept.y, digits: scoreDigits })(kept.y)} at step ${formatNumber(kept.x)}` : ""}`;
    card.append(make("div", { class: "chart-legend", style: "margin: 18px 0 4px" }, makeKey(words, "second")));
    charts.push(new LineChart(card, {
      height: 150, numTicks: 3, axis, name: scoreLabel, hasAxis: false, describe: charts.length ? null : (step) => describeStep(curves, step),
      lines: () => [{ name: "valid_score", points: scores, marks: scores.length <= 40 ? "all" : "none", ringAt: keptStep }],
    }));
  }
  if (rates.length > 1) {
    card.append(make("div", { class: "chart-legend", style: "margin: 18px 0 4px" }, makeKey("learning rate", "muted")));
    charts.push(new LineChart(card, {
      height: 76, numTicks: 2, axis, name: "learning rate", startsAtZero: true, hasAxis: false, lines: () => [{ name: "learning_rate", points: rates }],
      describe: charts.length ? null : (step) => describeStep(curves, step),
    }));
  }
  charts.forEach((chart) => { chart.linked = charts.filter((other) => other !== chart); });
}

/* The numbers logged at a step and, where it has none, of the validation nearest to it. */
function describeStep(curves, step) {
  const line = curves.find((entry) => entry.step === step) ?? { step };
  const isValid = (name) => name.startsWith("valid");
  const rows = (entry, test) => Object.entries(entry)
    .filter(([name, value]) => name !== "step" && (value === null || isNumber(value)) && test(name))
    .map(([name, value]) => [name.replaceAll("_", " "), formatNumber(value)]);
  const nearest = curves.filter((entry) => Object.keys(entry).some(isValid))
    .reduce((a, b) => (a && Math.abs(a.step - step) <= Math.abs(b.step - step) ? a : b), null);
  return [
    ...rows(line, (name) => !isValid(name)),
    ...(nearest && nearest.step !== step ? [[`validation at step ${formatNumber(nearest.step)}`, null]] : []),
    ...(nearest ? rows(nearest, isValid) : []),
  ];
}

function showSamples(section, { samples, sample_names: names }) {
  const groups = {
    wrong: samples.filter((sample) => sample.right === false),
    right: samples.filter((sample) => sample.right === true),
    all: samples,
  };
  const kinds = kindsOfTags(samples.flatMap(({ kind, target, prediction }) => (kind === "tags" ? `${target ?? ""} ${prediction}`.trim().split(/\s+/) : [])));
  const first = groups.wrong.length ? "wrong" : groups.right.length ? "right" : "all";
  showGroups(section, make("div", { class: "samples" }), groups, first, SAMPLES_AT_ONCE, (sample) => makeSample(sample, kinds, names));
}

const TOML = /("(?:\\.|[^"\\])*"|'[^']*')|(#.*$)|(^\s*\[.*\]\s*$)|(^\s*[\w.-]+(?=\s*=))|(\b(?:true|false)\b|[+-]?\b\d[\w.:+-]*)/g;
const TOML_NAMES = ["toml-text", "toml-comment", "toml-table", "toml-key", "toml-value"];

function showSettings(section, { settings }) {
  const lines = settings.trimEnd().split("\n").flatMap((line, i) => [i ? "\n" : "", ...highlighted(line)]);
  const code = make("pre", {}, ...lines);
  section.append(make("details", { class: "settings" },
    make("summary", {}, "run.toml: every setting of this run"),
    make("div", { class: "code" }, copyButton(code), code)));
}

function highlighted(line) {
  const pieces = [];
  let end = 0;
  for (const match of line.matchAll(TOML)) {
    pieces.push(line.slice(end, match.index), make("span", { class: TOML_NAMES[match.slice(1).findIndex(Boolean)] }, match[0]));
    end = match.index + match[0].length;
  }
  return [...pieces, line.slice(end)];
}
