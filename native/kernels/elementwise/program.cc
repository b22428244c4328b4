// Prepares an elementwise program: merges axes, finds the loop of each instruction, chooses the
// tile size, and assigns intermediate values to tiles by their live ranges (linear scan).
#include "kernels/elementwise/program.h"

#include "kernels/row_stride.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kRowMin = 256;       // shorter rows are joined into tiles of several
constexpr int64_t kTileMax = 4096;     // elements: more only adds cache misses
constexpr int64_t kTileMin = 128;      // elements: fewer and dispatch dominates
constexpr int64_t kTileBytes = 20480;  // of everything that a tile touches: it stays in L1

// An instruction as it is encoded in ints.
struct Encoded {
  ChainOp op;
  DType type, to;
  int args[3];
};

Encoded decode(const ProgramCode& code, int i) {
  const int64_t* at = code.ints + 2 + 6 * i;
  return {ChainOp(at[0]), DType(at[1]), DType(at[2]), {int(at[3]), int(at[4]), int(at[5])}};
}

// An instruction's name, for errors.
const char* name_of(ChainOp op) {
  static constexpr const char* kNames[] = {
#define OP(name) #name,
#include "kernels/elementwise/ops.inc"
#undef OP
  };
  return op < ChainOp::count ? kNames[int(op)] : "of an unknown number";
}

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Strides of an operand along the axes of the output; 0 where it is broadcast. An operand of one
// element may have more axes than the output.
void broadcast(const View& in, const View& out, int64_t* strides) {
  for (int i = 0; i < out.rank; ++i) {
    const int axis = i - out.rank + in.rank;
    strides[i] = axis < 0 || in.dims[axis] == 1 ? 0 : in.strides[axis];
  }
}

// Merges neighbouring axes that every operand traverses with a single stride.
void join_axes(Chain& chain, const View& out, bool keeps_last) {
  int64_t dims[kMaxRank];
  int last = -1;  // last merged axis so far
  for (int i = 0; i < out.rank; ++i) {
    const bool is_last = i == out.rank - 1;
    if (out.dims[i] == 1 && !(is_last && keeps_last)) continue;
    bool joins = last >= 0 && !(is_last && keeps_last);
    for (int k = 0; joins && k < chain.n_operands; ++k) {
      const int64_t* s = chain.operands[k].strides;
      joins = s[last] == s[i] * out.dims[i];
    }
    if (!joins) dims[++last] = 1;
    dims[last] *= out.dims[i];
    for (int k = 0; k < chain.n_operands; ++k)
      chain.operands[k].strides[last] = chain.operands[k].strides[i];
  }
  chain.n = last < 0 ? 1 : dims[last];
  chain.n_axes = last < 0 ? 0 : last;
  chain.rows = 1;
  for (int i = 0; i < chain.n_axes; ++i) chain.rows *= chain.dims[i] = dims[i];
  for (int k = 0; k < chain.n_operands; ++k)
    chain.operands[k].stride = last < 0 ? 0 : chain.operands[k].strides[last];
}

// A vector full of copies of a constant scalar, made once.
const void* splat_constant(const View& view, Plan& plan) {
  const int64_t size = size_of(view.dtype);
  std::byte* at = plan.make<std::byte>(kCopyBytes);
  for (int64_t i = 0; i < kCopyBytes; i += size) memcpy(at + i, view.data, size_t(size));
  return at;
}

// Strides of all operands over the merged axes, and their classes (scalar, flat, column).
void set_operands(Chain& chain, const Call& call, const ProgramCode& code, Plan& plan) {
  const View& out = call.out[0];
  for (int k = 0; k < chain.n_operands; ++k) {
    Operand& operand = chain.operands[k];
    operand.number = code.first_operand + k - (code.is_epilogue ? 1 : 0);
    if (code.is_epilogue && k == 0) {
      operand.number = -1;
      operand.size = sizeof(float);
      View whole = out;
      whole.set_contiguous_strides();
      broadcast(whole, out, operand.strides);
      continue;
    }
    const View& view = call.in[operand.number];
    operand.size = size_of(view.dtype);
    operand.is_scalar = view.count() == 1;
    if (operand.is_scalar && view.data != nullptr) operand.copies = splat_constant(view, plan);
    broadcast(view, out, operand.strides);
  }
  join_axes(chain, out, code.is_epilogue || has_gaps(out));
  chain.out_row_stride = has_gaps(out) ? row_stride(out) : chain.n;
  for (int k = 0; k < chain.n_operands; ++k) {
    Operand& operand = chain.operands[k];
    operand.is_column = true;
    operand.is_flat = operand.stride == 1 || chain.n == 1;
    int64_t step = chain.n;
    for (int i = chain.n_axes - 1; i >= 0; --i) {
      operand.is_column &= operand.strides[i] == 0;
      operand.is_flat &= operand.strides[i] == step;
      step *= chain.dims[i];
    }
    // Rows of one element are traversed as one row, which needs the element stride.
    if (operand.is_flat && !operand.is_scalar) operand.stride = 1;
  }
  chain.joins_rows = true;
  for (int k = 0; k < chain.n_operands; ++k)
    chain.joins_rows &= chain.operands[k].is_scalar || chain.operands[k].is_flat;
}

// Free list of tiles in local memory. All have the width of the widest value; a tile is free again
// after the last instruction that reads it.
struct Tiles {
  int64_t width = 1;
  int n = 0;
  bool is_free[kMaxValues];

  int take() {
    for (int i = 0; i < n; ++i)
      if (is_free[i]) return is_free[i] = false, i;
    is_free[n] = false;
    return n++;
  }
};

// Whether an operand must be copied into a contiguous tile first.
bool is_gathered(const Chain& chain, const Operand& operand) {
  if (operand.is_scalar || operand.number < 0) return false;
  return chain.rows_per_tile > 0 ? !operand.is_flat : operand.stride != 0 && operand.stride != 1;
}

// Decodes the instructions, finds their loops, and allocates a tile for each result. Instructions
// of scalars only run on one vector.
Status set_instructions(Chain& chain, const ProgramCode& code, Tiles& tiles, int* at) {
  int last_use[kMaxValues] = {};
  bool is_scalar[kMaxValues];
  for (int k = 0; k < chain.n_operands; ++k) is_scalar[k] = chain.operands[k].is_scalar;
  for (int i = 0; i < chain.n_instructions; ++i)
    for (int arg : decode(code, i).args)
      if (arg >= 0) last_use[arg] = i;
  for (int i = 0; i < chain.n_instructions; ++i) {
    const Encoded it = decode(code, i);
    const int number = chain.n_operands + i;
    const bool is_last = i == chain.n_instructions - 1;
    Instruction& instruction = chain.instructions[i];
    instruction.run = find_loop(it.op, it.type, it.to);
    if (instruction.run == nullptr)
      return Status::fail("the elementwise instruction %s has no loop from %s to %s",
                          name_of(it.op), name_of(it.type), name_of(it.to));
    instruction.op = it.op;
    instruction.p[0] = code.floats[2 * i];
    instruction.p[1] = code.floats[2 * i + 1];
    is_scalar[number] = !is_last;
    for (int j = 0; j < 3; ++j) {
      instruction.in[j] = it.args[j];
      if (it.args[j] >= 0) is_scalar[number] &= is_scalar[it.args[j]];
    }
    instruction.n_scalar = is_scalar[number] ? kCopyBytes / size_of(it.to) : 0;
    if (size_of(it.to) > tiles.width && !is_last) tiles.width = size_of(it.to);
    at[i] = is_last ? -1 : tiles.take();
    for (int arg : it.args)
      if (arg >= chain.n_operands && last_use[arg] == i)
        tiles.is_free[at[arg - chain.n_operands]] = true;
  }
  return {};
}

// Bytes of operands and output per element.
int64_t touched_bytes(const Chain& chain) {
  int64_t bytes = chain.out_size;
  for (int k = 0; k < chain.n_operands; ++k)
    if (chain.operands[k].stride != 0) bytes += chain.operands[k].size;
  return bytes;
}

// Chooses the tile size, as large as fits into L1, and lays out local memory.
Status set_tiles(Chain& chain, const ProgramCode& code, bool is_epilogue) {
  Tiles tiles;
  int at[kMaxValues], of_operand[kMaxValues];
  chain.rows_per_tile = !is_epilogue && chain.rows > 1 && chain.n < kRowMin;
  for (int k = 0; k < chain.n_operands; ++k) {
    const Operand& operand = chain.operands[k];
    of_operand[k] = is_gathered(chain, operand) ? tiles.take() : -1;
    if (of_operand[k] >= 0 && operand.size > tiles.width) tiles.width = operand.size;
    chain.has_gather |= of_operand[k] >= 0;
  }
  if (Status status = set_instructions(chain, code, tiles, at); !status.ok()) return status;
  chain.tile = kTileMax;
  const int64_t touched = tiles.width * tiles.n + touched_bytes(chain);
  if (chain.n_instructions > 1)
    while (chain.tile > kTileMin && chain.tile * touched > kTileBytes) chain.tile /= 2;
  if (chain.rows_per_tile > 0) {
    if (chain.tile < chain.n) chain.tile = chain.n;
    chain.rows_per_tile = chain.n == 0 ? 1 : chain.tile / chain.n;
  } else if (chain.n < chain.tile && !(is_epilogue && chain.joins_rows)) {
    chain.tile = chain.n;
  }
  const int64_t bytes = round_up(chain.tile * tiles.width, 64) + kCopyBytes;
  int64_t next = bytes * tiles.n;
  for (int k = 0; k < chain.n_operands; ++k) {
    chain.operands[k].tile = of_operand[k] >= 0 ? bytes * of_operand[k] : next;
    if (of_operand[k] < 0) next += kCopyBytes;
  }
  for (int i = 0; i < chain.n_instructions; ++i)
    chain.instructions[i].out = at[i] < 0 ? -1 : bytes * at[i];
  chain.out_tile = next;
  if (chain.rows_per_tile > 0 && chain.out_row_stride != chain.n)
    next += round_up(chain.tile * chain.out_size, 64);
  chain.local_bytes = next;
  return {};
}

}  // namespace

const Chain* make_chain(const Call& call, const ProgramCode& code, Plan& plan) {
  Chain* chain = plan.make<Chain>();
  chain->n_instructions = int(code.ints[0]);
  chain->n_operands = int(code.ints[1]);
  chain->operands = plan.make<Operand>(size_t(chain->n_operands));
  chain->instructions = plan.make<Instruction>(size_t(chain->n_instructions));
  chain->out_size = size_of(call.out[0].dtype);
  set_operands(*chain, call, code, plan);
  plan.error = set_tiles(*chain, code, code.is_epilogue);
  return chain;
}

const Chain* chain_prepare(const Call& call, int first_operand, int first_int, int first_float,
                           Plan& plan) {
  const ProgramCode code{call.ints + first_int, call.floats + first_float, first_operand, true};
  return code.ints[0] == 0 ? nullptr : make_chain(call, code, plan);
}

int64_t chain_local_bytes(const Chain* chain) { return chain == nullptr ? 0 : chain->local_bytes; }

}  // namespace sdx::SDX_ISA
