/* The viewer of attention maps: a kind, a layer and a head are chosen, and a cell is pointed at. */
"use strict";

PAGES.attention = (root, examples) => {
  const title = root.querySelector("h1");
  if (examples.length > 1) title.textContent = `Attention maps of ${examples.length} examples`;
  else title.replaceChildren(make("bdi", {}, nameOfInput(examples[0])), " \u2192 ", make("bdi", {}, examples[0].output));
  root.querySelector("header").append(make("p", { class: "lead" }, leadOf(examples)));
  const section = make("section");
  root.append(section);
  viewAttention(section, examples);
};

const ATTENTION_LEAD = "Each row shows the attention weights of one query token over the key tokens in the columns; they sum to 1. Attention weights show what a layer reads from, not why the model makes a prediction.";
const ATTENTION_MARKS = " The tokens <s> and </s> mark the start and the end of a text.";
/* A graph as JSON is too long for a title; SMILES are not. */
const nameOfInput = ({ input, drawing }) => (drawing && input.startsWith("{") ? `a graph of ${drawing.names.length} nodes` : input);

/* Over a picture, where the source is one; otherwise a map with tokens on both axes. */
const leadOf = ([{ picture, drawing }]) => (picture ? PICTURE_LEAD : drawing ? ATTENTION_LEAD : ATTENTION_LEAD + ATTENTION_MARKS);
const viewAttention = (section, examples) => (examples[0].picture ? new PictureViewer(section, examples) : new AttentionViewer(section, examples));

const ATTENTION_KINDS = {
  encoder: { name: "Encoder", rows: "source_tokens", columns: "source_tokens", row: "Query", column: "Key" },
  decoder: { name: "Decoder", rows: "target_tokens", columns: "target_inputs", row: "Generated", column: "Input" },
  cross: { name: "Cross", rows: "target_tokens", columns: "source_tokens", row: "Generated", column: "Source" },
};
const SMALLEST_CELL = 12;
const LARGEST_CELL = 32;
const LONGEST_NAME = 110;

/* Weights are embedded as two-byte integers, the lower byte first. */
function unpackWeights({ shape, values }) {
  const bytes = atob(values);
  const weights = new Float32Array(bytes.length / 2);
  for (let i = 0; i < weights.length; i += 1) {
    weights[i] = (bytes.charCodeAt(2 * i) + 256 * bytes.charCodeAt(2 * i + 1)) / 65535;
  }
  return { shape, weights };
}

/* The mean over all layers and heads that are not given (null). */
function averageMap({ shape, weights }, layer, head) {
  const [numLayers, numHeads, numRows, numColumns] = shape;
  const size = numRows * numColumns;
  const mean = new Float32Array(size);
  let count = 0;
  for (let l = 0; l < numLayers; l += 1) {
    for (let h = 0; h < numHeads; h += 1) {
      if ((layer !== null && l !== layer) || (head !== null && h !== head)) continue;
      const start = (l * numHeads + h) * size;
      for (let i = 0; i < size; i += 1) mean[i] += weights[start + i];
      count += 1;
    }
  }
  return mean.map((weight) => weight / count);
}

const largestOf = (weights) => weights.reduce((largest, weight) => Math.max(largest, weight), 0) || 1;
const isSpecial = (name) => /^[<[].+[>\]]$/.test(name);
const formatWeight = (weight) => weight.toFixed(3);
/* A combining mark gets a dotted circle as its base. */
const visiblePiece = (piece) => (/^\p{M}/u.test(piece) ? `\u25cc${piece}` : piece);

function shortenTo(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}\u2026`).width > width) end -= 1;
  return `${text.slice(0, end)}\u2026`;
}

class AttentionViewer {
  constructor(root, examples) {
    this.examples = examples;
    this.ramp = readRamp();
    this.root = make("div", { class: "attention" });
    root.append(this.root);
    this.build();
    this.chooseExample(0);
    onColorsChange(() => {
      this.ramp = readRamp();
      this.showMap();
      this.showHeads();
    });
    onWidthChange(this.main, () => this.showMap());
  }

  build() {
    this.choice = make("div", { class: "attention-example" });
    this.controls = make("div", { class: "attention-controls" });
    this.sentence = make("p", { class: "attention-sentence", "aria-live": "polite" });
    this.strip = make("dl", { class: "attention-strip" });
    this.drawing = make("div", { class: "attention-drawing" });
    this.tip = make("div", { class: "attention-tip", hidden: true });
    this.map = make("div", { class: "attention-map" });
    this.scroll = make("div", { class: "attention-scroll", tabindex: "0", role: "application" }, this.map);
    this.legend = make("div", { class: "attention-legend" });
    this.main = make("div", { class: "attention-main" }, this.scroll, this.legend,
      make("p", { class: "attention-keys" }, "Point at a cell to read its weight, click to select it, or use the arrow keys."),
      this.specials = make("p", { class: "attention-keys" }));
    this.heads = make("aside", { class: "attention-heads" });
    this.root.append(this.choice, this.controls, this.sentence, this.drawing, this.strip,
      make("div", { class: "attention-body" }, this.main, this.heads));
    this.map.addEventListener("pointermove", (event) => this.pointAt(event, false));
    this.map.addEventListener("click", (event) => this.pointAt(event, true));
    this.map.addEventListener("pointerleave", () => this.point(...this.kept, false));
    this.scroll.addEventListener("keydown", (event) => this.walk(event));
    this.scroll.addEventListener("blur", () => { this.tip.hidden = true; });
  }

  chooseExample(index) {
    this.index = index;
    this.example = this.examples[index];
    this.example.unpacked ??= Object.fromEntries(
      Object.entries(this.example.weights).map(([kind, packed]) => [kind, unpackWeights(packed)]));
    this.showExamples();
    const kinds = Object.keys(ATTENTION_KINDS).filter((kind) => kind in this.example.unpacked);
    this.chooseKind(kinds.includes(this.kind) ? this.kind : kinds.includes("cross") ? "cross" : kinds[0]);
  }

  chooseKind(kind) {
    this.kind = kind;
    this.packed = this.example.unpacked[kind];
    [this.numLayers, this.numHeads, this.numRows, this.numColumns] = this.packed.shape;
    const { rows, columns } = ATTENTION_KINDS[kind];
    this.rows = this.example[rows].map(visiblePiece);
    this.columns = this.example[columns].map(visiblePiece);
    const specials = [...new Set([...this.columns, ...this.rows].filter(isSpecial))];
    const meaning = this.example.drawing ? "the whole graph" : "start, end or mask of a sequence";
    this.specials.textContent = specials.length ? `Special tokens: ${specials.join(" ")} (${meaning}).` : "";
    if (!(this.layer < this.numLayers)) this.layer = null;
    if (!(this.head < this.numHeads)) this.head = null;
    this.kept = null;
    this.choose(this.layer, this.head);
  }

  choose(layer, head) {
    this.layer = layer;
    this.head = head;
    this.weights = averageMap(this.packed, layer, head);
    this.peak = largestOf(this.weights);
    this.kept ??= [0, this.strongest(0)[0]];
    [this.row, this.column] = this.kept;
    this.showControls();
    this.showHeads();
    this.showMap();
  }

  weightAt(row, column) {
    return this.weights[row * this.numColumns + column];
  }

  colorOf(weight, peak) {
    return this.ramp[Math.round(255 * Math.min(1, weight / peak))];
  }

  /* The columns of a row, largest weight first. */
  strongest(row) {
    return this.columns.map((_, column) => column).sort((a, b) => this.weightAt(row, b) - this.weightAt(row, a));
  }

  showExamples() {
    this.choice.replaceChildren();
    this.choice.hidden = this.examples.length < 2;
    if (this.choice.hidden) return;
    const step = (distance) => this.chooseExample(this.index + distance);
    const options = this.examples.map((example, index) =>
      make("option", { value: index, selected: index === this.index },
        `${index + 1}. \u2068${nameOfInput(example)}\u2069 \u2192 \u2068${example.output}\u2069`));
    this.choice.append(
      make("select", { "aria-label": "example", onchange: (event) => this.chooseExample(Number(event.target.value)) }, ...options),
      make("button", { class: "quiet-button", type: "button", disabled: this.index === 0, onclick: () => step(-1) }, "Previous"),
      make("button", { class: "quiet-button", type: "button", disabled: this.index === this.examples.length - 1, onclick: () => step(1) }, "Next"));
  }

  showControls() {
    const focused = [...this.controls.querySelectorAll("input")].indexOf(document.activeElement);
    const kinds = Object.keys(ATTENTION_KINDS).filter((kind) => kind in this.example.unpacked);
    const counted = (count) => [[null, "average"], ...Array.from({ length: count }, (_, i) => [i, String(i + 1)])];
    const groups = [];
    if (kinds.length > 1) {
      const options = kinds.map((kind) => [kind, ATTENTION_KINDS[kind].name]);
      groups.push(makeChoices("Attention", options, this.kind, (kind) => this.chooseKind(kind)));
    }
    if (this.numLayers > 1) groups.push(makeChoices("Layer", counted(this.numLayers), this.layer, (layer) => this.choose(layer, this.head)));
    if (this.numHeads > 1) groups.push(makeChoices("Head", counted(this.numHeads), this.head, (head) => this.choose(this.layer, head)));
    this.controls.replaceChildren(...groups);
    if (focused >= 0) this.controls.querySelectorAll("input")[focused]?.focus();
  }

  showHeads() {
    this.heads.hidden = this.numLayers * this.numHeads < 2;
    if (this.heads.hidden) return;
    const ratio = Math.min(2, Math.max(0.6, this.numColumns / this.numRows));
    const width = Math.max(36, Math.min(84, Math.floor(330 / this.numHeads) - 6));
    const peak = largestOf(this.packed.weights);
    const name = (text) => make("span", { class: "name" }, text);
    const cells = [name("head")];
    for (let head = 0; head < this.numHeads; head += 1) cells.push(name(String(head + 1)));
    for (let layer = 0; layer < this.numLayers; layer += 1) {
      cells.push(name(`layer ${layer + 1}`));
      for (let head = 0; head < this.numHeads; head += 1) cells.push(this.thumbnail(layer, head, peak, ratio));
    }
    const columns = `grid-template-columns: max-content repeat(${this.numHeads}, minmax(26px, ${width}px))`;
    this.heads.replaceChildren(
      make("h3", {}, "All heads"),
      make("div", { class: "attention-grid", style: columns }, ...cells),
      make("p", { class: "attention-keys" }, `All on one scale, from 0 to ${peak.toFixed(2)}.`));
  }

  thumbnail(layer, head, peak, ratio) {
    const canvas = make("canvas", { width: this.numColumns, height: this.numRows, style: `aspect-ratio: ${ratio}` });
    const context = canvas.getContext("2d");
    const image = context.createImageData(this.numColumns, this.numRows);
    averageMap(this.packed, layer, head).forEach((weight, i) => image.data.set([...this.colorOf(weight, peak), 255], 4 * i));
    context.putImageData(image, 0, 0);
    const title = `layer ${layer + 1}, head ${head + 1}`;
    const isPart = (this.layer ?? layer) === layer && (this.head ?? head) === head;
    const isChosen = isPart && this.layer !== null && this.head !== null;
    const isOneOfAll = this.layer === null && this.head === null;
    return make("button", {
      type: "button", title, "aria-label": title,
      "aria-pressed": String(isChosen), class: isPart && !isChosen && !isOneOfAll ? "part" : null,
      onclick: () => (isChosen ? this.choose(null, null) : this.choose(layer, head)),
    }, canvas);
  }

  /* The positions of the cells, from the available width and the length of the names. */
  layOut() {
    const context = document.createElement("canvas").getContext("2d");
    const family = getComputedStyle(document.body).fontFamily;
    const widthOf = (names) => Math.min(LONGEST_NAME, Math.max(...names.map((name) => context.measureText(name).width)));
    context.font = `700 13px ${family}`;
    const left = Math.ceil(widthOf(this.rows)) + 9;
    const available = this.main.clientWidth - left - 3;
    const cell = Math.floor(Math.max(SMALLEST_CELL, Math.min(LARGEST_CELL, available / this.numColumns)));
    const size = Math.max(9, Math.min(14, Math.round(cell * 0.58)));
    context.font = `700 ${size}px ${family}`;
    const isTurned = this.columns.map((name) => context.measureText(name).width > cell - 1);
    const top = isTurned.some(Boolean) ? Math.ceil(widthOf(this.columns.filter((_, i) => isTurned[i]))) + 9 : size + 9;
    const columnNames = this.columns.map((name, i) => shortenTo(context, name, isTurned[i] ? top - 8 : cell));
    context.font = `700 13px ${family}`;
    const rowNames = this.rows.map((name) => shortenTo(context, name, left - 8));
    return { left, top, cell, size, isTurned, rowNames, columnNames };
  }

  showMap() {
    const { left, top, cell, size, isTurned, rowNames, columnNames } = (this.layout = this.layOut());
    const width = left + this.numColumns * cell + 2;
    const height = top + this.numRows * cell + 2;
    this.overlay = makeSvg("svg", { width, height, "aria-hidden": "true" });
    this.rowNames = rowNames.map((name, row) => makeSvg("text", {
      x: left - 7, y: top + (row + 0.5) * cell, "text-anchor": "end", "dominant-baseline": "central", "font-size": Math.min(13, size + 1),
    }, name));
    this.columnNames = columnNames.map((name, column) => {
      const x = left + (column + 0.5) * cell;
      const turned = { transform: `translate(${x} ${top - 6}) rotate(-90)`, "dominant-baseline": "central", "font-size": size };
      const upright = { x, y: top - 7, "text-anchor": "middle", "font-size": size };
      return makeSvg("text", isTurned[column] ? turned : upright, name);
    });
    this.bands = [0, 1].map(() => makeSvg("rect", { class: "band", rx: 3 }));
    this.mark = makeSvg("rect", { class: "mark", rx: 3 });
    this.overlay.append(...this.rowNames, ...this.columnNames, ...this.bands, this.mark);
    this.map.style.cssText = `width: ${width}px; height: ${height}px`;
    this.scroll.classList.toggle("wide", width > this.main.clientWidth);
    this.map.replaceChildren(this.paintCells(width, height), this.overlay, this.tip);
    this.legend.replaceChildren("0", make("i"), this.peak.toFixed(3), make("span", {}, "attention weight"));
    this.point(...this.kept, false);
  }

  paintCells(width, height) {
    const { left, top, cell } = this.layout;
    const density = Math.max(2, window.devicePixelRatio || 1);
    const canvas = make("canvas", { width: width * density, height: height * density, style: `width: ${width}px; height: ${height}px` });
    const context = canvas.getContext("2d");
    context.scale(density, density);
    const gap = cell >= 16 ? 1.5 : 1;
    this.weights.forEach((weight, i) => {
      context.fillStyle = asColor(this.colorOf(weight, this.peak));
      context.beginPath();
      context.roundRect(
        left + (i % this.numColumns) * cell, top + Math.floor(i / this.numColumns) * cell, cell - gap, cell - gap, cell >= 16 ? 3 : 1);
      context.fill();
    });
    canvas.dataset.cells = this.weights.length;
    return canvas;
  }

  pointAt(event, keep) {
    const { left, top, cell } = this.layout;
    const box = this.map.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - top) / cell);
    const column = Math.floor((event.clientX - box.left - left) / cell);
    if (row < 0 || row >= this.numRows || column >= this.numColumns) return;
    /* At the name of a row: the largest weight of the row. */
    const place = [row, column < 0 ? this.strongest(row)[0] : column];
    const isNew = keep || this.tip.hidden || place[0] !== this.row || place[1] !== this.column;
    if (!isNew) return;
    if (keep) this.kept = place;
    this.point(...place, true);
  }

  walk(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const within = (place, count) => Math.max(0, Math.min(count - 1, place));
    this.kept = [within(this.row + step[0], this.numRows), within(this.column + step[1], this.numColumns)];
    this.point(...this.kept, true);
  }

  point(row, column, withTip) {
    [this.row, this.column] = [row, column];
    const { left, top, cell } = this.layout;
    const [x, y] = [left + column * cell, top + row * cell];
    const side = cell - 1;
    const frame = (element, box) => Object.entries(box).forEach(([name, value]) => element.setAttribute(name, value));
    frame(this.bands[0], { x: left - 1, y: y - 1, width: this.numColumns * cell + 1, height: side + 2 });
    frame(this.bands[1], { x: x - 1, y: top - 1, width: side + 2, height: this.numRows * cell + 1 });
    frame(this.mark, { x: x - 1, y: y - 1, width: side + 2, height: side + 2 });
    this.rowNames.forEach((name, i) => name.classList.toggle("chosen", i === row));
    this.columnNames.forEach((name, i) => name.classList.toggle("chosen", i === column));
    this.tip.hidden = !withTip;
    this.tip.replaceChildren(make("bdi", {}, this.rows[row]), " \u2192 ", make("bdi", {}, this.columns[column]), `  ${formatWeight(this.weightAt(row, column))}`);
    this.placeTip(x + cell / 2, y);
    this.root.dataset.row = row;
    this.root.dataset.column = column;
    this.showSentence();
    this.showStrip();
    this.showDrawing();
  }

  /* Above the cell, or below it where there is no space; within the visible part of the map. */
  placeTip(middle, y) {
    const { width, height } = this.tip.getBoundingClientRect();
    const { scrollLeft, clientWidth } = this.scroll;
    const left = Math.max(scrollLeft, Math.min(middle - width / 2, scrollLeft + clientWidth - width));
    const top = y - height - 7 < 0 ? y + this.layout.cell + 7 : y - height - 7;
    this.tip.style.cssText = `left: ${left}px; top: ${top}px`;
  }

  showSentence() {
    const piece = (text) => make("bdi", { class: "piece" }, `\u201c${text}\u201d`);
    const largest = this.strongest(this.row).slice(0, 3).flatMap((column, i) => [
      i ? ", " : " ", piece(this.columns[column]), make("span", { class: "weight" }, ` (${formatWeight(this.weightAt(this.row, column))})`)]);
    this.sentence.replaceChildren("Largest weights of ", piece(this.rows[this.row]), ":", ...largest, ".");
  }

  /* A graph whose nodes are shaded by the weights of the selected row; row 0 is the whole graph, row i + 1 its node i. */
  showDrawing() {
    const { drawing } = this.example;
    this.drawing.hidden = !drawing;
    if (!drawing) return;
    const [scale, radius] = [44, 13];
    const places = drawing.positions.map(([x, y]) => [x * scale, -y * scale]);
    const [left, top] = [0, 1].map((axis) => Math.min(...places.map((place) => place[axis])) - 24);
    const [right, bottom] = [0, 1].map((axis) => Math.max(...places.map((place) => place[axis])) + 24);
    const [width, height] = [right - left, bottom - top];
    const svg = makeSvg("svg", { viewBox: `${left} ${top} ${width} ${height}`, width, role: "img", "aria-label": "the graph, its nodes shaded by attention weights" });
    for (const [one, other, order] of drawing.edges) {
      const [[x1, y1], [x2, y2]] = [places[one], places[other]];
      const length = Math.hypot(x2 - x1, y2 - y1) || 1;
      const shifts = order === 3 ? [-5, 0, 5] : order === 1 ? [0] : [-2.5, 2.5];
      shifts.forEach((shift, i) => {
        const [dx, dy] = [(-shift * (y2 - y1)) / length, (shift * (x2 - x1)) / length];
        svg.append(makeSvg("line", { x1: x1 + dx, y1: y1 + dy, x2: x2 + dx, y2: y2 + dy, "stroke-dasharray": order === 1.5 && i ? "3 3" : null }));
      });
    }
    const weights = places.map((_, node) => this.weightAt(this.row, node + 1));
    const peak = largestOf(weights);
    places.forEach(([x, y], node) => {
      const color = this.colorOf(weights[node], peak);
      const keep = () => {
        this.kept = [node + 1, this.strongest(node + 1)[0]];
        this.point(...this.kept, false);
      };
      svg.append(makeSvg("g", { class: node + 1 === this.row ? "chosen" : null, onclick: keep },
        makeSvg("title", {}, `${this.columns[node + 1]}  ${formatWeight(weights[node])}`),
        makeSvg("circle", { cx: x, cy: y, r: radius, fill: asColor(color) }),
        makeSvg("text", { x, y, "text-anchor": "middle", "dominant-baseline": "central", fill: isDark(color) ? "#fff" : "#14171f" }, drawing.names[node])));
    });
    const from = this.row ? `node ${this.rows[this.row]}` : "the whole graph";
    this.drawing.replaceChildren(svg, make("p", { class: "attention-keys" },
      `Nodes are shaded by the weights of ${from}, from 0 to ${peak.toFixed(3)}. Click a node to select it.`));
  }

  /* The two texts in their own direction; the keys are shaded by the weights of the selected row. */
  showStrip() {
    const { row: rowWords, column: columnWords } = ATTENTION_KINDS[this.kind];
    const keep = (row, column) => () => {
      this.kept = [row, column ?? this.strongest(row)[0]];
      this.point(...this.kept, false);
    };
    const span = (name, isChosen, style, onclick) =>
      make("span", { class: `${isChosen ? "chosen" : ""} ${isSpecial(name) ? "special" : ""}`, style, onclick }, name.replace(/^\u25cc(?=\p{M})/u, ""));
    const queries = this.rows.map((name, row) => span(name, row === this.row, null, keep(row, null)));
    const keys = this.columns.map((name, column) => {
      const color = this.colorOf(this.weightAt(this.row, column), this.peak);
      return span(name, column === this.column, shadeStyle(color), keep(this.row, column));
    });
    /* Characters are not separated, so that joined scripts stay joined; longer tokens are. */
    const isApart = (name) => name.length > 1 && !isSpecial(name) && !name.startsWith("\u25cc");
    const classOf = (names) => `${names.some(isApart) ? "apart" : ""} ${names.length > 40 ? "long" : ""}`;
    this.strip.replaceChildren(
      make("dt", {}, rowWords), make("dd", { class: `queries ${classOf(this.rows)}`, dir: "auto" }, ...queries),
      make("dt", {}, columnWords), make("dd", { class: `keys ${classOf(this.columns)}`, dir: "auto" }, ...keys));
    for (const chosen of [queries[this.row], keys[this.column]]) chosen.parentElement.scrollTop = chosen.offsetTop - 30;
  }
}
