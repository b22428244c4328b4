// The extension module sardonyx._native.
#include <nanobind/nanobind.h>

#include "bind/parts.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // daemon threads hold objects when the process ends
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
