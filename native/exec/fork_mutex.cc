#include "exec/fork_mutex.h"

#include <new>

#include "os/system.h"

namespace sdx {

// All ForkMutexes of the process, oldest first; `mutex` guards the list.
struct ForkMutexes {
  std::mutex mutex;
  ForkMutex* oldest = nullptr;
  ForkMutex* newest = nullptr;

  void add(ForkMutex* made) {
    std::lock_guard lock(mutex);
    made->older_ = newest;
    (newest == nullptr ? oldest : newest->newer_) = made;
    newest = made;
  }

  void remove(ForkMutex* gone) {
    std::lock_guard lock(mutex);
    (gone->older_ == nullptr ? oldest : gone->older_->newer_) = gone->newer_;
    (gone->newer_ == nullptr ? newest : gone->newer_->older_) = gone->older_;
  }

  void lock_all() {
    mutex.lock();
    for (ForkMutex* m = oldest; m != nullptr; m = m->newer_) m->lock();
  }

  void unlock_all() {
    for (ForkMutex* m = newest; m != nullptr; m = m->older_) m->unlock();
    mutex.unlock();
  }

  // In the child: unlocking is only defined for the thread that locked, so they are constructed
  // anew.
  void renew_all() {
    for (ForkMutex* m = oldest; m != nullptr; m = m->newer_) new (&m->mutex_) std::mutex;
    new (&mutex) std::mutex;
  }
};

namespace {

// Never destroyed: sessions may outlive the statics of this library.
ForkMutexes& all() {
  static ForkMutexes* const made = [] {
    static auto* mutexes = new ForkMutexes;
    os::at_fork([] { mutexes->lock_all(); }, [] { mutexes->unlock_all(); },
                [] { mutexes->renew_all(); });
    return mutexes;
  }();
  return *made;
}

// Made when the library is loaded: a fork during a first call would leave its guard locked.
[[maybe_unused]] const ForkMutexes& at_load = all();

}  // namespace

ForkMutex::ForkMutex() { all().add(this); }
ForkMutex::~ForkMutex() { all().remove(this); }

}  // namespace sdx
