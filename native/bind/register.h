// The registration functions of the Python module sardonyx._native, one per area.
#pragma once

#include <nanobind/nanobind.h>

namespace sdx {

void bind_load(nanobind::module_& m);
void bind_exec(nanobind::module_& m);
void bind_specs(nanobind::module_& m);
void bind_kernels(nanobind::module_& m);
void bind_execution_order(nanobind::module_& m);
void bind_dlpack(nanobind::module_& m);
void bind_strings(nanobind::module_& m);
void bind_random(nanobind::module_& m);
void bind_memory_digest(nanobind::module_& m);
void bind_tensor_exchange(nanobind::module_& m);

// Called by bind_load: the ONNX records, by message.
void bind_types(nanobind::module_& m);
void bind_tensors(nanobind::module_& m);
void bind_nodes(nanobind::module_& m);
void bind_models(nanobind::module_& m);

}  // namespace sdx
