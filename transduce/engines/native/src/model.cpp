// Reading a model: sizes first, each within bounds, then tensors of exactly the shapes that follow from them.
#include "model.h"

#include <limits>

namespace transduce {
namespace {

constexpr int kMostInputs = 1 << 16;  // of a matrix: products of bytes, at most 255 times 127, add up within 32 bits

int within(int32_t value, int least, int most, const std::string& name) {
  if (value < least || value > most)
    throw Failure("is damaged: " + name + " is " + std::to_string(value) + ", and must be from " +
                  std::to_string(least) + " to " + std::to_string(most));
  return value;
}

}  // namespace

Model::Model(const char* path, const Kernels* chosen) : kernels(chosen), file_(path) {
  const int32_t* sizes = file_.integers("sizes", 4);
  d_model = within(sizes[0], 1, 1 << 14, "d_model");
  source_vocabulary = within(sizes[1], 1, 1 << 22, "the source vocabulary");
  target_vocabulary = within(sizes[2], 1, 1 << 22, "the target vocabulary");
  bool wired = within(sizes[3], 0, 1, "wiring");
  embedding_scale_ = *file_.floats("embedding_scale", 1, 1);
  source_ = file_.matrix("source", source_vocabulary, d_model);
  target_ = file_.matrix("target", target_vocabulary, d_model);
  output_ = file_.matrix("output", target_vocabulary, d_model, -std::numeric_limits<float>::infinity());
  halves = output_.bytes != nullptr;
  encoder = read_stack("encoder");
  decoder = read_stack("decoder");
  if (wired) {
    shares_ = file_.floats("shares", decoder.layers, encoder.layers);
    for (int i = 0; i < encoder.layers; i++) wiring_.push_back(read_norm("wiring." + std::to_string(i)));
  }
}

int Model::threads_for(int rows) const {
  constexpr double kProducts = 1 << 17;  // multiplications that a thread does in a few microseconds
  const Layer& block = decoder.blocks[0];
  double total = 0, count = 0;
  for (const Matrix* matrix : {&block.self.project, &block.self.output, &block.cross.project, &block.cross.output,
                               &block.inner, &block.outer}) {
    total += static_cast<double>(matrix->outputs) * matrix->inputs;
    count++;
  }
  return 1 + static_cast<int>(std::min(1e6, rows * total / count / kProducts));
}

NormWeights Model::read_norm(const std::string& name) const {
  return {file_.floats(name + ".gain", 1, padded(d_model)), file_.floats(name + ".shift", 1, padded(d_model))};
}

Attention Model::read_attention(const Stack& stack, const std::string& name, bool cross) const {
  Attention found;
  found.project = file_.matrix(name + ".project", stack.queries() + (cross ? 0 : 2 * stack.keys()), d_model);
  found.output = file_.matrix(name + ".output", d_model, stack.queries());
  if (stack.query_key_norm) {
    found.query_norm = file_.floats(name + ".query_norm", 1, stack.width);
    found.key_norm = file_.floats(name + ".key_norm", 1, stack.width);
  }
  if (stack.cosine) found.sharpness = file_.floats(name + ".sharpness", 1, stack.heads);
  return found;
}

Stack Model::read_stack(const std::string& name) {
  const int32_t* sizes = file_.integers(name, 16);
  Stack stack;
  stack.layers = within(sizes[0], 1, 1 << 10, name + ".layers");
  stack.heads = within(sizes[1], 1, 1 << 10, name + ".heads");
  stack.groups = within(sizes[2], 1, stack.heads, name + ".key_heads");
  stack.width = within(sizes[3], 16, 1 << 14, name + ".width");
  stack.real_width = within(sizes[4], 1, stack.width, name + ".real_width");
  stack.feed_forward = within(sizes[5], 1, kMostInputs, name + ".d_ff");
  stack.longest = within(sizes[6], 1, 1 << 20, name + ".longest");
  stack.activation = static_cast<Activation>(within(sizes[7], 0, 4, name + ".activation"));
  stack.norm = static_cast<Norm>(within(sizes[8], 0, 2, name + ".norm"));
  stack.pre_norm = within(sizes[9], 0, name == "decoder" ? 2 : 1, name + ".pre_norm") > 0;
  stack.unnormed_past = sizes[9] == 2;
  stack.query_key_norm = within(sizes[10], 0, 1, name + ".query_key_norm");
  stack.cosine = within(sizes[11], 0, 1, name + ".cosine");
  stack.rectified = within(sizes[12], 0, 1, name + ".rectified");
  if (stack.heads % stack.groups || stack.width % 16 || stack.queries() > kMostInputs)
    throw Failure("is damaged: " + name + " has impossible heads");
  if (sizes[13]) stack.positions = file_.floats(name + ".positions", stack.longest, padded(d_model));
  if (sizes[14]) {
    if (stack.real_width % 2) throw Failure("is damaged: " + name + " turns heads of odd width");
    stack.rotary = file_.floats(name + ".rotary", stack.longest, stack.real_width);
  }
  if (sizes[15]) stack.bias = file_.floats(name + ".bias", stack.heads, 2 * stack.longest - 1);
  bool gated = stack.activation == Activation::kSwiglu || stack.activation == Activation::kGeglu;
  bool decoder = name == "decoder";
  for (int i = 0; i < stack.layers; i++) {
    std::string own = name + "." + std::to_string(i);
    Layer layer;
    layer.self = read_attention(stack, own + ".self", false);
    layer.around_self = read_norm(own + ".around_self");
    if (decoder) {
      layer.cross = read_attention(stack, own + ".cross", true);
      layer.around_cross = read_norm(own + ".around_cross");
      layer.source = file_.matrix(own + ".source", 2 * stack.keys(), d_model);
    }
    layer.inner = file_.matrix(own + ".inner", gated ? 2 * padded(stack.feed_forward) : stack.feed_forward, d_model);
    layer.outer = file_.matrix(own + ".outer", d_model, stack.feed_forward);
    layer.around_feed_forward = read_norm(own + ".around_feed_forward");
    stack.blocks.push_back(layer);
  }
  if (stack.pre_norm) stack.final = read_norm(name + ".final");
  return stack;
}

}  // namespace transduce
