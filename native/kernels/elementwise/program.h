// An elementwise program prepared for one set of sizes: operands with their strides, instructions
// with their loops, and the assignment of intermediate values to tiles in local memory.
#pragma once

#include "kernels/elementwise/chain.h"
#include "kernels/elementwise/instruction.h"

namespace sdx::SDX_ISA {

constexpr int kMaxValues = 64;      // operands and instructions of a program (checked by Python)
constexpr int64_t kCopyBytes = 64;  // a vector full of copies of a scalar

struct Operand {
  int number;                 // of Data::in; -1 for the accumulators of an epilogue
  int64_t size;               // bytes of an element
  bool is_scalar;             // one element, whatever the output's shape
  bool is_flat;               // one element for each of the output, without gaps
  bool is_column;             // varies only along the last axis (bias)
  int64_t stride;             // along the last axis
  int64_t strides[kMaxRank];  // along the outer axes
  int64_t tile;               // where in local memory its elements are gathered or broadcast to
  const void* copies;         // vector of a constant scalar; else null
};

struct Instruction {
  LoopFn run;
  ChainOp op;
  int in[3];
  int64_t out;       // offset in local memory; -1 for the output itself
  int64_t n_scalar;  // one vector, if all arguments are scalars; else 0
  double p[2];
};

struct Chain {
  Operand* operands;
  int n_operands;
  Instruction* instructions;
  int n_instructions;
  int n_axes;  // outer axes
  int64_t dims[kMaxRank];
  int64_t rows;            // product of the outer dims
  int64_t n;               // elements of the last axis
  int64_t tile;            // elements that go through all instructions at a time
  int64_t rows_per_tile;   // 0: a tile is within one row
  int64_t local_bytes;     // for tiles and copies
  int64_t out_size;        // bytes of an element of the output
  int64_t out_row_stride;  // elements between rows of the output
  int64_t out_tile;        // offset in local memory of the rows of an output with gaps
  bool joins_rows;         // no operand restarts with a row: rows can run as one
  bool has_gather;         // an operand has a stride along the last axis
};

// Location of a program in a call. The kernel `chain` merges all axes that it can; an epilogue is
// called with rows and columns of the output, so it keeps the last axis.
struct ProgramCode {
  const int64_t* ints;
  const double* floats;
  int first_operand;
  bool is_epilogue;
};

// Sets `plan.error` if an instruction has no loop for its types.
const Chain* make_chain(const Call& call, const ProgramCode& code, Plan& plan);

// Elements of a value in the current tile; stride 0 is a vector of copies of a scalar.
struct TileRef {
  const void* at;
  int64_t stride;
};

// Runs all instructions for n elements from (row, col). Returns the instruction that divided
// integers by zero, or null.
const Instruction* run_tile(const Chain& chain, const Data& data, int64_t row, int64_t col,
                            int64_t n, const float* incoming, void* out, std::byte* local);
// The same for whole rows [row, row + count). Operands that vary only along columns are gathered
// only in the first tile that uses this local memory.
const Instruction* run_rows(const Chain& chain, const Data& data, int64_t row, int64_t count,
                            bool is_first, std::byte* local);

}  // namespace sdx::SDX_ISA
