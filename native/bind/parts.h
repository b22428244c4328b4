// The parts of the Python module, one function each.
#pragma once

#include <nanobind/nanobind.h>

namespace sdx {

void bind_load(nanobind::module_& m);
void bind_exec(nanobind::module_& m);
void bind_specs(nanobind::module_& m);
void bind_kernels(nanobind::module_& m);
void bind_order(nanobind::module_& m);
void bind_dlpack(nanobind::module_& m);
void bind_texts(nanobind::module_& m);

// Parts of bind_load: the records, by family.
void bind_types(nanobind::module_& m);
void bind_tensors(nanobind::module_& m);
void bind_nodes(nanobind::module_& m);
void bind_models(nanobind::module_& m);

}  // namespace sdx
