/* The report: each section is made from its part of the data, and left out where that is empty. */
"use strict";

const SAMPLES_AT_ONCE = 24;

function showReport(root, data) {
  const sections = [
    ["notes", "Notes", data.notes.length, showNotes],
    ["certificate", "Can this number be believed?", data.certificate, showCertificate],
    ["learning", "Learning", data.curves.length, showLearning],
    ["confusion", "What was taken for what", data.confusion, showConfusion],
    ["words", "Words that mattered", data.highlights.length, showWordsThatMattered],
    ["samples", "Samples", data.samples.length, showSamples],
    ["attention", "Attention", data.attention.length, showAttention],
    ["settings", "Settings", data.settings.trim().length, showSettings],
  ].filter(([, , isThere]) => isThere);
  if (sections.length > 1) {
    root.querySelector("header").append(make("nav", { class: "contents" },
      ...sections.map(([name, words]) => make("a", { href: `#${name}` }, words))));
  }
  if (data.scores.length) root.append(showScores(data.scores));
  if (data.summary.length) root.append(showSummary(data.summary));
  for (const [name, words, , show] of sections) {
    const section = make("section", { id: name },
      make("div", { class: "section-head" }, make("h2", {}, words)));
    root.append(section);
    show(section, data);
  }
  openForPrint(root);
}

/* What is folded on the screen is unfolded on paper. */
function openForPrint(root) {
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...root.querySelectorAll("details:not([open])")];
    folded.forEach((details) => { details.open = true; });
  });
  window.addEventListener("afterprint", () => folded.forEach((details) => { details.open = false; }));
}

/* Copies the text of an element; where the browser forbids that, selects it for the reader to copy. */
function copyButton(element) {
  const button = make("button", { type: "button", class: "quiet-button copy" }, "Copy");
  const say = (words) => {
    button.textContent = words;
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  const select = () => {
    getSelection().selectAllChildren(element);
    say("Selected");
  };
  button.addEventListener("click", () => {
    if (navigator.clipboard) navigator.clipboard.writeText(element.textContent).then(() => say("Copied"), select);
    else select();
  });
  return button;
}

/* Three places below 10 and two from there on, and more where the interval is finer than that. */
function scoreWriter({ value, interval }) {
  const usual = Math.abs(value) < 10 ? 3 : 2;
  const width = interval?.every(isNumber) ? interval[1] - interval[0] : 0;
  const places = width > 0 ? Math.min(6, Math.max(usual, Math.ceil(-Math.log10(width)) + 1)) : usual;
  return (number) => (isNumber(number) ? number.toFixed(places) : "not finite");
}

function showScores(scores) {
  const [main, ...others] = scores.map((score, i) => showScore(score, i === 0));
  const block = make("div", { class: `scores${others.length ? "" : " single"}` }, main,
    others.length ? make("div", { class: "other-scores" }, ...others) : null);
  const signed = scores.filter((score) => score.signature);
  if (!signed.length) return block;
  const rows = signed.map((score) => {
    const line = `${score.name}|${score.signature} = ${scoreWriter(score)(score.value)}`;
    const code = make("code", {}, line);
    return make("div", { class: "signature" }, code, copyButton(code));
  });
  return make("div", {}, block, make("details", { class: "signatures" }, make("summary", {}, "Signatures: all that the scores depend on"), ...rows));
}

function showScore(score, isMain) {
  const say = scoreWriter(score);
  const element = make("div", { class: `score${isMain ? " main" : ""}` },
    make("div", { class: "name" }, score.name),
    make("div", { class: "value" }, say(score.value)));
  if (score.interval?.every(isNumber) && isNumber(score.value)) {
    element.append(
      intervalBar(score, isMain ? 300 : 160, isMain),
      make("div", { class: "between" }, `${isMain ? "95 % interval " : ""}${score.interval.map(say).join(" to ")}`));
  }
  return element;
}

const showSummary = (summary) => make("dl", { class: "tiles" },
  ...summary.map(([label, text]) => make("div", {}, make("dt", {}, label), make("dd", {}, text))));

const showNotes = (section, { notes }) => section.append(make("ul", { class: "notes" }, ...notes.map((note) => make("li", {}, note))));

/* What the score is worth: sentences, and a table of bounds with the one to report in bold. */
function showCertificate(section, { certificate: { sentences, columns, rows, head } }) {
  section.append(make("ul", { class: "notes" }, ...sentences.map((sentence) => make("li", {}, sentence))));
  if (rows.length) {
    section.append(make("div", { class: "scroll bounds" }, make("table", {},
      make("thead", {}, make("tr", {}, ...columns.map((name) => make("th", {}, name)))),
      make("tbody", {}, ...rows.map(({ cells, best }) => make("tr", { class: best ? "best" : null },
        ...cells.map((cell) => make("td", {}, cell))))))));
  }
  section.append(make("p", { class: "chain" }, "Last link of the ledger: ", make("code", {}, head)));
}

/* A row for each label that was right, a column for each that was said; shades are shares of the row. */
function showConfusion(section, { confusion: { labels, counts } }) {
  const totals = counts.map((row) => row.reduce((sum, count) => sum + count, 0));
  const cell = (count, row, column) => {
    const share = totals[row] ? count / totals[row] : 0;
    const color = row === column ? "right" : "wrong";
    return make("td", { style: `background: color-mix(in srgb, var(--${color}) ${Math.round(70 * share)}%, transparent)`,
      title: `${labels[row]} taken for ${labels[column]}: ${count} of ${totals[row]}` }, count ? String(count) : "");
  };
  section.append(make("div", { class: "confusion" }, make("table", {},
    make("thead", {}, make("tr", {}, make("th", { class: "corner" }, "right ↓ said →"),
      ...labels.map((label) => make("th", { scope: "col" }, label)), make("th", { class: "total" }, "rows"))),
    make("tbody", {}, ...counts.map((row, number) => make("tr", {}, make("th", { scope: "row" }, labels[number]),
      ...row.map((count, column) => cell(count, number, column)), make("td", { class: "total" }, String(totals[number]))))))));
}

const showAttention = (section, { attention }) => {
  section.append(make("p", { class: "lead" },
    "Each row of the map is one token, and shows how it shared its attention among the tokens of the columns. Attention says where the model looked, not why."));
  new AttentionViewer(section, attention);
};

const showWordsThatMattered = (section, { highlights }) => {
  section.append(make("p", { class: "lead" },
    "For its aspect a query looked at the words of each text; the darker a word, the more it weighed in what was said."));
  showHighlights(section, highlights);
};

const makeKey = (words, color) => make("span", {}, make("i", { style: `border-color: var(--${color})` }), words);

function makeLegend(curves) {
  const [trained, checked] = ["loss", "valid_loss"].map((name) =>
    curves.filter((line) => isNumber(line[name])).map((line) => [line.step, line[name]]));
  const legend = make("div", { class: "chart-legend" });
  if (trained.length) {
    legend.append(makeKey(trained.length > MANY_POINTS ? "training loss, smoothed; thin, as logged" : "training loss", "accent"));
  }
  if (checked.length) {
    const [step, lowest] = lowestOf(checked);
    legend.append(makeKey(`validation loss, lowest ${sayNumber(lowest)} at step ${sayNumber(step)}`, "second"));
  }
  return legend;
}

function showLearning(section, { curves }) {
  const has = (name) => curves.some((line) => isNumber(line[name]));
  const card = make("div", { class: "card" });
  section.append(card);
  card.append(makeLegend(curves));
  const charts = [];
  const tip = make("div", { class: "chart-tip", hidden: true });
  const onPoint = (line) => showPoint(charts, tip, curves, line);
  const losses = ["loss", "valid_loss"].filter(has);
  if (losses.length) {
    const values = curves.flatMap((line) => losses.map((name) => line[name])).filter((value) => isNumber(value) && value > 0);
    const spread = values.reduce((a, b) => Math.max(a, b), 0) / values.reduce((a, b) => Math.min(a, b), Infinity);
    const chart = new CurveChart(card, curves, { height: 300, series: losses, ticks: 5, isLogarithmic: spread > 30, onPoint });
    charts.push(chart);
    section.querySelector(".section-head").append(makeChoices("Loss axis", [[false, "linear"], [true, "logarithmic"]], spread > 30, (choice) => {
      chart.isLogarithmic = choice;
      chart.draw();
    }));
  }
  if (has("learning_rate")) {
    card.append(make("div", { class: "chart-legend", style: "margin: 18px 0 4px" }, makeKey("learning rate", "muted")));
    charts.push(new CurveChart(card, curves, { height: 70, series: ["learning_rate"], ticks: 2, hasSteps: false, onPoint }));
  }
  card.append(tip);
}

/* The numbers of the line pointed at and, where it has none of its own, of the validation nearest to it. */
function showPoint(charts, tip, curves, line) {
  charts.forEach((chart) => chart.mark(line));
  tip.hidden = !line;
  if (!line) return;
  const rows = (entry, test) => Object.entries(entry)
    .filter(([name, value]) => name !== "step" && (value === null || isNumber(value)) && test(name))
    .flatMap(([name, value]) => [make("span", {}, name.replaceAll("_", " ")), make("em", {}, sayNumber(value))]);
  const isValid = (name) => name.startsWith("valid");
  const checked = curves.filter((entry) => Object.keys(entry).some(isValid))
    .reduce((a, b) => (a && Math.abs(a.step - line.step) <= Math.abs(b.step - line.step) ? a : b), null);
  tip.replaceChildren(make("b", {}, `step ${sayNumber(line.step)}`), ...rows(line, (name) => !isValid(name)));
  if (checked) {
    if (checked.step !== line.step) tip.append(make("b", {}, `validation at step ${sayNumber(checked.step)}`));
    tip.append(...rows(checked, isValid));
  }
  const place = charts[0].x(line.step) + charts[0].root.offsetLeft;
  const isLate = place > tip.parentElement.clientWidth / 2;
  tip.style.top = `${charts[0].root.offsetTop}px`;
  tip.style.left = isLate ? `${place - tip.offsetWidth - 14}px` : `${place + 14}px`;
}

function showSamples(section, { samples }) {
  const groups = {
    wrong: samples.filter((sample) => sample.right === false),
    right: samples.filter((sample) => sample.right === true),
    all: samples,
  };
  const list = make("div", { class: "samples" });
  const more = make("button", { type: "button", class: "quiet-button more" });
  const show = (name, count) => {
    list.replaceChildren(...groups[name].slice(0, count).map(showSample));
    more.hidden = groups[name].length <= count;
    more.textContent = `Show all ${groups[name].length}`;
    more.onclick = () => show(name, Infinity);
  };
  const first = groups.wrong.length ? "wrong" : groups.right.length ? "right" : "all";
  const names = ["wrong", "right", "all"].filter((name) => groups[name].length);
  if (first !== "all") {
    const options = names.map((name) => [name, `${name} ${groups[name].length}`]);
    section.querySelector(".section-head").append(makeChoices("", options, first, (name) => show(name, SAMPLES_AT_ONCE)));
  }
  section.append(list, more);
  show(first, SAMPLES_AT_ONCE);
}

function showSample({ source, target, prediction, right }) {
  // How a text goes on is not right or wrong: nothing is marked.
  const isContinued = typeof target === "string" && right === undefined;
  const isCompared = typeof target === "string" && right === false;
  const [missed, added] = isCompared ? differences(target, prediction) : [[[target ?? "", true]], [[prediction, true]]];
  const text = (name, runs) => make("dd", { class: `text ${name}`, dir: "auto" },
    ...(runs.some(([run]) => run) ? runs.map(([run, isSame]) => (isSame ? run : make("mark", {}, run))) : [make("span", { class: "nothing" }, "nothing")]));
  return make("dl", { class: `sample${right === true ? " is-right" : ""}` },
    make("dt", {}, isContinued ? "text" : "source"), text("source", [[source, true]]),
    ...(isCompared || isContinued ? [make("dt", {}, isContinued ? "goes on" : "expected"), text("target", missed)] : []),
    make("dt", {}, isContinued ? "model" : "predicted"), text("prediction", added));
}

const asSigns = (text) => (Intl.Segmenter
  ? Array.from(new Intl.Segmenter(undefined, { granularity: "grapheme" }).segment(text), ({ segment }) => segment)
  : Array.from(text));

/* Both texts as runs of [text, is it in the other too]. */
function differences(expected, predicted) {
  const [a, b] = [asSigns(expected), asSigns(predicted)];
  if (a.length * b.length > 4e6) return [[[expected, false]], [[predicted, false]]];
  const blocks = joined(alignedBlocks(a, b));
  return ["a", "b"].map((side) => blocks.filter((block) => block[side].length).map((block) => [block[side].join(""), block.isSame]));
}

/* Blocks of signs that are the same, or not, by the longest common subsequence. */
function alignedBlocks(a, b) {
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] = a[i] === b[j]
        ? longest[(i + 1) * width + j + 1] + 1
        : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  const blocks = [];
  const put = (fromA, fromB, isSame) => {
    if (blocks.at(-1)?.isSame !== isSame) blocks.push({ a: [], b: [], isSame });
    blocks.at(-1).a.push(...fromA);
    blocks.at(-1).b.push(...fromB);
  };
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) put([a[i++]], [b[j++]], true);
    else if (j >= b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) put([a[i++]], [], false);
    else put([], [b[j++]], false);
  }
  return blocks;
}

/* A single sign in common, amid longer differences, is chance: it joins them. */
function joined(blocks) {
  const size = (block) => Math.max(block.a.length, block.b.length);
  return blocks.reduce((done, block, i) => {
    const isChance = block.isSame && size(block) === 1 && i > 0 && i + 1 < blocks.length && size(blocks[i - 1]) + size(blocks[i + 1]) > 3;
    const isSame = block.isSame && !isChance;
    const last = done.at(-1);
    if (last?.isSame !== isSame) return [...done, { a: [...block.a], b: [...block.b], isSame }];
    last.a.push(...block.a);
    last.b.push(...block.b);
    return done;
  }, []);
}

const TOML = /("(?:\\.|[^"\\])*"|'[^']*')|(#.*$)|(^\s*\[.*\]\s*$)|(^\s*[\w.-]+(?=\s*=))|(\b(?:true|false)\b|[+-]?\b\d[\w.:+-]*)/g;
const TOML_NAMES = ["toml-text", "toml-comment", "toml-table", "toml-key", "toml-value"];

function showSettings(section, { settings }) {
  const lines = settings.trimEnd().split("\n").flatMap((line, i) => [i ? "\n" : "", ...highlighted(line)]);
  const code = make("pre", {}, ...lines);
  section.append(make("details", { class: "settings" },
    make("summary", {}, "The resolved run.toml: every setting, as it was used"),
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
