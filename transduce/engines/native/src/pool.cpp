#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <new>

namespace transduce {
namespace {

// Spinning is fast on a core of our own; otherwise the thread we wait for may need the core.
void pause(int& turns) {
  if (++turns > 2000) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// All ForkSafe objects; never destroyed, since a fork may happen while the process ends.
struct Registry {
  std::mutex lock;
  std::vector<ForkSafe*> all;
};

Registry& registry() {
  static Registry* const found = new Registry;
  return *found;
}

}  // namespace

ForkSafe::ForkSafe() {
  static const int installed = pthread_atfork(before, in_parent, in_child);
  if (installed) throw std::bad_alloc();  // the only way in which it can fail
  std::lock_guard<std::mutex> guard(registry().lock);
  registry().all.push_back(this);
}

ForkSafe::~ForkSafe() { retire(); }

void ForkSafe::retire() {
  std::lock_guard<std::mutex> guard(registry().lock);
  auto& all = registry().all;
  all.erase(std::remove(all.begin(), all.end(), this), all.end());
}

void ForkSafe::before() {
  registry().lock.lock();
  for (ForkSafe* one : registry().all) one->lock_.lock();
}

void ForkSafe::in_parent() {
  for (ForkSafe* one : registry().all) one->lock_.unlock();
  registry().lock.unlock();
}

void ForkSafe::in_child() {
  for (ForkSafe* one : registry().all) {
    one->renew();
    one->lock_.unlock();
  }
  registry().lock.unlock();
}

void Team::work(int member) {
  try {
    for (int i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) call_(context_, i, member);
  } catch (...) {
    std::lock_guard<std::mutex> guard(failing_);
    failure_ = std::current_exception();
    next_.store(count_);
  }
}

// A late helper is not waited for: the others do its share. `inside_` is incremented before the number is read, and
// read after the number is incremented, so that either the helper sees that the work is over, or it is seen.
void Team::share(int count, Call call, const void* context) {
  call_ = call;
  context_ = context;
  count_ = count;
  next_.store(0);
  number_.fetch_add(1);
  work(0);
  number_.fetch_add(1);
  for (int turns = 0; inside_.load() > 0;) pause(turns);
  if (failure_) {
    std::exception_ptr failure = failure_;
    failure_ = nullptr;
    std::rethrow_exception(failure);
  }
}

void Team::help(int member) {
  unsigned done = 0;
  for (int turns = 0; !over_.load();) {
    unsigned number = number_.load();
    if (number % 2 == 0 || number == done) {
      pause(turns);
      continue;
    }
    turns = 0;
    inside_.fetch_add(1);
    if (number_.load() == number) work(member);
    inside_.fetch_sub(1);
    done = number;
    if (last_.load()) return;
  }
}

Pool::Pool(int threads) : threads_(threads), free_(threads) {}

void Pool::renew() {
  for (auto& helper : helpers_) helper.release();  // a thread that does not exist here can be neither joined nor destroyed
  helpers_.clear();
  new (&changed_) std::condition_variable;  // the parent's waits for threads that do not exist here
  new (&called_) std::condition_variable;
  free_ = threads_;
  waiting_ = 0;
}

Pool::Loan::Loan(Pool& pool, int most) : pool_(pool) {
  std::unique_lock<std::mutex> guard(pool.lock_);
  pool.waiting_++;
  pool.changed_.wait(guard, [&] { return pool.free_ > 0; });
  pool.waiting_--;
  int size = std::min(most, std::max(1, pool.free_ / (pool.waiting_ + 1)));
  pool.free_ -= size;
  team_.grow(size);
  int member = 1;
  for (size_t i = 0; member < size; i++) {
    if (i == pool.helpers_.size()) {
      pool.helpers_.emplace_back(new Helper);
      Helper* helper = pool.helpers_.back().get();
      helper->thread = std::thread([&pool, helper] { pool.serve(helper); });
    }
    Helper* helper = pool.helpers_[i].get();
    if (helper->team) continue;
    helper->team = &team_;
    helper->member = member++;
  }
  if (size > 1) pool.called_.notify_all();
}

Pool::Loan::~Loan() {
  team_.dismiss();
  std::unique_lock<std::mutex> guard(pool_.lock_);
  pool_.changed_.wait(guard, [&] {  // a helper leaves its team before it ends
    for (auto& helper : pool_.helpers_)
      if (helper->team == &team_) return false;
    return true;
  });
  pool_.free_++;
  pool_.changed_.notify_all();
}

void Pool::serve(Helper* helper) {
  std::unique_lock<std::mutex> guard(lock_);
  while (true) {
    called_.wait(guard, [&] { return closing_ || helper->team; });
    if (closing_) return;
    Team* team = helper->team;
    guard.unlock();
    team->help(helper->member);
    guard.lock();
    helper->team = nullptr;
    free_++;
    changed_.notify_all();
  }
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> guard(lock_);
    closing_ = true;
  }
  called_.notify_all();
  for (auto& helper : helpers_) helper->thread.join();
  retire();
}

}  // namespace transduce
