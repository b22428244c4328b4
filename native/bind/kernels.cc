// The kernel table in Python, and single calls of its rows: for packing, tests and benchmarks.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind/gil.h"
#include "bind/parts.h"
#include "exec/prepare.h"
#include "exec/single.h"
#include "exec/texts.h"
#include "kernels/registry.h"

namespace nb = nanobind;

namespace sdx {
namespace {

using namespace nb::literals;

// Address, element type, dims and strides in elements. A rank-less operand is not given.
using Tensor = std::tuple<uintptr_t, int, std::vector<int64_t>, std::vector<int64_t>>;
using Tensors = std::vector<Tensor>;

constexpr int kNotGiven = 0;  // the element type of an operand that is not given

View view_of(const Tensor& tensor) {
  const auto& [address, dtype, dims, strides] = tensor;
  View view;
  if (dtype == kNotGiven) return view;
  if (dims.size() > size_t(kMaxRank) || dims.size() != strides.size())
    throw std::invalid_argument("a tensor of this rank cannot be passed to a kernel");
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

// What one call of a row needs, kept together while it runs.
struct Single {
  Single(const std::string& row, const std::string& isa_name, const Tensors& inputs,
         const Tensors& outputs, const std::vector<int64_t>& ints,
         const std::vector<double>& floats) {
    const Isa* isa = isa_name.empty() ? chosen_isa() : find_isa(isa_name);
    if (isa == nullptr || !isa->is_supported())
      throw std::invalid_argument("this machine has no ISA " + isa_name);
    kernel = find_kernel(*isa, row);
    if (kernel == nullptr) throw std::invalid_argument("there is no kernel " + row);
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

std::string call_row(const std::string& row, const Tensors& inputs, const Tensors& outputs,
                     const std::vector<int64_t>& ints, const std::vector<double>& floats,
                     int splits, const std::string& isa, Texts* texts, int threads) {
  Single single(row, isa, inputs, outputs, ints, floats);
  Texts own;
  single.data.strings = (texts == nullptr ? own : *texts).room();
  GilRelease nogil;
  return run_single(*single.kernel, single.call, single.data, splits < 0 ? 1 : splits, threads)
      .text();
}

std::vector<std::vector<int64_t>> resolve_row(const std::string& row, const Tensors& inputs,
                                              const Tensors& outputs,
                                              const std::vector<int64_t>& ints,
                                              const std::vector<double>& floats,
                                              const std::string& isa) {
  Single single(row, isa, inputs, outputs, ints, floats);
  if (single.kernel->resolve == nullptr) throw std::invalid_argument(row + " resolves nothing");
  Texts own;
  single.data.strings = own.room();
  Status status = single.kernel->resolve(single.call, single.data, single.out.data());
  if (!status.ok()) throw std::invalid_argument(status.text());
  std::vector<std::vector<int64_t>> dims;
  for (const View& view : single.out) dims.emplace_back(view.dims, view.dims + view.rank);
  return dims;
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

  nb::class_<KernelInfo>(m, "KernelInfo", "What Python needs to know of a kernel row.")
      .def_ro("family", &KernelInfo::family)
      .def_ro("accepts", &KernelInfo::accepts,
              "How its inputs may lie: see Form in program/flat.py.")
      .def_ro("resolves", &KernelInfo::resolves, "Whether its output sizes depend on data.");
  nb::dict rows;  // by name
  for (int f = 0; f < kFamilyCount; ++f) {
    const KernelTable& table = *kIsas[0].tables[f];
    for (int i = 0; i < table.n; ++i) {
      const Kernel& row = table.kernels[i];
      if (rows.contains(row.name))
        throw std::logic_error(std::string("two kernels have the name ") + row.name);
      rows[row.name] = KernelInfo{kFamilies[f], int(row.accepts), row.resolve != nullptr};
    }
  }
  m.attr("kernels") = rows;

  m.def("call", call_row, "row"_a, "inputs"_a, "outputs"_a, "ints"_a, "floats"_a, "splits"_a = 1,
        "isa"_a = "", "texts"_a.none() = nb::none(), "threads"_a = 0,
        "Runs one row on tensors (address, type, dims, strides), in so many parts one after the "
        "other, or with 0 on so many threads (0: all); returns what went wrong, or ''.");
  m.def("resolve", resolve_row, "row"_a, "inputs"_a, "outputs"_a, "ints"_a, "floats"_a,
        "isa"_a = "", "The dims of the outputs of a row whose sizes depend on data.");
}

}  // namespace sdx
