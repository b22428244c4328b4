// The kernel table, and single calls of kernels: for prepacking weights, tests and benchmarks.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind/gil.h"
#include "bind/register.h"
#include "exec/prepare.h"
#include "exec/single_call.h"
#include "exec/string_arena.h"
#include "kernels/registry.h"

namespace nb = nanobind;

namespace sdx {
namespace {

using namespace nb::literals;

// Address, element type, dims, and strides in elements.
using Tensor = std::tuple<uintptr_t, int, std::vector<int64_t>, std::vector<int64_t>>;
using Tensors = std::vector<Tensor>;

constexpr int kAbsent = 0;  // the element type of an absent optional operand

View view_of(const Tensor& tensor) {
  const auto& [address, dtype, dims, strides] = tensor;
  View view;
  if (dtype == kAbsent) return view;
  if (dims.size() > size_t(kMaxRank))
    throw std::invalid_argument("a tensor has rank " + std::to_string(dims.size()) +
                                ", the maximum is " + std::to_string(kMaxRank));
  if (dims.size() != strides.size())
    throw std::invalid_argument("a tensor has " + std::to_string(dims.size()) + " dims and " +
                                std::to_string(strides.size()) + " strides");
  view.dtype = DType(dtype);
  view.rank = int(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    view.dims[i] = dims[i];
    view.strides[i] = strides[i];
  }
  view.data = reinterpret_cast<const void*>(address);
  return view;
}

struct KernelInfo {
  std::string family;
  int accepts;
  bool resolves;
};

// The arguments of one kernel call, which `call` and `data` point into.
struct SingleCall {
  SingleCall(const std::string& name, const std::string& isa_name, const Tensors& inputs,
             const Tensors& outputs, const std::vector<int64_t>& ints,
             const std::vector<double>& floats) {
    const Isa* isa = isa_name.empty() ? chosen_isa() : find_isa(isa_name);
    if (isa == nullptr || !isa->is_supported())
      throw std::invalid_argument("this machine does not support the ISA " + isa_name);
    kernel = find_kernel(*isa, name);
    if (kernel == nullptr) throw std::invalid_argument("there is no kernel " + name);
    for (const Tensor& t : inputs) in.push_back(view_of(t)), at_in.push_back(in.back().data);
    for (const Tensor& t : outputs)
      out.push_back(view_of(t)), at_out.push_back(const_cast<void*>(out.back().data));
    call = call_of(in, out, ints, floats);
    data = {at_in.data(), at_out.data(), nullptr, nullptr};
  }

  const Kernel* kernel;
  std::vector<View> in, out;
  std::vector<const void*> at_in;
  std::vector<void*> at_out;
  Call call;
  Data data;
};

std::string call_kernel(const std::string& name, const Tensors& inputs, const Tensors& outputs,
                        const std::vector<int64_t>& ints, const std::vector<double>& floats,
                        int splits, const std::string& isa, StringArena* strings, int threads) {
  SingleCall single(name, isa, inputs, outputs, ints, floats);
  StringArena own;
  single.data.strings = (strings == nullptr ? own : *strings).allocator();
  GilRelease nogil;
  return run_single_call(*single.kernel, single.call, single.data, splits < 0 ? 1 : splits, threads)
      .text();
}

std::vector<std::vector<int64_t>> resolve_kernel(const std::string& name, const Tensors& inputs,
                                                 const Tensors& outputs,
                                                 const std::vector<int64_t>& ints,
                                                 const std::vector<double>& floats,
                                                 const std::string& isa) {
  SingleCall single(name, isa, inputs, outputs, ints, floats);
  if (single.kernel->resolve == nullptr)
    throw std::invalid_argument(name + " does not resolve sizes");
  StringArena own;
  single.data.strings = own.allocator();
  Status status = single.kernel->resolve(single.call, single.data, single.out.data());
  if (!status.ok()) throw std::invalid_argument(status.text());
  std::vector<std::vector<int64_t>> dims;
  for (const View& view : single.out) dims.emplace_back(view.dims, view.dims + view.rank);
  return dims;
}

// All kernels by name; they are the same in every ISA.
nb::dict all_kernels() {
  nb::dict kernels;
  for (int f = 0; f < kFamilyCount; ++f) {
    const KernelTable& table = *kIsas[0].tables[f];
    for (int i = 0; i < table.n; ++i) {
      const Kernel& kernel = table.kernels[i];
      if (kernels.contains(kernel.name))
        throw std::logic_error(std::string("two kernels have the name ") + kernel.name);
      kernels[kernel.name] =
          KernelInfo{kFamilies[f], int(kernel.accepts), kernel.resolve != nullptr};
    }
  }
  return kernels;
}

}  // namespace

void bind_kernels(nb::module_& m) {
  nb::list isas;
  for (int i = 0; i < kIsaCount; ++i)
    if (kIsas[i].is_supported()) isas.append(kIsas[i].name);
  m.attr("isas") = nb::tuple(isas);
  const Isa* isa = chosen_isa();
  m.attr("isa") = isa == nullptr ? "" : isa->name;
  m.attr("multiplies_bf16") = isa != nullptr && multiplies_bf16(*isa);

  nb::class_<KernelInfo>(m, "KernelInfo", "What Python needs to know of a kernel.")
      .def_ro("family", &KernelInfo::family)
      .def_ro("accepts", &KernelInfo::accepts,
              "Which strides its inputs may have: the number of Accepts in kernels/kernel.h.")
      .def_ro("resolves", &KernelInfo::resolves, "Whether its output sizes depend on data.");
  m.attr("kernels") = all_kernels();

  nb::list ops;  // the instructions of elementwise programs, by number
#define OP(name) ops.append(#name);
#include "kernels/elementwise/ops.inc"
#undef OP
  m.attr("elementwise_ops") = nb::tuple(ops);

  m.def(
      "call", call_kernel, "kernel"_a, "inputs"_a, "outputs"_a, "ints"_a, "floats"_a,
      "splits"_a = 1, "isa"_a = "", "strings"_a.none() = nb::none(), "threads"_a = 0,
      "Run one kernel on tensors (address, type, dims, strides), each phase in `splits` ranges one "
      "after the other, or if that is 0 on `threads` threads (0: all). Returns the error or ''.");
  m.def("resolve", resolve_kernel, "kernel"_a, "inputs"_a, "outputs"_a, "ints"_a, "floats"_a,
        "isa"_a = "", "The dims of the outputs of a kernel whose sizes depend on data.");
}

}  // namespace sdx
