// A mutex that a fork cannot leave locked in the child.
#pragma once

#include <mutex>

namespace sdx {

// Before a fork all of them are taken, in the order in which they were made, so that what they
// protect is whole in the child, which finds them open. Whoever holds two at once takes the older
// one first.
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
