// The extension module sardonyx._native.
#include <nanobind/nanobind.h>

#include <cstdlib>

#include "bind/parts.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  // What torch's tables hold (registered functions, compiled code) is never freed, nor is what a
  // daemon thread holds at the end: a session that is reached from there is no leak of ours, and
  // not worth a page on stderr. Tests of leaks ask for it.
  if (!std::getenv("SARDONYX_LEAKS")) nb::set_leak_warnings(false);
  m.doc() = "The native part of Sardonyx.";
  m.attr("version") = SARDONYX_VERSION;
  sdx::bind_load(m);
  sdx::bind_texts(m);
  sdx::bind_kernels(m);
  sdx::bind_specs(m);
  sdx::bind_exec(m);
  sdx::bind_order(m);
  sdx::bind_dlpack(m);
}
