/* Attention over a picture: the picture once for each token, its cells darkened by the attention that they do not have. */
"use strict";

const PICTURE_LEAD = "Each map shows the attention weights of the cells of the image when one token is generated: bright cells have the largest weight. The weights of a token sum to 1. Attention weights show what the decoder reads from, not why it makes a prediction.";
const VEIL = 0.82;
const PICTURE_SIDE = 256;

class PictureViewer {
  constructor(root, examples) {
    this.examples = examples;
    this.layer = this.head = null;
    this.choice = make("div", { class: "attention-example" });
    this.controls = make("div", { class: "attention-controls" });
    this.grid = make("div", { class: "picture-grid" });
    root.append(make("div", { class: "attention" }, this.choice, this.controls, this.grid));
    this.chooseExample(0);
  }

  chooseExample(index) {
    this.example = this.examples[index];
    this.packed = this.example.unpacked ??= unpackWeights(this.example.weights.cross);
    this.choice.hidden = this.examples.length < 2;
    const options = this.examples.map(({ input, output }, place) =>
      make("option", { value: place, selected: place === index }, `${place + 1}. ${input}: ${output}`));
    this.choice.replaceChildren(make("select", {
      "aria-label": "example", onchange: (event) => this.chooseExample(Number(event.target.value)),
    }, ...options));
    this.picture = new Image();
    this.picture.onload = () => this.show();
    this.picture.src = this.example.picture;
    this.showControls();
  }

  showControls() {
    const [numLayers, numHeads] = this.packed.shape;
    const counted = (count) => [[null, "average"], ...Array.from({ length: count }, (_, i) => [i, String(i + 1)])];
    const groups = [];
    if (numLayers > 1) groups.push(makeChoices("Layer", counted(numLayers), this.layer, (layer) => { this.layer = layer; this.show(); }));
    if (numHeads > 1) groups.push(makeChoices("Head", counted(numHeads), this.head, (head) => { this.head = head; this.show(); }));
    this.controls.replaceChildren(...groups);
  }

  show() {
    const weights = averageMap(this.packed, this.layer, this.head);
    const numCells = this.packed.shape[3];
    const whole = this.figure(this.example.input, "the picture", null);
    const words = this.example.target_tokens.map((token, row) => {
      const own = weights.slice(row * numCells, (row + 1) * numCells);
      return this.figure(token, `largest weight ${largestOf(own).toFixed(2)}`, own);
    });
    this.grid.replaceChildren(whole, ...words);
  }

  figure(name, note, weights) {
    const canvas = make("canvas", { width: PICTURE_SIDE, height: PICTURE_SIDE, role: "img", "aria-label": `${name}: ${note}` });
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(this.picture, 0, 0, PICTURE_SIDE, PICTURE_SIDE);
    if (weights) {
      const side = Math.round(Math.sqrt(weights.length));
      const peak = largestOf(weights);
      const edge = (place) => Math.round((place * PICTURE_SIDE) / side);
      weights.forEach((weight, cell) => {
        const [row, column] = [Math.floor(cell / side), cell % side];
        context.fillStyle = `rgba(0, 0, 0, ${VEIL * (1 - weight / peak)})`;
        context.fillRect(edge(column), edge(row), edge(column + 1) - edge(column), edge(row + 1) - edge(row));
      });
    }
    return make("figure", { class: "picture" }, canvas, make("figcaption", {}, make("b", {}, name), make("small", {}, note)));
  }
}
