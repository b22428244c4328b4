// Interpreter of prepared elementwise programs: resolves the operands of a tile, in place where
// they are contiguous and gathered into local memory otherwise, then runs instruction by
// instruction.
#include "kernels/elementwise/program.h"

namespace sdx::SDX_ISA {
namespace {

// Calls f with an unsigned integer of the element size: moving elements needs no types.
template <class F>
SDX_INLINE void by_size(int64_t size, F&& f) {
  switch (size) {
    case 1: return f(uint8_t());
    case 2: return f(uint16_t());
    case 4: return f(uint32_t());
    default: return f(uint64_t());
  }
}

// n elements, `stride` apart, into a contiguous tile.
void gather(int64_t size, const void* from, int64_t stride, int64_t n, void* to) {
  if (stride == 1) {
    memcpy(to, from, size_t(n * size));
    return;
  }
  by_size(size, [&](auto sample) {
    using T = decltype(sample);
    const T* in = static_cast<const T*>(from);
    T* out = static_cast<T*>(to);
    if (stride == 0) {
      T x;
      memcpy(&x, in, sizeof x);
      for (int64_t i = 0; i < n; ++i) out[i] = x;
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = in[i * stride];
    }
  });
}

// A scalar as a vector of copies, which loops read with stride 0.
TileRef broadcast_scalar(const Operand& operand, const void* at, std::byte* local) {
  if (operand.copies != nullptr) return {operand.copies, 0};
  std::byte* to = local + operand.tile;
  by_size(operand.size, [&](auto sample) {
    using T = decltype(sample);
    T x;
    memcpy(&x, at, sizeof x);
    store(reinterpret_cast<T*>(to), splat(x));
  });
  return {to, 0};
}

// Coordinates of a row in the outer axes.
void index_of(const Chain& chain, int64_t row, int64_t* index) {
  for (int i = chain.n_axes - 1; i > 0; --i) {
    index[i] = row % chain.dims[i];
    row /= chain.dims[i];
  }
  index[0] = row;
}

// Address of an operand's element.
const std::byte* element(const Chain& chain, const Operand& operand, const void* base,
                         const int64_t* index, int64_t col) {
  int64_t at = col * operand.stride;
  for (int i = 0; i < chain.n_axes; ++i) at += index[i] * operand.strides[i];
  return static_cast<const std::byte*>(base) + at * operand.size;
}

// Runs all instructions on one tile; returns the one that failed, or null.
const Instruction* run_instructions(const Chain& chain, TileRef* refs, int64_t n, void* out,
                                    std::byte* local) {
  TileRef* made = refs + chain.n_operands;
  for (int i = 0; i < chain.n_instructions; ++i) {
    const Instruction& instruction = chain.instructions[i];
    LoopArgs args;
    args.out = instruction.out < 0 ? out : local + instruction.out;
    args.n = instruction.n_scalar > 0 ? instruction.n_scalar : n;
    args.p = instruction.p;
    for (int j = 0; j < 3; ++j) {
      if (instruction.in[j] < 0) continue;
      args.in[j] = refs[instruction.in[j]].at;
      args.stride[j] = refs[instruction.in[j]].stride;
    }
    if (!instruction.run(args)) return &instruction;
    made[i] = {args.out, instruction.n_scalar > 0 ? 0 : 1};
  }
  return nullptr;
}

// Whole rows of an operand into a contiguous tile.
TileRef gather_rows(const Chain& chain, const Operand& operand, const void* base, int64_t row,
                    int64_t count, std::byte* local) {
  std::byte* to = local + operand.tile;
  int64_t index[kMaxRank];
  for (int64_t i = 0; i < count; ++i) {
    index_of(chain, row + i, index);
    gather(operand.size, element(chain, operand, base, index, 0), operand.stride, chain.n,
           to + i * chain.n * operand.size);
  }
  return {to, 1};
}

}  // namespace

const Instruction* run_tile(const Chain& chain, const Data& data, int64_t row, int64_t col,
                            int64_t n, const float* incoming, void* out, std::byte* local) {
  TileRef refs[kMaxValues];
  int64_t index[kMaxRank];
  index_of(chain, row, index);
  for (int k = 0; k < chain.n_operands; ++k) {
    const Operand& operand = chain.operands[k];
    if (operand.number < 0) {
      refs[k] = {incoming, 1};
      continue;
    }
    const std::byte* at = element(chain, operand, data.in[operand.number], index, col);
    if (operand.stride == 1) {
      refs[k] = {at, 1};
    } else if (operand.stride == 0) {
      refs[k] = broadcast_scalar(operand, at, local);
    } else {
      gather(operand.size, at, operand.stride, n, local + operand.tile);
      refs[k] = {local + operand.tile, 1};
    }
  }
  return run_instructions(chain, refs, n, out, local);
}

const Instruction* run_rows(const Chain& chain, const Data& data, int64_t row, int64_t count,
                            bool is_first, std::byte* local) {
  TileRef refs[kMaxValues];
  const int64_t before = row * chain.n;
  for (int k = 0; k < chain.n_operands; ++k) {
    const Operand& operand = chain.operands[k];
    const void* base = data.in[operand.number];
    if (operand.is_scalar) {
      refs[k] = broadcast_scalar(operand, base, local);
    } else if (operand.is_flat) {
      refs[k] = {static_cast<const std::byte*>(base) + before * operand.size, 1};
    } else if (operand.is_column && !is_first) {
      refs[k] = {local + operand.tile, 1};
    } else {
      // Gathered once for all tiles: a later tile is never longer than the first.
      refs[k] = gather_rows(chain, operand, base, row, count, local);
    }
  }
  std::byte* to = output<std::byte>(data) + row * chain.out_row_stride * chain.out_size;
  std::byte* out = chain.out_row_stride == chain.n ? to : local + chain.out_tile;
  const Instruction* fault = run_instructions(chain, refs, count * chain.n, out, local);
  const int64_t bytes = chain.n * chain.out_size, step = chain.out_row_stride * chain.out_size;
  if (out != to)
    for (int64_t i = 0; i < count; ++i) memcpy(to + i * step, out + i * bytes, size_t(bytes));
  return fault;
}

void chain_run(const Chain& chain, const Data& data, int64_t row, int64_t col, int64_t n,
               const float* incoming, void* out, std::byte* local) {
  std::byte* to = static_cast<std::byte*>(out);
  for (int64_t i = 0; i < n; i += chain.tile) {
    const int64_t count = n - i < chain.tile ? n - i : chain.tile;
    run_tile(chain, data, row, col + i, count, incoming + i, to + i * chain.out_size, local);
  }
}

void chain_rows(const Chain& chain, const Data& data, int64_t row, int64_t rows,
                const float* incoming, void* out, std::byte* local) {
  if (chain.joins_rows) return chain_run(chain, data, row, 0, rows * chain.n, incoming, out, local);
  std::byte* to = static_cast<std::byte*>(out);
  for (int64_t i = 0; i < rows; ++i)
    chain_run(chain, data, row + i, 0, chain.n, incoming + i * chain.n,
              to + i * chain.n * chain.out_size, local);
}

}  // namespace sdx::SDX_ISA
