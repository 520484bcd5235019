// The numbers of the lines in transduce/search/{beam,stepwise,constraints,lexical}.py, in the same order and precision:
// tests hold the two to the same tokens.
#include "search.h"

#include <math.h>

#include <algorithm>
#include <limits>

namespace transduce {
namespace {

constexpr int kSteps = 8;  // that a block of remembered keys and values holds
constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kIncomplete = 1e9f;  // taken from the score of a path that ended before all was included

// The output function of splitmix64 (Steele, Lea and Flood 2014).
uint64_t mix(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  return bits ^ (bits >> 31);
}

double uniform(uint64_t stream, int step) {
  uint64_t high = mix(stream + (static_cast<uint64_t>(step) + 1) * 0x9E3779B97F4A7C15u) >> 11;
  return static_cast<double>(high) * 0x1p-53;
}

}  // namespace

// -- phrases that must appear -----------------------------------------------------------------------------------------

Automaton Automaton::read(const int32_t* data, int64_t size, int vocabulary) {
  Automaton found;
  if (!size) return found;
  int64_t tokens = data[0], nodes = data[1], wishes = data[2];
  if (tokens < 1 || nodes < 1 || wishes < 1 || wishes > 64 || size != 3 + tokens + nodes * (tokens + 2 * wishes) + wishes)
    throw Failure("include: its tables do not fit together");
  found.tokens = static_cast<int>(tokens);
  found.nodes = static_cast<int>(nodes);
  found.wishes = static_cast<int>(wishes);
  found.token = data + 3;
  found.go_to = found.token + tokens;
  found.complete = found.go_to + nodes * tokens;
  found.rest = found.complete + nodes * wishes;
  found.needed = found.rest + nodes * wishes;
  for (int64_t i = 0; i < tokens; i++)
    if (found.token[i] < 0 || found.token[i] >= vocabulary) throw Failure("include: a token outside the vocabulary");
  for (int64_t i = 0; i < nodes * tokens; i++)
    if (found.go_to[i] < 0 || found.go_to[i] >= nodes) throw Failure("include: its tables do not fit together");
  return found;
}

int Automaton::after(int node, int written) const {
  const int32_t* place = std::lower_bound(token, token + tokens, written);
  return place < token + tokens && *place == written ? go_to[node * tokens + (place - token)] : 0;
}

uint64_t Automaton::met_at(int node) const {
  uint64_t met = 0;
  for (int w = 0; w < wishes; w++) met |= static_cast<uint64_t>(complete[node * wishes + w] != 0) << w;
  return met;
}

int Automaton::total() const {
  int total = 0;
  for (int w = 0; w < wishes; w++) total += needed[w];
  return total;
}

int Automaton::left(int node, uint64_t met) const {
  int unmet = 0, begun = 0;
  for (int w = 0; w < wishes; w++) {
    if (met >> w & 1) continue;
    unmet += needed[w];
    begun = std::max(begun, needed[w] - rest[node * wishes + w]);
  }
  return unmet - begun;
}

// -- a sentence -------------------------------------------------------------------------------------------------------

Sentence::Sentence(const Options& options, const Task& asked, const Model& model)
    : task(asked), options_(options), model_(model),
      wanted_(Automaton::read(asked.include, asked.include_size, model.target_vocabulary)) {
  bool beam = options.kind == kBeam;
  slots_ = beam ? std::max<int>(options.size, wanted_.total() + 1) : options.kind == kSample ? options.samples : 1;
  never_.assign(options.never, options.never + options.never_count);
  std::sort(never_.begin(), never_.end());
  nodes_.push_back({options.bos, -1, 0, 0});
  for (int i = 0; i < (beam ? 1 : slots_); i++) {
    Path path = {0, 0};
    path.number = i;
    path.stream = mix(mix(mix(options.seed) ^ task.key) ^ static_cast<uint64_t>(i));
    live_.push_back(path);
  }
  for (int length = 0; beam && length < task.longest + 2; length++)
    penalties_.push_back(static_cast<float>(
        pow(options.by_power ? std::max(length, 1) : (5.0 + length) / 6.0, options.length_penalty)));
  width_ = slots_;
}

std::vector<int> Sentence::written(int node) const {
  std::vector<int> tokens;
  for (; nodes_[node].parent >= 0; node = nodes_[node].parent) tokens.push_back(nodes_[node].token);
  std::reverse(tokens.begin(), tokens.end());
  return tokens;
}

// Which tokens may not follow, and which one must: the rules of rules.py and that of `LexicalConstraints` in beam.py.
void Sentence::rules(const Path& path, Ask& ask, int& forced) {
  forced = step_ < task.prefix_length ? task.prefix[step_] : -1;
  if (forced >= 0) return;  // a prefix overrules the others
  ask.struck = never_;
  if (step_ < options_.shortest + task.prefix_length || path.met != wanted_.all()) ask.struck.push_back(options_.eos);
  size_t size = static_cast<size_t>(options_.no_repeat);
  if ((size && step_ >= options_.no_repeat) || task.exclude_size) {
    std::vector<int> tokens = written(path.node);
    for (size_t i = 0; size && i + size <= tokens.size(); i++)
      if (std::equal(tokens.begin() + i, tokens.begin() + i + size - 1, tokens.end() - (size - 1)))
        ask.struck.push_back(tokens[i + size - 1]);
    for (int64_t at = 0; at < task.exclude_size; at += 1 + task.exclude[at]) {
      const int32_t* phrase = task.exclude + at + 1;
      size_t head = static_cast<size_t>(task.exclude[at]) - 1;
      if (head <= tokens.size() && std::equal(phrase, phrase + head, tokens.end() - head))
        ask.struck.push_back(phrase[head]);
    }
  }
  if (wanted_.wishes) {  // tokens that leave too little room; of `others` the driver is told by `best`
    int room = task.longest - step_ - 1, spare = std::min(0, room - wanted_.left(path.standing, path.met));
    for (int i = 0; i < wanted_.tokens; i++) {
      int node = wanted_.go_to[path.standing * wanted_.tokens + i];
      if (room - 1 - wanted_.left(node, path.met | wanted_.met_at(node)) < spare) ask.struck.push_back(wanted_.token[i]);
    }
    if (room - 1 - wanted_.left(0, path.met | wanted_.met_at(0)) < spare) ask.best = 0;
  }
  std::sort(ask.struck.begin(), ask.struck.end());
}

bool Sentence::struck(const Ask& ask, int token) const {
  return std::binary_search(ask.struck.begin(), ask.struck.end(), token);
}

void Sentence::prepare(Workspace& room, std::vector<Row>& rows, std::vector<Ask>& asks) {
  size_t width = model_.decoder.width, group_stride = width * kSteps * slots_;
  size_t block = 2 * group_stride * model_.decoder.groups * model_.decoder.layers * model_.number_size();
  if (step_ % kSteps == 0) memory_.push_back(room.blocks.take(block));
  if (options_.traced != kNoLayer) traced.resize(traced.size() + source.length, 0.0f);
  pasts_.resize(live_.size());
  forced_.assign(live_.size(), -1);
  for (size_t i = 0; i < live_.size(); i++) {
    nodes_[live_[i].node].slot = static_cast<int>(i);
    pasts_[i].resize(step_ + 1);
    for (int node = live_[i].node, t = step_; t >= 0; node = nodes_[node].parent, t--)
      pasts_[i][t] = memory_[t / kSteps].room(0) + (nodes_[node].slot * kSteps + t % kSteps) * width * model_.number_size();
    float* cross = traced.empty() ? nullptr : traced.data() + traced.size() - source.length;
    rows.push_back({&source, nodes_[live_[i].node].token, step_, pasts_[i].data(), group_stride, cross});
    Ask ask;
    ask.best = options_.kind == kBeam ? 2 * slots_ : 1;
    rules(live_[i], ask, forced_[i]);
    if (forced_[i] >= 0) {
      ask.best = 0;
      ask.wanted.push_back(forced_[i]);
    } else {
      ask.everything = options_.kind == kSample;
      if (ask.everything) ask.best = 0;
      ask.wanted.push_back(options_.eos);  // where nothing else may follow
      if (wanted_.wishes) {
        ask.wanted.insert(ask.wanted.end(), wanted_.token, wanted_.token + wanted_.tokens);
        ask.struck.insert(ask.struck.end(), wanted_.token, wanted_.token + wanted_.tokens);
        ask.struck.push_back(options_.eos);  // told by `wanted`, so that `best` are the others
        std::sort(ask.struck.begin(), ask.struck.end());
      }
    }
    asks.push_back(std::move(ask));
  }
}

void Sentence::forget(Workspace& room) {
  for (Buffer<char>& block : memory_) room.blocks.give(std::move(block));
  memory_.clear();
  pasts_ = {};
  nodes_ = {};
  source = Source();
}

// A path's end: its tokens from the tree.
void Sentence::keep(const Path& path, bool complete) {
  Found hypothesis;
  for (int node = path.node; nodes_[node].parent >= 0; node = nodes_[node].parent) {
    hypothesis.tokens.push_back(nodes_[node].token);
    hypothesis.log_probs.push_back(nodes_[node].log_prob);
  }
  std::reverse(hypothesis.tokens.begin(), hypothesis.tokens.end());
  std::reverse(hypothesis.log_probs.begin(), hypothesis.log_probs.end());
  hypothesis.complete = complete;
  hypothesis.number = path.number;
  found.push_back(std::move(hypothesis));
}

void Sentence::take(Ask* asks) {
  options_.kind == kBeam ? take_beam(asks) : take_steps(asks);
  step_++;
}

// -- greedy search and sampling ---------------------------------------------------------------------------------------

// constraints.py: a row to which nothing is left may end, at a log-probability that is finite.
static float end_of(const Ask& ask) {
  float end = ask.log_prob(ask.told[0]), lowest = -std::numeric_limits<float>::max() / 1e9f;
  return end > lowest ? end : lowest;
}

void Sentence::take_steps(Ask* asks) {
  std::vector<Path> going;
  for (size_t i = 0; i < live_.size(); i++) {
    Ask& ask = asks[i];
    Path path = live_[i];
    int token = options_.eos;
    float log_prob = end_of(ask);
    if (forced_[i] >= 0) {
      token = forced_[i];
      log_prob = ask.log_prob(ask.told[0]);
    } else if (options_.kind == kSample) {
      int drawn = draw(path, ask);
      if (drawn >= 0) {
        token = drawn;
        log_prob = ask.all[drawn];
      }
    } else if (!ask.found.empty()) {
      token = ask.found[0].second;
      log_prob = ask.log_prob(ask.found[0].first);
    }
    nodes_.push_back({token, path.node, log_prob, 0});
    path.node = static_cast<int>(nodes_.size()) - 1;
    bool ended = (token == options_.eos && options_.kind != kForced) || task.longest <= step_ + 1;
    ended ? keep(path, true) : going.push_back(path);
  }
  live_.swap(going);
}

// sampling.py: temperature, the most probable, the fewest that hold `top_p`, and the token at which the cumulative
// distribution passes the draw. -1 where no token may be written.
int Sentence::draw(const Path& path, Ask& ask) const {
  size_t vocabulary = static_cast<size_t>(model_.target_vocabulary);
  for (size_t v = 0; v < vocabulary; v++) {
    ask.all[v] = ask.log_prob(ask.all[v]);
    if (!(ask.all[v] > kNever)) ask.all[v] = kNever;  // what is not a number cannot be sorted
  }
  for (int token : ask.struck) ask.all[token] = kNever;
  std::vector<float> scaled(vocabulary);
  float temperature = static_cast<float>(options_.temperature), least = kNever;
  for (size_t v = 0; v < vocabulary; v++) scaled[v] = ask.all[v] / temperature;
  float highest = *std::max_element(scaled.begin(), scaled.end());
  if (!(highest > kNever)) return -1;
  if (options_.top_k > 0 && static_cast<size_t>(options_.top_k) < vocabulary) {
    std::vector<float> ranked(scaled);
    std::nth_element(ranked.begin(), ranked.begin() + options_.top_k - 1, ranked.end(), std::greater<float>());
    least = ranked[options_.top_k - 1];
    for (float& x : scaled)
      if (x < least) x = kNever;
  }
  if (options_.top_p < 1) {
    std::vector<float> ranked(scaled);
    std::sort(ranked.begin(), ranked.end(), std::greater<float>());
    double total = 0, before = 0;
    for (float x : ranked) total += exp(static_cast<double>(x) - ranked[0]);
    for (float x : ranked) {
      if (before >= options_.top_p) break;
      least = x;
      before += exp(static_cast<double>(x) - ranked[0]) / total;
    }
    for (float& x : scaled)
      if (x < least) x = kNever;
  }
  double total = 0;
  for (float x : scaled) total += exp(static_cast<double>(x - highest));
  double place = std::min(uniform(path.stream, step_) * total, nextafter(total, 0.0)), passed = 0;
  for (size_t v = 0; v < vocabulary; v++) {
    passed += exp(static_cast<double>(scaled[v] - highest));
    if (passed > place) return static_cast<int>(v);
  }
  return -1;
}

// -- beam search ------------------------------------------------------------------------------------------------------

// How one path may go on. With phrases to include, `told` holds the end symbol's logit and those of their tokens.
void Sentence::candidates(int parent, const Ask& ask, std::vector<Candidate>& out) {
  const Path& path = live_[parent];
  size_t before = out.size();
  auto add = [&](float log_prob, int token) {
    int node = wanted_.after(path.standing, token);
    int left = token == options_.eos ? 0 : wanted_.left(node, path.met | wanted_.met_at(node));
    if (log_prob > kNever) out.push_back({path.rank + log_prob, log_prob, parent, token, left});
  };
  if (forced_[parent] >= 0) return add(ask.log_prob(ask.told[0]), forced_[parent]);
  for (auto& [logit, token] : ask.found) add(ask.log_prob(logit), token);
  if (wanted_.wishes) {
    Ask own;  // what the rules alone strike: ask.struck holds these phrases' tokens besides
    int forced;
    own.best = 1;
    rules(path, own, forced);
    for (int i = 0; i < wanted_.tokens; i++)
      if (!struck(own, wanted_.token[i])) add(ask.log_prob(ask.told[1 + i]), wanted_.token[i]);
    if (!struck(own, options_.eos)) add(ask.log_prob(ask.told[0]), options_.eos);
  }
  if (out.size() == before) add(end_of(ask), options_.eos);
}

// `LexicalConstraints` in beam.py: in turn one of each number of tokens left, best totals first.
void Sentence::deal(std::vector<Candidate>& all) const {
  std::vector<int> turns(static_cast<size_t>(wanted_.total()) + 1, 0);
  std::vector<std::pair<std::pair<int, int>, Candidate>> keyed;
  for (const Candidate& one : all) {
    int left = std::min<int>(std::max(one.left, 0), wanted_.total());
    keyed.push_back({{++turns[left], one.left}, one});
  }
  std::stable_sort(keyed.begin(), keyed.end(), [](auto& a, auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < all.size(); i++) all[i] = keyed[i].second;
}

void Sentence::take_beam(Ask* asks) {
  std::vector<Candidate> all;
  for (size_t i = 0; i < live_.size(); i++) candidates(static_cast<int>(i), asks[i], all);
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.total != b.total ? a.total > b.total : a.parent != b.parent ? a.parent < b.parent : a.token < b.token;
  });
  if (wanted_.wishes) deal(all);
  all.resize(std::min(all.size(), static_cast<size_t>(2 * slots_)));
  std::vector<Path> going;
  size_t width = static_cast<size_t>(width_), ends = 0;
  for (size_t i = 0; options_.shrinking && i < std::min(width, all.size()); i++) ends += all[i].token == options_.eos;
  width_ -= static_cast<int>(ends);
  for (size_t i = 0; i < all.size(); i++) {
    const Candidate& one = all[i];
    bool ended = one.token == options_.eos;
    if (ended ? i >= width : going.size() >= static_cast<size_t>(width_)) continue;
    Path path = live_[one.parent];
    nodes_.push_back({one.token, path.node, one.log_prob, 0});
    path.node = static_cast<int>(nodes_.size()) - 1;
    path.rank = one.total;
    path.standing = wanted_.after(path.standing, one.token);
    path.met |= wanted_.wishes ? wanted_.met_at(path.standing) : 0;
    if (!ended) {
      going.push_back(path);
      continue;
    }
    float score = one.total / penalties_[step_ + 1] - (path.met == wanted_.all() ? 0.0f : kIncomplete);
    auto place = std::upper_bound(finished_.begin(), finished_.end(), score, [](float s, auto& f) { return s > f.first; });
    finished_.insert(place, {score, path});
    if (finished_.size() > static_cast<size_t>(options_.kept)) finished_.pop_back();
  }
  live_.swap(going);
  // A live path cannot score more than now, by the penalty that flatters it most. One that could not displace what is
  // kept is not advanced any further: all that it leaves its place to has a lower total, and cannot either. Only in a
  // shrinking beam its end would count, and leave less room to others.
  int length = step_ + 1;
  float kindest = penalties_[options_.length_penalty >= 0 ? task.longest : length + 1];
  bool full = finished_.size() == static_cast<size_t>(options_.kept);
  auto beaten = [&](const Path& path) { return full && finished_.back().first >= path.rank / kindest; };
  bool decided = task.longest <= length || std::all_of(live_.begin(), live_.end(), beaten);
  if (!wanted_.wishes && !options_.shrinking) live_.erase(std::remove_if(live_.begin(), live_.end(), beaten), live_.end());
  if (!decided) return;
  for (auto& [score, path] : finished_) keep(path, path.met == wanted_.all());
  for (size_t i = 0; !full && i < live_.size(); i++) keep(live_[i], live_[i].met == wanted_.all());
  live_.clear();
}

}  // namespace transduce
