// The extension module sardonyx._native.
#include <nanobind/nanobind.h>

#include <cstdlib>

#include "bind/register.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  // nanobind reports objects that are alive when the interpreter ends. Tables of torch (registered
  // functions, compiled code) and daemon threads are never freed, and neither are sessions
  // reachable from them: that is not a leak of this module. Leak tests set the variable.
  if (!std::getenv("SARDONYX_LEAKS")) nb::set_leak_warnings(false);
  m.doc() = "The native part of Sardonyx.";
  m.attr("version") = SARDONYX_VERSION;
  sdx::bind_load(m);
  sdx::bind_strings(m);
  sdx::bind_kernels(m);
  sdx::bind_specs(m);
  sdx::bind_tensor_exchange(m);
  sdx::bind_exec(m);
  sdx::bind_execution_order(m);
  sdx::bind_dlpack(m);
  sdx::bind_random(m);
  sdx::bind_memory_digest(m);
}
