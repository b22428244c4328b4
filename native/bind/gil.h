// Python's lock, released and taken again on threads that may outlive the interpreter.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace sdx {

// Python before 3.14 ends a daemon thread that asks for the lock during finalization by
// pthread_exit, whose forced unwinding calls std::terminate where it meets a destructor or another
// noexcept function. Such a thread sleeps here until the process ends, as it does in later
// versions.
template <class Ask>
auto asking_python(Ask ask) noexcept {
  try {
    return ask();
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
}

// Runs a scope without the lock.
class GilRelease {
 public:
  GilRelease() noexcept : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    asking_python([&] { PyEval_RestoreThread(state_); });
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

// Takes the lock for a scope of code that runs without it.
class GilAcquire {
 public:
  GilAcquire() noexcept : state_(asking_python([] { return PyGILState_Ensure(); })) {}
  ~GilAcquire() { PyGILState_Release(state_); }
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace sdx
