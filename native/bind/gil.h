// Releasing and acquiring Python's GIL on threads that may outlive the interpreter.
#pragma once

#include <Python.h>

#include <cstddef>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

#include "os/system.h"

namespace sdx {

// Before version 3.14, Python ends a daemon thread that requests the GIL during finalization by
// pthread_exit, whose forced unwinding calls std::terminate in destructors and other noexcept
// functions. Such a thread sleeps here until the process ends, as it does in later versions.
template <class Request>
auto request_gil(Request request) noexcept {
#if defined(__GLIBCXX__)
  try {
    return request();
  } catch (abi::__forced_unwind&) {
    os::sleep_forever();
  }
#else
  return request();
#endif
}

// Releases the GIL for a scope.
class GilRelease {
 public:
  GilRelease() noexcept : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    request_gil([&] { PyEval_RestoreThread(state_); });
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

// Acquires the GIL for a scope of code that runs without it.
class GilAcquire {
 public:
  GilAcquire() noexcept : state_(request_gil([] { return PyGILState_Ensure(); })) {}
  ~GilAcquire() { PyGILState_Release(state_); }
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace sdx
