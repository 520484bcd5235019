// Our own threads: a pool lends free cores to a call, so that many callers together use as many threads as one alone. A
// process may fork at any time: ForkSafe objects are locked around a fork and reset in the child, which has none of its
// parent's threads. A team distributes small pieces of work within a microsecond: its helpers spin while they are lent.
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace transduce {

// Base of objects with a lock that another thread may hold at a fork. In the child nobody would ever release it.
class ForkSafe {
 public:
  ForkSafe();
  virtual ~ForkSafe();
  ForkSafe(const ForkSafe&) = delete;
  ForkSafe& operator=(const ForkSafe&) = delete;

 protected:
  virtual void renew() {}  // in the child, with the lock held: drop the parent's threads
  void retire();           // last in the destructor of a class with its own renew(): forks skip this object from then on
  std::mutex lock_;        // held only briefly, and never while taking another object's

 private:
  static void before();
  static void in_parent();
  static void in_child();
};

class Team {
 public:
  int size() const { return size_; }
  void grow(int size) { size_ = size; }  // before the first helper joins

  // Call body(piece, member) for every piece below count, on whichever member of the team is free.
  template <class Body>
  void run(int count, const Body& body) {
    if (size_ == 1 || count == 1) {
      for (int i = 0; i < count; i++) body(i, 0);
    } else {
      share(count, [](const void* context, int piece, int member) {
        (*static_cast<const Body*>(context))(piece, member);
      }, &body);
    }
  }

  // Like run, for the team's last work: a helper that finds no piece left is free for other teams.
  template <class Body>
  void run_last(int count, const Body& body) {
    last_.store(true);
    run(count, body);
  }

  void help(int member);  // a helper's loop until `dismiss`
  void dismiss() { over_.store(true); }

 private:
  typedef void (*Call)(const void* context, int piece, int member);
  void share(int count, Call call, const void* context);
  void work(int member);

  int size_ = 1;
  Call call_ = nullptr;
  const void* context_ = nullptr;
  int count_ = 0;
  std::atomic<int> next_{0};
  std::atomic<int> inside_{0};        // helpers that may be working on the current pieces
  std::atomic<unsigned> number_{0};   // odd while work is available
  std::atomic<bool> last_{false}, over_{false};
  std::mutex failing_;
  std::exception_ptr failure_;
};

class Pool : ForkSafe {
 public:
  explicit Pool(int threads);
  ~Pool() override;

  // A team of one to `most` threads for the length of a call, or its share if others wait; waits until one is free.
  class Loan {
   public:
    Loan(Pool& pool, int most);
    ~Loan();
    Team& team() { return team_; }

   private:
    Pool& pool_;
    Team team_;
  };

 private:
  struct Helper {
    std::thread thread;
    Team* team = nullptr;
    int member = 0;
  };
  void serve(Helper* helper);
  void renew() override;

  const int threads_;
  int free_, waiting_ = 0;
  bool closing_ = false;
  std::condition_variable changed_, called_;
  std::vector<std::unique_ptr<Helper>> helpers_;  // created when first needed
};

}  // namespace transduce
