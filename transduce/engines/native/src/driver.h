// A call: sentences sorted by length and spread over the threads lent to it, each thread keeping a batch of rows full.
#pragma once
#include "search.h"

namespace transduce {

// Workspaces kept for later calls.
class Rooms : ForkSafe {
 public:
  std::unique_ptr<Workspace> take();
  void give_back(std::unique_ptr<Workspace> room);

 private:
  std::vector<std::unique_ptr<Workspace>> rooms_;
};

// Decode all tasks, in the order of `sentences`. Fails before any work if a task is invalid.
void search_all(const Model& model, Pool& pool, Rooms& rooms, const Options& options, const std::vector<Task>& tasks,
                std::vector<std::unique_ptr<Sentence>>& sentences);

}  // namespace transduce
