#include "driver.h"

#include <math.h>
#include <string.h>

#include <functional>
#include <limits>
#include <numeric>

namespace transduce {
namespace {

constexpr int kFewRows = 8;     // rows per thread below which all threads work on the same rows
constexpr int kManyRows = 128;  // rows that one thread advances together
constexpr int kManyPlaces = 9216;  // positions of keys and values of these rows, if each reaches its limit
constexpr int kManyTokens = 512;  // source tokens encoded together: more are no faster, and need more memory

// One thread's part of the answers about logits, collected block by block.
class Listener {
 public:
  Listener(const Model& model, std::vector<Ask>& asks, int members) : model_(model), asks_(asks), members_(members) {
    stretches_ = (model.target_vocabulary + kStretch - 1) / kStretch;
    facts_.resize(asks.size() * stretches_);
    best_.resize(asks.size() * members);
    places_.resize(static_cast<size_t>(members) * kStretch);
    for (Ask& ask : asks) {
      ask.told.resize(ask.wanted.size());
      if (ask.everything) ask.all.resize(static_cast<size_t>(stretches_) * kStretch);
    }
  }

  void hear(int row, const Logits& logits, int stretch, int member) {
    Ask& ask = asks_[row];
    float* values = const_cast<float*>(logits.values);  // our own copy: not read afterwards
    float highest = model_.kernels->largest(values, logits.count);
    facts_[row * stretches_ + stretch] = {highest, model_.kernels->sum_of_exponentials(values, logits.count, highest)};
    int end = logits.first + logits.count;
    for (size_t i = 0; i < ask.wanted.size(); i++)
      if (ask.wanted[i] >= logits.first && ask.wanted[i] < end) ask.told[i] = values[ask.wanted[i] - logits.first];
    if (ask.everything) memcpy(ask.all.data() + logits.first, values, logits.count * sizeof(float));
    if (!ask.best) return;
    auto& best = best_[row * members_ + member];
    size_t most = static_cast<size_t>(ask.best);
    float limit = best.size() < most ? -INFINITY : best.back().first;
    if (!(highest > limit)) return;
    for (auto token = std::lower_bound(ask.struck.begin(), ask.struck.end(), logits.first);
         token != ask.struck.end() && *token < end; ++token)
      values[*token - logits.first] = -INFINITY;
    if (best.size() < most) limit = std::max(limit, safe_limit(values, logits.count, most));
    int* places = places_.data() + static_cast<size_t>(member) * kStretch;
    int count = model_.kernels->places_above(values, logits.count, limit, places);
    for (int i = 0; i < count; i++) {
      float value = values[places[i]];
      if (best.size() == most) {
        if (!(value > best.back().first)) continue;
        best.pop_back();
      }
      auto place = std::upper_bound(best.begin(), best.end(), value, [](float v, auto& b) { return v > b.first; });
      best.insert(place, {value, logits.first + places[i]});
    }
  }

  // Merge the parts of all blocks and threads, in an order that does not depend on the threads.
  void finish() {
    for (size_t row = 0; row < asks_.size(); row++) {
      Ask& ask = asks_[row];
      ask.highest = -INFINITY;
      for (int s = 0; s < stretches_; s++) ask.highest = std::max(ask.highest, facts_[row * stretches_ + s].first);
      float total = 0;
      for (int s = 0; s < stretches_; s++) {
        auto& [highest, sum] = facts_[row * stretches_ + s];
        total += sum * expf(highest - ask.highest);
      }
      ask.log_sum = logf(total);
      for (int m = 0; m < members_; m++) {
        auto& heard = best_[row * members_ + m];
        ask.found.insert(ask.found.end(), heard.begin(), heard.end());
      }
      if (members_ > 1)
        std::sort(ask.found.begin(), ask.found.end(), [](auto& a, auto& b) {
          return a.first != b.first ? a.first > b.first : a.second < b.second;
        });
      if (ask.found.size() > static_cast<size_t>(ask.best)) ask.found.resize(ask.best);
    }
  }

 private:
  // A first threshold below the `most` greatest: so many parts of the block have a maximum at or above it.
  float safe_limit(const float* values, int count, size_t most) const {
    float tops[kStretch / kPanel];
    size_t parts = static_cast<size_t>(count / kPanel);
    if (parts < most) return -INFINITY;
    for (size_t i = 0; i < parts; i++) tops[i] = model_.kernels->largest(values + i * kPanel, kPanel);
    std::nth_element(tops, tops + most - 1, tops + parts, std::greater<float>());
    return nextafterf(tops[most - 1], -INFINITY);
  }

  const Model& model_;
  std::vector<Ask>& asks_;
  int members_, stretches_;
  std::vector<std::pair<float, float>> facts_;
  std::vector<std::vector<std::pair<float, int>>> best_;
  std::vector<int> places_;
};

// The queue of waiting sentences, longest first, handed to threads with free capacity.
class Queue {
 public:
  Queue(std::vector<std::unique_ptr<Sentence>>& sentences) : sentences_(sentences), order_(sentences.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
      return sentences[a]->task.source_length > sentences[b]->task.source_length;
    });
  }
  // The next sentence whose keys and values fit in so many positions.
  Sentence* next(int places) {
    for (size_t turn = given_.load(); turn < order_.size();) {
      Sentence* sentence = sentences_[order_[turn]].get();
      if (sentence->most_places() > places) return nullptr;
      if (given_.compare_exchange_weak(turn, turn + 1)) return sentence;
    }
    return nullptr;
  }

 private:
  std::vector<std::unique_ptr<Sentence>>& sentences_;
  std::vector<int> order_;
  std::atomic<size_t> given_{0};
};

void encode(const Model& model, Sentence** fresh, size_t count, Team& team, Workspace& room) {
  std::vector<std::pair<const int32_t*, int>> tokens;
  std::vector<Source> sources(count);
  for (size_t i = 0; i < count; i++) tokens.emplace_back(fresh[i]->task.source, fresh[i]->task.source_length);
  model.encode(tokens, team, room, sources.data());
  for (size_t i = 0; i < count; i++) fresh[i]->source = std::move(sources[i]);
}

void take_in(const Model& model, Queue& queue, int most, Team& team, Workspace& room, std::vector<Sentence*>& active) {
  int rows = 0, places = 0;
  auto count = [&](Sentence* sentence) {
    rows += sentence->most_rows();
    places += sentence->most_places();
  };
  for (Sentence* sentence : active) count(sentence);
  if (rows > most / 2 || places > kManyPlaces / 2) return;
  std::vector<Sentence*> fresh;
  while (rows == 0 || rows < most) {
    Sentence* sentence = queue.next(rows == 0 ? std::numeric_limits<int>::max() : kManyPlaces - places);
    if (!sentence) break;
    if (sentence->unwanted()) continue;
    count(sentence);
    fresh.push_back(sentence);
  }
  if (fresh.empty()) return;
  for (size_t begin = 0, end = 0; begin < fresh.size(); begin = end) {
    int count = 0;
    while (end < fresh.size() && (end == begin || count + fresh[end]->task.source_length <= kManyTokens))
      count += fresh[end++]->task.source_length;
    encode(model, fresh.data() + begin, end - begin, team, room);
  }
  active.insert(active.end(), fresh.begin(), fresh.end());
}

void let_go(std::vector<Sentence*>& active, Workspace& room) {
  auto left = std::partition(active.begin(), active.end(), [](Sentence* s) { return !s->done(); });
  for (auto done = left; done != active.end(); ++done) (*done)->forget(room);
  active.erase(left, active.end());
}

void drive(const Model& model, Queue& queue, int most, int traced, Team& team, Workspace& room) {
  std::vector<Sentence*> active;
  std::vector<Row> rows;
  std::vector<Ask> asks;
  while (true) {
    for (Sentence* sentence : active)
      if (sentence->unwanted()) sentence->abandon();
    let_go(active, room);
    take_in(model, queue, most, team, room, active);
    if (active.empty()) return;
    rows.clear();
    asks.clear();
    for (Sentence* sentence : active) sentence->prepare(room, rows, asks);
    if (traced != kNoLayer) {  // attention to given targets: the logits would be half of the work, and nobody reads them
      model.decode(rows, traced, team, room);
      for (Ask& ask : asks) ask.told.assign(ask.wanted.size(), 0.0f);
    } else {
      Listener listener(model, asks, team.size());
      model.advance(rows, traced, team, room, [&](int row, const Logits& logits, int stretch, int member) {
        listener.hear(row, logits, stretch, member);
      });
      listener.finish();
    }
    Ask* own = asks.data();
    for (Sentence* sentence : active) {
      int count = sentence->rows();
      sentence->take(own);
      own += count;
    }
    let_go(active, room);
  }
}

}  // namespace

std::unique_ptr<Workspace> Rooms::take() {
  std::lock_guard<std::mutex> guard(lock_);
  if (rooms_.empty()) return std::make_unique<Workspace>();
  std::unique_ptr<Workspace> room = std::move(rooms_.back());
  rooms_.pop_back();
  return room;
}

void Rooms::give_back(std::unique_ptr<Workspace> room) {
  std::lock_guard<std::mutex> guard(lock_);
  rooms_.push_back(std::move(room));
}

void search_all(const Model& model, Pool& pool, Rooms& rooms, const Options& options, const std::vector<Task>& tasks,
                std::vector<std::unique_ptr<Sentence>>& sentences) {
  int rows = 0;
  for (const Task& task : tasks) {
    sentences.emplace_back(new Sentence(options, task, model));
    rows += sentences.back()->most_rows();
  }
  Queue queue(sentences);
  int drivers = std::max(1, std::min(rows / kFewRows, static_cast<int>(sentences.size())));
  Pool::Loan loan(pool, drivers == 1 ? model.threads_for(rows) : drivers);
  Team& team = loan.team();
  drivers = std::min(drivers, team.size());
  int most = std::min(kManyRows, std::max(1, rows / drivers));
  auto one = [&](int, int) {
    std::unique_ptr<Workspace> room = rooms.take();
    Team own;
    drive(model, queue, most, options.traced, drivers == 1 ? team : own, *room);
    rooms.give_back(std::move(room));
  };
  if (drivers == 1) {
    one(0, 0);
  } else {
    team.run_last(drivers, one);
  }
}

}  // namespace transduce
