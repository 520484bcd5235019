// Threads of our own: a pool lends the cores that are free to a call, so that many callers together use as many threads
// as one alone. A team shares out small pieces of work within a microsecond: its helpers spin while they are lent.
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace transduce {

class Team {
 public:
  int size() const { return size_; }
  void grow(int size) { size_ = size; }  // before the first helper comes

  // body(piece, member) for every piece below count, by whichever member of the team is free.
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

  // The same as the team's last work: a helper that finds no piece left is free for other teams.
  template <class Body>
  void run_last(int count, const Body& body) {
    last_.store(true);
    run(count, body);
  }

  void help(int member);  // what a helper does until `dismiss`
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
  std::atomic<int> inside_{0};        // helpers that may be working on the piece of work given out last
  std::atomic<unsigned> number_{0};   // odd while work is given out
  std::atomic<bool> last_{false}, over_{false};
  std::mutex failing_;
  std::exception_ptr failure_;
};

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();

  // A team of one to `most` threads for the length of a call, or its share where others wait; waits until one is free.
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
  void after_fork();  // a child process has none of its parent's threads

  const int threads_;
  int free_, waiting_ = 0, process_;
  bool closing_ = false;
  std::mutex lock_;
  std::condition_variable changed_, called_;
  std::vector<std::unique_ptr<Helper>> helpers_;  // made when first needed
};

}  // namespace transduce
