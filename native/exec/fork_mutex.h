// A mutex that a fork cannot leave locked in the child. Python forks (multiprocessing) while other
// threads may hold locks; such a lock would stay locked forever in the child, where its owner does
// not exist. Fork handlers therefore lock all ForkMutexes before a fork, which also
// leaves what they guard in a consistent state, and renew them in the child.
#pragma once

#include <mutex>

namespace sdx {

// A fork locks all of them in order of construction. To avoid a deadlock with it, a thread that
// holds two must lock the older one first: for two members of a class, the one declared first.
class ForkMutex {
 public:
  ForkMutex();
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  friend struct ForkMutexes;

  std::mutex mutex_;
  ForkMutex* older_ = nullptr;
  ForkMutex* newer_ = nullptr;
};

}  // namespace sdx
