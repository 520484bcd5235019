// A call: sentences sorted by length and spread over the threads lent to it, each thread keeping a batch of rows full.
#pragma once
#include "search.h"

namespace transduce {

// Workspaces that wait for the next call.
class Rooms : ForkSafe {
 public:
  std::unique_ptr<Workspace> take();
  void give_back(std::unique_ptr<Workspace> room);

 private:
  std::vector<std::unique_ptr<Workspace>> rooms_;
};

// Everything at once, in `sentences` order. Fails before any work where a task cannot be done.
void search_all(const Model& model, Pool& pool, Rooms& rooms, const Options& options, const std::vector<Task>& tasks,
                std::vector<std::unique_ptr<Sentence>>& sentences);

}  // namespace transduce
