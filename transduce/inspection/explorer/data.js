// An inspection as Python wrote it, with its attention weights unpacked: bytes, 255 times the square root.

export class Inspection {
  constructor(json) {
    Object.assign(this, json);
    this.maps = json.maps.map((map) => new AttentionMap(map));
    this.parts = ["encoder", "decoder", "cross"].filter((part) => this.maps.some((map) => map.part === part));
  }

  of(part) { return this.maps.filter((map) => map.part === part); }

  rowLabels(part) { return part === "encoder" ? this.source : part === "decoder" ? this.read : this.written; }

  columnLabels(part) { return part === "decoder" ? this.read : this.source; }

  /** A head's weights; head -1 is the mean of the layer, layer -1 the mean of all. */
  grid(part, layer, head) {
    const maps = this.of(part);
    if (!maps.length) return null;
    if (layer >= maps.length) layer = maps.length - 1;
    const chosen = layer < 0 ? maps : [maps[layer]];
    if (head >= 0 && layer >= 0) return chosen[0].head(Math.min(head, chosen[0].heads - 1));
    return mean(chosen.flatMap((map) => Array.from({ length: map.heads }, (_, number) => map.head(number))));
  }

  /** The mean cross-attention of all heads, for the steps. */
  get crossing() {
    this.cached ??= this.grid("cross", -1, -1);
    return this.cached;
  }
}

/** Bytes that Python packed in base64. */
export const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

class AttentionMap {
  constructor(json) {
    Object.assign(this, json);
    this.bytes = bytesOf(json.weights);
  }

  head(number) {
    const size = this.rows * this.columns;
    const bytes = this.bytes.subarray(number * size, (number + 1) * size);
    return new Grid(this.rows, this.columns, (row, column) => (bytes[row * this.columns + column] / 255) ** 2);
  }
}

export class Grid {
  constructor(rows, columns, at) { Object.assign(this, { rows, columns, at }); }

  /** What is drawn darkest: the greatest weight, or a little where all are small. */
  get peak() {
    if (this.found === undefined) {
      this.found = 0.12;
      for (let row = 0; row < this.rows; row++) for (let column = 0; column < this.columns; column++) this.found = Math.max(this.found, this.at(row, column));
    }
    return this.found;
  }

  /** The columns that a row looks at most: [[column, weight], ...]. */
  best(row, count) {
    const found = Array.from({ length: this.columns }, (_, column) => [column, this.at(row, column)]);
    return strongest(found, count);
  }

  /** The rows that look at a column most. */
  bestRows(column, count) {
    const found = Array.from({ length: this.rows }, (_, row) => [row, this.at(row, column)]);
    return strongest(found, count);
  }
}

const strongest = (pairs, count) => pairs.sort((a, b) => b[1] - a[1]).slice(0, count).filter(([, weight], rank) => weight > 0.02 || (rank < 2 && weight > 0));

function mean(grids) {
  const [{ rows, columns }] = grids;
  const sums = new Float32Array(rows * columns);
  for (const grid of grids)
    for (let row = 0, i = 0; row < rows; row++) for (let column = 0; column < columns; column++, i++) sums[i] += grid.at(row, column);
  return new Grid(rows, columns, (row, column) => sums[row * columns + column] / grids.length);
}

export function matrixGrid(weights) {
  return new Grid(weights.length, weights[0]?.length ?? 0, (row, column) => weights[row][column]);
}
