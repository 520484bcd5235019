// Greedy search, sampling and beam search over one sentence, with the rules of transduce/search: a sentence says which
// rows it wants advanced and what it must know of their logits, and takes what came of it. The driver (driver.cpp)
// advances the rows of many sentences together; no sentence sees another.
#pragma once
#include <stdint.h>

#include <utility>
#include <vector>

#include "model.h"

namespace transduce {

// What a call asks of all sentences; the same struct stands in transduce/engines/native/library.py.
struct Options {
  int32_t kind;  // 0 greedy, 1 beam, 2 sample, 3 forced: read given targets to their end
  int32_t size, kept, samples, shortest, no_repeat, top_k, traced, bos, eos, never_count;
  int32_t by_power, shrinking, unused;  // length_penalty's base; whether a finished path gives up its place; alignment
  double length_penalty, temperature, top_p;
  uint64_t seed;
  const int32_t* never;
};
enum { kGreedy, kBeam, kSample, kForced };

// What it asks of one, as views into the call's arrays.
struct Task {
  const int32_t* source;
  int source_length, longest;
  const int32_t* prefix;
  int prefix_length;
  const int32_t* exclude;  // phrases, each its length and then its tokens
  int64_t exclude_size;
  const int32_t* include;  // an automaton: tokens, nodes and wishes, then its tables (see Automaton)
  int64_t include_size;
  uint64_t key;
  const int32_t* stop;  // not zero from when nobody waits for this sentence any more; null: somebody always does
};

// transduce/search/constraints.py (`Automaton`), in one run of numbers: tokens (U), goto (M x U), complete (M x W), rest
// (M x W), needed (W).
struct Automaton {
  int tokens = 0, nodes = 0, wishes = 0;
  const int32_t *token = nullptr, *go_to = nullptr, *complete = nullptr, *rest = nullptr, *needed = nullptr;
  static Automaton read(const int32_t* data, int64_t size, int vocabulary);
  int after(int node, int token) const;
  uint64_t met_at(int node) const;
  uint64_t all() const { return wishes == 64 ? ~uint64_t{0} : (uint64_t{1} << wishes) - 1; }
  int total() const;
  int left(int node, uint64_t met) const;  // tokens still to write
};

// A token of some path; paths are told apart by where they end, and share their beginnings.
struct Node {
  int token, parent;  // parent -1: the start symbol
  float log_prob;
  int slot;           // which of the sentence's rows read it
};

struct Path {
  int node;
  float rank;
  int standing = 0;  // in the automaton
  uint64_t met = 0;
  uint64_t stream = 0;
  int number = 0;    // of a sample
};

// What a row must tell of its logits, and what it told.
struct Ask {
  int best = 0;                 // so many of the greatest, apart from those struck
  bool everything = false;      // all of them
  std::vector<int> struck;      // in order
  std::vector<int> wanted;      // these in any case
  std::vector<std::pair<float, int>> found;  // best first; of equals the lowest token
  std::vector<float> told;                   // of `wanted`
  std::vector<float> all;
  float highest = 0, log_sum = 0;
  float log_prob(float logit) const { return logit - highest - log_sum; }
};

// One hypothesis as it is handed back.
struct Found {
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;
  int32_t complete, number;
};

class Sentence {
 public:
  Sentence(const Options& options, const Task& task, const Model& model);

  bool done() const { return live_.empty(); }
  bool unwanted() const { return task.stop && __atomic_load_n(task.stop, __ATOMIC_RELAXED); }
  void abandon() { live_.clear(); }  // nothing is found
  int rows() const { return static_cast<int>(live_.size()); }
  int most_rows() const { return slots_; }
  int most_places() const { return slots_ * task.longest; }  // of keys and values, if all rows go on to the limit
  void prepare(Workspace& room, std::vector<Row>& rows, std::vector<Ask>& asks);  // appends those of the next step
  void take(Ask* asks);                                                          // the answers to them
  void forget(Workspace& room);                                                  // all but what was found

  Source source;
  std::vector<Found> found;
  std::vector<float> traced;  // [steps][source length]
  const Task task;

 private:
  void rules(const Path& path, Ask& ask, int& forced);
  bool struck(const Ask& ask, int token) const;
  void take_beam(Ask* asks);
  void take_steps(Ask* asks);
  int draw(const Path& path, Ask& ask) const;
  void keep(const Path& path, bool complete);
  std::vector<int> written(int node) const;

  struct Candidate {
    float total, log_prob;
    int parent, token, left;
  };
  void candidates(int parent, const Ask& ask, std::vector<Candidate>& out);
  void deal(std::vector<Candidate>& all) const;

  const Options& options_;
  const Model& model_;
  Automaton wanted_;
  int slots_, width_ = 1, step_ = 0;  // rows there are at most, and a beam's places that are left
  std::vector<int> never_, forced_;
  std::vector<float> penalties_;
  std::vector<Node> nodes_;
  std::vector<Path> live_;
  std::vector<std::pair<float, Path>> finished_;
  std::vector<Buffer<char>> memory_;        // keys and values, kSteps steps a block
  std::vector<std::vector<void*>> pasts_;   // of each row
};

}  // namespace transduce
