// Running a model: the encoder over all tokens of several sources without padding, the decoder over one token of each
// row. Rows are contiguous and padded to whole panels; padding is zero everywhere and stays zero.
#include <math.h>
#include <string.h>

#include "model.h"

namespace transduce {
namespace {

int sixteens(int count) { return (count + 15) / 16 * 16; }

void put(float value, float* out) { *out = value; }

void put(float value, Half* out) {  // rounded to nearest, ties to even
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  *out = static_cast<Half>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

template <class Number>
void put(const float* values, int count, Number* out) {
  for (int i = 0; i < count; i++) put(values[i], out + i);
}

// Keys and values of `count` positions, from rows to sequential layout: keys [group][width][positions], then
// values [group][position][width].
template <class Number>
void arrange(const Stack& stack, const float* keys, size_t stride, int count, Number* out) {
  size_t columns = sixteens(count);
  for (int i = 0; i < stack.keys(); i++, out += columns) {
    for (int t = 0; t < count; t++) put(keys[t * stride + i], out + t);
    for (size_t t = count; t < columns; t++) out[t] = 0;
  }
  for (int g = 0; g < stack.groups; g++)
    for (int t = 0; t < count; t++, out += stack.width)
      put(keys + t * stride + stack.keys() + g * stack.width, stack.width, out);
}

// Write a new position's key and value, by group.
template <class Number>
void add_place(const Stack& stack, const float* keys, size_t group_stride, Number* out) {
  for (int g = 0; g < stack.groups; g++) {
    put(keys + g * stack.width, stack.width, out + g * group_stride);
    put(keys + stack.keys() + g * stack.width, stack.width, out + (stack.groups + g) * group_stride);
  }
}

}  // namespace

// -- matrices ---------------------------------------------------------------------------------------------------------

Quantized Model::quantize(const Matrix& matrix, const float* x, int rows, Team& team, Workspace& room) const {
  if (!matrix.bytes) return {};
  size_t width = matrix.inputs;
  Quantized out = {room.values.room(rows * width), room.scales.room(rows), room.offsets.room(rows),
                   room.rest.room(rows * width / 4), room.rests.room(rows)};
  int step = rows >= 32 ? 8 : rows;
  team.run((rows + step - 1) / step, [&](int piece, int) {
    int first = piece * step;
    kernels->quantize(x + first * width, std::min(step, rows - first), matrix.inputs,
                      {out.values + first * width, out.scales + first, out.offsets + first,
                       out.rest + first * width / 4, out.rests + first});
  });
  return out;
}

void Model::multiply_panels(const Matrix& matrix, int first, int last, const float* x, const Quantized& quantized,
                            int rows, float* out, size_t stride, After after) const {
  if (matrix.bytes) {
    kernels->multiply_int8(matrix, first, last, quantized, rows, out, stride, after);
  } else {
    kernels->multiply_float(matrix, first, last, x, rows, out, stride, after);
  }
}

void Model::multiply(const Matrix& matrix, const float* x, int rows, float* out, After after, Team& team,
                     Workspace& room) const {
  Quantized quantized = quantize(matrix, x, rows, team, room);
  int panels = matrix.outputs / kPanel, pieces = team.size() == 1 ? 1 : std::min(panels, 4 * team.size());
  team.run(pieces, [&](int piece, int) {
    multiply_panels(matrix, panels * piece / pieces, panels * (piece + 1) / pieces, x, quantized, rows, out,
                    matrix.outputs, after);
  });
}

// -- parts of a layer -------------------------------------------------------------------------------------------------

void Model::normalize(Norm norm, const NormWeights& weights, const float* x, int rows, float* out, Team& team) const {
  size_t width = padded(d_model);
  int step = rows >= 32 ? 8 : rows;
  team.run((rows + step - 1) / step, [&](int piece, int) {
    for (int r = piece * step; r < std::min(rows, (piece + 1) * step); r++)
      kernels->normalize(norm, x + r * width, d_model, static_cast<int>(width), weights.gain, weights.shift,
                         out + r * width);
  });
}

// The input of a sublayer: the normed rows if pre-norm, else the rows themselves.
const float* Model::before(const Stack& stack, const NormWeights& norm, const float* x, int rows, Team& team,
                           Workspace& room) const {
  if (!stack.pre_norm) return x;
  float* out = room.normed.room(static_cast<size_t>(rows) * padded(d_model));
  normalize(stack.norm, norm, x, rows, out, team);
  return out;
}

void Model::after(const Stack& stack, const NormWeights& norm, float* x, int rows, Team& team) const {
  if (!stack.pre_norm) normalize(stack.norm, norm, x, rows, x, team);
}

void Model::feed_forward(const Stack& stack, const Layer& layer, float* x, int rows, Team& team,
                         Workspace& room) const {
  const float* input = before(stack, layer.around_feed_forward, x, rows, team, room);
  size_t wide = layer.inner.outputs, narrow = layer.outer.inputs;
  float* inner = room.wide.room(rows * wide);
  bool rectified = stack.activation == Activation::kRelu;
  multiply(layer.inner, input, rows, inner, rectified ? After::kRelu : After::kNothing, team, room);
  if (!rectified) {
    bool gated = wide != narrow;
    float* own = gated ? room.narrow.room(rows * narrow) : inner;
    team.run(rows, [&](int r, int) {
      if (gated) memcpy(own + r * narrow, inner + r * wide, narrow * sizeof(float));
      kernels->activate(stack.activation, own + r * narrow, gated ? inner + r * wide + narrow : nullptr,
                        static_cast<int>(narrow));
    });
    inner = own;
  }
  multiply(layer.outer, inner, rows, x, After::kAdd, team, room);
  after(stack, layer.around_feed_forward, x, rows, team);
}

void Model::prepare_heads(const Stack& stack, const float* norm, const float* sharpness, const float* angles,
                          float* heads, int count) const {
  if (norm || angles || stack.cosine)
    kernels->prepare({heads, count, stack.width, stack.real_width, norm, angles, stack.cosine, sharpness});
}

// A row of an embedding table in panels, times the embedding scale, plus the position's vector.
void Model::embed(const Matrix& table, const Stack& stack, int token, int position, float* out) const {
  size_t panel = static_cast<size_t>(token / kPanel) * kPanel * table.inputs, column = token % kPanel;
  for (size_t i = 0; i < static_cast<size_t>(table.inputs); i++) {
    float value = table.bytes
                      ? static_cast<float>(table.bytes[panel + i / 4 * 4 * kPanel + column * 4 + i % 4] - 128) * table.scales[token]
                      : table.floats[panel + i * kPanel + column];
    out[i] = value * embedding_scale_;
  }
  if (!stack.positions) return;
  const float* place = stack.positions + static_cast<size_t>(position) * table.inputs;
  for (int i = 0; i < table.inputs; i++) out[i] += place[i];
}

// -- encoder ----------------------------------------------------------------------------------------------------------

void Model::encode_block(const Layer& layer, float* x, const std::vector<int>& starts, Team& team,
                         Workspace& room) const {
  const Stack& stack = encoder;
  int rows = starts.back(), sentences = static_cast<int>(starts.size()) - 1, longest = 0;
  for (int s = 0; s < sentences; s++) longest = std::max(longest, starts[s + 1] - starts[s]);
  const float* input = before(stack, layer.around_self, x, rows, team, room);
  size_t wide = layer.self.project.outputs, narrow = layer.self.output.inputs;
  size_t columns = sixteens(longest);
  float* projected = room.wide.room(rows * wide);
  multiply(layer.self.project, input, rows, projected, After::kNothing, team, room);
  float* heads = room.heads.room(rows * narrow);
  float* scores = room.scores.room(team.size() * columns);
  float* arranged = room.keys.room(team.size() * 2 * columns * stack.keys());
  room.pointers.resize(team.size() * columns);
  team.run(sentences, [&](int s, int member) {
    int first = starts[s], count = starts[s + 1] - first;
    float *base = projected + first * wide, *own = arranged + member * 2 * columns * stack.keys();
    const void** places = room.pointers.data() + member * columns;
    for (int t = 0; t < count; t++) {
      float* row = base + t * wide;
      const float* angles = stack.rotary ? stack.rotary + static_cast<size_t>(t) * stack.real_width : nullptr;
      prepare_heads(stack, layer.self.query_norm, layer.self.sharpness, angles, row, stack.heads);
      prepare_heads(stack, layer.self.key_norm, nullptr, angles, row + stack.queries(), stack.groups);
      places[t] = own + static_cast<size_t>(sixteens(count)) * stack.keys() + static_cast<size_t>(t) * stack.width;
      memset(heads + (first + t) * narrow + stack.queries(), 0, (narrow - stack.queries()) * sizeof(float));
    }
    arrange(stack, base + stack.queries(), wide, count, own);
    Look look = {};
    look.query = base;
    look.query_stride = wide;
    look.queries = count;
    look.rows = places;
    look.group_stride = static_cast<size_t>(count) * stack.width;
    look.transposed = own;
    look.count = count;
    look.heads = stack.heads;
    look.groups = stack.groups;
    look.width = stack.width;
    look.bias = stack.bias ? stack.bias + stack.longest - 1 : nullptr;
    look.bias_stride = 2 * static_cast<size_t>(stack.longest) - 1;
    look.rectified = stack.rectified;
    look.scores = scores + member * columns;
    look.out = heads + first * narrow;
    look.out_stride = narrow;
    kernels->attend(look);
  });
  multiply(layer.self.output, heads, rows, x, After::kAdd, team, room);
  after(stack, layer.around_self, x, rows, team);
  feed_forward(stack, layer, x, rows, team, room);
}

// Keys, transposed, and values of x for one decoder layer.
void Model::remember(int layer, const float* x, const std::vector<int>& starts, Team& team, Workspace& room,
                     Source* out) const {
  const Stack& stack = decoder;
  const Layer& block = stack.blocks[layer];
  size_t wide = block.source.outputs;
  float* projected = room.wide.room(starts.back() * wide);
  multiply(block.source, x, starts.back(), projected, After::kNothing, team, room);
  team.run(static_cast<int>(starts.size()) - 1, [&](int s, int) {
    float* base = projected + starts[s] * wide;
    for (int t = 0; t < out[s].length; t++)
      prepare_heads(stack, block.cross.key_norm, nullptr, nullptr, base + t * wide, stack.groups);
    char* own = out[s].memory.room(0) + layer * out[s].size * number_size();
    if (halves) {
      arrange(stack, base, wide, out[s].length, reinterpret_cast<Half*>(own));
    } else {
      arrange(stack, base, wide, out[s].length, reinterpret_cast<float*>(own));
    }
  });
}

void Model::encode(const std::vector<std::pair<const int32_t*, int>>& sources, Team& team, Workspace& room,
                   Source* out) const {
  std::vector<int> starts(1, 0);
  for (size_t s = 0; s < sources.size(); s++) {
    Source& own = out[s];
    own.length = sources[s].second;
    own.transposed = static_cast<size_t>(sixteens(own.length)) * decoder.keys();
    own.size = own.transposed + static_cast<size_t>(own.length) * decoder.keys();
    const char* memory = own.memory.room(own.size * decoder.layers * number_size());
    own.places.resize(own.length);
    for (int t = 0; t < own.length; t++)
      own.places[t] = memory + (own.transposed + static_cast<size_t>(t) * decoder.width) * number_size();
    starts.push_back(starts.back() + own.length);
  }
  int rows = starts.back();
  size_t width = padded(d_model), all = rows * width;
  float* x = room.x.room(all);
  for (size_t s = 0; s < sources.size(); s++)
    for (int t = 0; t < sources[s].second; t++)
      embed(source_, encoder, sources[s].first[t], t, x + (starts[s] + t) * width);
  float* mixed = shares_ ? room.memory.room(all * decoder.layers) : nullptr;
  if (mixed) memset(mixed, 0, all * decoder.layers * sizeof(float));
  for (int l = 0; l < encoder.layers; l++) {
    encode_block(encoder.blocks[l], x, starts, team, room);
    if (l == encoder.layers - 1 && encoder.pre_norm) normalize(encoder.norm, encoder.final, x, rows, x, team);
    if (!shares_) continue;
    float* normed = room.normed.room(all);
    normalize(Norm::kLayer, wiring_[l], x, rows, normed, team);
    for (int d = 0; d < decoder.layers; d++) {
      float share = shares_[d * encoder.layers + l];
      for (size_t i = 0; share != 0 && i < all; i++) mixed[d * all + i] += share * normed[i];
    }
  }
  for (int d = 0; d < decoder.layers; d++) remember(d, mixed ? mixed + d * all : x, starts, team, room, out);
}

// -- decoder ----------------------------------------------------------------------------------------------------------

void Model::look_back(int layer, const std::vector<Row>& rows, float* x, Team& team, Workspace& room) const {
  const Stack& stack = decoder;
  const Layer& block = stack.blocks[layer];
  int count = static_cast<int>(rows.size()), longest = 0;
  for (const Row& row : rows) longest = std::max(longest, row.position + 1);
  const float* input = before(stack, block.around_self, x, count, team, room);
  size_t wide = block.self.project.outputs, narrow = block.self.output.inputs, columns = sixteens(longest);
  float* projected = room.wide.room(count * wide);
  multiply(block.self.project, input, count, projected, After::kNothing, team, room);
  float* unnormed = stack.unnormed_past ? room.unnormed.room(count * wide) : nullptr;
  if (unnormed) multiply(block.self.project, x, count, unnormed, After::kNothing, team, room);
  float* heads = room.heads.room(count * narrow);
  float* scores = room.scores.room(team.size() * columns);
  team.run(count, [&](int r, int member) {
    const Row& row = rows[r];
    float* own = projected + r * wide;
    if (unnormed) {
      // The first position attends only to its own normed value; all others to keys and values of unnormed states.
      if (row.position == 0)
        for (int h = 0; h < stack.heads; h++)
          memcpy(heads + r * narrow + h * stack.width,
                 own + stack.queries() + stack.keys() + h / (stack.heads / stack.groups) * stack.width,
                 stack.width * sizeof(float));
      memcpy(own + stack.queries(), unnormed + r * wide + stack.queries(), 2 * stack.keys() * sizeof(float));
    }
    const float* angles = stack.rotary ? stack.rotary + static_cast<size_t>(row.position) * stack.real_width : nullptr;
    prepare_heads(stack, block.self.query_norm, block.self.sharpness, angles, own, stack.heads);
    prepare_heads(stack, block.self.key_norm, nullptr, angles, own + stack.queries(), stack.groups);
    size_t side = row.group_stride * stack.groups, offset = 2 * side * layer;
    void* place = row.past[row.position];
    if (halves) {
      add_place(stack, own + stack.queries(), row.group_stride, static_cast<Half*>(place) + offset);
    } else {
      add_place(stack, own + stack.queries(), row.group_stride, static_cast<float*>(place) + offset);
    }
    memset(heads + r * narrow + stack.queries(), 0, (narrow - stack.queries()) * sizeof(float));
    if (unnormed && row.position == 0) return;
    Look look = {};
    look.query = own;
    look.queries = 1;
    look.halves = halves;
    look.rows = row.past;
    look.key_offset = offset;
    look.value_offset = offset + side;
    look.group_stride = row.group_stride;
    look.count = row.position + 1;
    look.heads = stack.heads;
    look.groups = stack.groups;
    look.width = stack.width;
    look.bias = stack.bias ? stack.bias + stack.longest - 1 - row.position : nullptr;
    look.bias_stride = 2 * static_cast<size_t>(stack.longest) - 1;
    look.rectified = stack.rectified;
    look.scores = scores + member * columns;
    look.out = heads + r * narrow;
    kernels->attend(look);
  });
  multiply(block.self.output, heads, count, x, After::kAdd, team, room);
  after(stack, block.around_self, x, count, team);
}

// Rows of one sentence are adjacent (`runs` are where they begin), so that its keys are read once for all of them.
void Model::look_at_source(int layer, const std::vector<Row>& rows, const std::vector<int>& runs, bool traced, float* x,
                           Team& team, Workspace& room) const {
  const Stack& stack = decoder;
  const Layer& block = stack.blocks[layer];
  int count = static_cast<int>(rows.size()), longest = 0;
  for (const Row& row : rows) longest = std::max(longest, row.source->length);
  const float* input = before(stack, block.around_cross, x, count, team, room);
  size_t wide = block.cross.project.outputs, narrow = block.cross.output.inputs, columns = sixteens(longest);
  float* projected = room.wide.room(count * wide);
  multiply(block.cross.project, input, count, projected, After::kNothing, team, room);
  float* heads = room.heads.room(count * narrow);
  float* scores = room.scores.room(team.size() * columns);
  team.run(static_cast<int>(runs.size()) - 1, [&](int run, int member) {
    int first = runs[run], queries = runs[run + 1] - first;
    for (int r = first; r < first + queries; r++) {
      prepare_heads(stack, block.cross.query_norm, block.cross.sharpness, nullptr, projected + r * wide, stack.heads);
      memset(heads + r * narrow + stack.queries(), 0, (narrow - stack.queries()) * sizeof(float));
    }
    const Source& source = *rows[first].source;
    Look look = {};
    look.query = projected + first * wide;
    look.query_stride = wide;
    look.queries = queries;
    look.halves = halves;
    look.rows = source.places.data();
    look.value_offset = layer * source.size;
    look.group_stride = static_cast<size_t>(source.length) * stack.width;
    look.transposed = source.memory.data() + layer * source.size * number_size();
    look.count = source.length;
    look.heads = stack.heads;
    look.groups = stack.groups;
    look.width = stack.width;
    look.rectified = stack.rectified;
    look.scores = scores + member * columns;
    look.out = heads + first * narrow;
    look.out_stride = narrow;
    look.weights = traced ? rows[first].cross : nullptr;  // a traced sentence has one row
    kernels->attend(look);
  });
  multiply(block.cross.output, heads, count, x, After::kAdd, team, room);
  after(stack, block.around_cross, x, count, team);
}

void Model::decode(const std::vector<Row>& rows, int traced, Team& team, Workspace& room) const {
  int count = static_cast<int>(rows.size());
  size_t width = padded(d_model);
  float* x = room.x.room(count * width);
  std::vector<int> runs;
  for (int r = 0; r < count; r++) {
    embed(target_, decoder, rows[r].token, rows[r].position, x + r * width);
    if (r == 0 || rows[r].source != rows[r - 1].source) runs.push_back(r);
  }
  runs.push_back(count);
  for (int l = 0; l < decoder.layers; l++) {
    look_back(l, rows, x, team, room);
    look_at_source(l, rows, runs, traced == l || traced == kEveryLayer, x, team, room);
    feed_forward(decoder, decoder.blocks[l], x, count, team, room);
  }
  if (decoder.pre_norm) normalize(decoder.norm, decoder.final, x, count, x, team);
}

}  // namespace transduce
