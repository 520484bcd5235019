// The C interface for Python's ctypes (which releases the GIL during calls): open, search, release, close. No exception
// crosses it: a failed call writes the reason and returns 1. transduce/engines/native/library.py mirrors it.
#include <string.h>

#include "driver.h"

namespace {

using namespace transduce;

struct Engine {
  Engine(const char* path, int threads, const Kernels* kernels) : model(path, kernels), pool(threads) {}
  Model model;
  Pool pool;
  Rooms rooms;
};

struct Arrays {  // inputs of a call; `ends` is where each sentence's part ends, `begins` where shared parts begin
  int32_t count, stoppable;  // stoppable: whether `stops` is set
  const int32_t* sources;
  const int64_t* source_ends;
  const int32_t* longest;
  const int32_t* prefixes;
  const int64_t* prefix_ends;
  const int32_t* excluded;
  const int64_t* excluded_begins;
  const int64_t* excluded_ends;
  const int32_t* included;
  const int64_t* included_begins;
  const int64_t* included_ends;
  const uint64_t* keys;
  const int32_t* const* stops;  // per sentence, the cell that cancels it, or null
};

struct Result {
  std::vector<int32_t> counts, lengths, complete, numbers, tokens;
  std::vector<float> log_probs, traced;
};

struct View {  // a result, to be copied by Python
  int64_t hypotheses, tokens, traced;
  const int32_t *counts, *lengths, *complete, *numbers, *written;
  const float *log_probs, *weights;
  Result* owner;
};

const Kernels* kernels_named(const char* name) {
  const Kernels* all[] = {avx512_kernels(), avxvnni_kernels(), avx2_kernels(), portable_kernels()};
  for (const Kernels* kernels : all)
    if (kernels && (!*name || !strcmp(kernels->name, name))) return kernels;
  throw Failure(std::string("kernels '") + name + "' cannot run on this machine; leave the choice to the program");
}

void check(bool holds, const char* what) {
  if (!holds) throw Failure(what);
}

void check_tokens(const int32_t* tokens, int64_t count, int vocabulary, const char* what) {
  for (int64_t i = 0; i < count; i++) check(tokens[i] >= 0 && tokens[i] < vocabulary, what);
}

void check_phrases(const int32_t* phrases, int64_t size, int vocabulary) {
  for (int64_t at = 0; at < size; at += 1 + phrases[at]) {
    check(phrases[at] >= 1 && phrases[at] < size - at, "exclude: its phrases do not fit together");
    check_tokens(phrases + at + 1, phrases[at], vocabulary, "exclude: a token outside the vocabulary");
  }
}

std::vector<Task> tasks_of(const Arrays& given, const Options& options, const Model& model) {
  constexpr int kMost = 1 << 12;
  bool sound = options.kind >= kGreedy && options.kind <= kForced && options.size >= 1 && options.size <= kMost &&
               options.kept >= 1 && options.kept <= options.size && options.samples >= 1 && options.samples <= kMost &&
               options.shortest >= 0 && options.no_repeat >= 0 && options.top_k >= 0 && options.never_count >= 0 &&
               options.traced >= kNoLayer && options.traced < model.decoder.layers;
  check(sound, "search: impossible settings");
  check(options.traced == kNoLayer || options.kind == kForced, "search: only given targets are traced");
  check_tokens(&options.bos, 1, model.target_vocabulary, "bos: outside the vocabulary");
  check_tokens(&options.eos, 1, model.target_vocabulary, "eos: outside the vocabulary");
  check_tokens(options.never, options.never_count, model.target_vocabulary, "forbid: a token outside the vocabulary");
  std::vector<Task> tasks;
  int64_t source = 0, prefix = 0;
  for (int32_t i = 0; i < given.count; i++) {
    Task task = {};
    int64_t length = given.source_ends[i] - source, forced = given.prefix_ends[i] - prefix;
    check(length >= 1 && length <= model.encoder.longest, "source: longer than the positions of this model");
    check(given.longest[i] >= 1 && given.longest[i] <= model.decoder.longest && forced >= 0 && forced <= given.longest[i],
          "longest: more than the positions of this model");
    task.source = given.sources + source;
    task.source_length = static_cast<int>(length);
    task.longest = given.longest[i];
    task.prefix = given.prefixes + prefix;
    task.prefix_length = static_cast<int>(forced);
    task.exclude = given.excluded + given.excluded_begins[i];
    task.exclude_size = given.excluded_ends[i] - given.excluded_begins[i];
    task.include = given.included + given.included_begins[i];
    task.include_size = given.included_ends[i] - given.included_begins[i];
    task.key = given.keys[i];
    task.stop = given.stoppable ? given.stops[i] : nullptr;
    check_tokens(task.source, length, model.source_vocabulary, "source: a token outside the vocabulary");
    check_tokens(task.prefix, forced, model.target_vocabulary, "prefix: a token outside the vocabulary");
    if (i == 0 || task.exclude != tasks.back().exclude)
      check_phrases(task.exclude, task.exclude_size, model.target_vocabulary);
    tasks.push_back(task);
    source = given.source_ends[i];
    prefix = given.prefix_ends[i];
  }
  return tasks;
}

void collect(const std::vector<std::unique_ptr<Sentence>>& sentences, View* view) {
  auto result = std::make_unique<Result>();
  for (auto& sentence : sentences) {
    result->counts.push_back(static_cast<int32_t>(sentence->found.size()));
    for (const Found& found : sentence->found) {
      result->lengths.push_back(static_cast<int32_t>(found.tokens.size()));
      result->complete.push_back(found.complete);
      result->numbers.push_back(found.number);
      result->tokens.insert(result->tokens.end(), found.tokens.begin(), found.tokens.end());
      result->log_probs.insert(result->log_probs.end(), found.log_probs.begin(), found.log_probs.end());
    }
    result->traced.insert(result->traced.end(), sentence->traced.begin(), sentence->traced.end());
  }
  *view = {static_cast<int64_t>(result->lengths.size()), static_cast<int64_t>(result->tokens.size()),
           static_cast<int64_t>(result->traced.size()), result->counts.data(), result->lengths.data(),
           result->complete.data(), result->numbers.data(), result->tokens.data(), result->log_probs.data(),
           result->traced.data(), nullptr};
  view->owner = result.release();
}

template <class Body>
int guarded(char* error, size_t room, const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::bad_alloc&) {
    strncpy(error, "out of memory", room - 1);
  } catch (const std::exception& failure) {
    strncpy(error, failure.what(), room - 1);
  } catch (...) {
    strncpy(error, "unknown failure", room - 1);
  }
  error[room - 1] = 0;
  return 1;
}

}  // namespace

#define INTERFACE extern "C" __attribute__((visibility("default")))

INTERFACE int transduce_open(const char* path, int threads, const char* kernels, void** engine, char* error, size_t room) {
  return guarded(error, room, [&] {
    check(threads >= 1 && threads <= 1024, "threads: expected a number from 1 to 1024");
    *engine = new Engine(path, threads, kernels_named(kernels));
  });
}

INTERFACE void transduce_close(void* engine) { delete static_cast<Engine*>(engine); }

// d_model, source and target vocabulary, longest source and target, decoder layers and heads
INTERFACE void transduce_sizes(void* engine, int32_t* sizes, char* kernels, size_t room) {
  const Model& model = static_cast<Engine*>(engine)->model;
  int32_t all[] = {model.d_model, model.source_vocabulary, model.target_vocabulary, model.encoder.longest,
                   model.decoder.longest, model.decoder.layers, model.decoder.heads};
  memcpy(sizes, all, sizeof all);
  strncpy(kernels, model.kernels->name, room - 1);
  kernels[room - 1] = 0;
}

INTERFACE int transduce_search(void* engine, const Options* options, const Arrays* given, View* view, char* error,
                               size_t room) {
  return guarded(error, room, [&] {
    Engine& own = *static_cast<Engine*>(engine);
    std::vector<Task> tasks = tasks_of(*given, *options, own.model);
    std::vector<std::unique_ptr<Sentence>> sentences;
    search_all(own.model, own.pool, own.rooms, *options, tasks, sentences);
    collect(sentences, view);
  });
}

INTERFACE void transduce_release(View* view) { delete view->owner; }

// For tests: rows of floats, quantized, times a packed int8 matrix, by the kernels of a given name.
INTERFACE int transduce_multiply(const char* kernels, const uint8_t* panels, const float* scales, const float* bias,
                                 int outputs, int inputs, const float* x, int rows, float* out, char* error, size_t room) {
  return guarded(error, room, [&] {
    Matrix matrix;
    matrix.outputs = outputs;
    matrix.inputs = inputs;
    matrix.bytes = panels;
    matrix.scales = scales;
    matrix.bias = bias;
    std::vector<int8_t> values(static_cast<size_t>(rows) * inputs);
    std::vector<float> x_scales(rows);
    std::vector<int32_t> offsets(rows), rests(rows);
    std::vector<Rest> rest(values.size() / 4);
    const Kernels* chosen = kernels_named(kernels);
    Quantized quantized = {values.data(), x_scales.data(), offsets.data(), rest.data(), rests.data()};
    chosen->quantize(x, rows, inputs, quantized);
    chosen->multiply_int8(matrix, 0, outputs / kPanel, quantized, rows, out, outputs, After::kNothing);
  });
}
