// A chain as it is prepared for one set of sizes.
#pragma once

#include "kernels/elementwise/chain.h"
#include "kernels/elementwise/instruction.h"

namespace sdx::SDX_ISA {

constexpr int kMaxValues = 64;      // operands and instructions of a program
constexpr int64_t kCopyBytes = 64;  // of the copies of one element

struct Operand {
  int slot;                   // of Data::in; -1 for the product that an epilogue is applied to
  int64_t size;               // bytes of an element
  bool is_scalar;             // one element, whatever the output's shape
  bool is_flat;               // one element for each of the output, without gaps
  bool is_column;             // only the last axis counts
  int64_t stride;             // along the last axis
  int64_t strides[kMaxRank];  // along the outer axes
  int64_t tile;        // where in local memory its elements are gathered or splat_constant to
  const void* copies;  // of a constant with one element; else null
};

struct Instruction {
  LoopFn run;
  ChainOp op;
  int in[3];
  int64_t out;       // where in local memory; -1 for the output itself
  int64_t n_scalar;  // elements of a vector, where all arguments are single; else 0
  double p[2];
};

struct Chain {
  Operand* operands;
  int n_operands;
  Instruction* instructions;
  int n_instructions;
  int n_axes;  // outer ones
  int64_t dims[kMaxRank];
  int64_t rows;            // product of the outer dims
  int64_t n;               // elements of the last axis
  int64_t tile;            // elements that go through all instructions at a time
  int64_t rows_per_tile;   // 0: a tile lies in one row
  int64_t local_bytes;     // for tiles and copies
  int64_t out_size;        // bytes of an element of the output
  int64_t out_row_stride;  // elements from one row of the output to the next
  int64_t out_tile;        // where in local memory rows of an output with gaps are made
  bool joins_rows;         // rows side by side are as one: no operand starts again with a row
  bool has_gather;         // an operand has gaps along the last axis
};

// Where a program lies in a call, and what its operands are. The row `chain` joins all axes that it
// can; an epilogue is called with rows and columns of the output, and so keeps the last one.
struct ProgramCode {
  const int64_t* ints;
  const double* floats;
  int first_operand;
  bool is_epilogue;
};

const Chain* make_chain(const Call& call, const ProgramCode& code, Plan& plan);

struct TileRef {
  const void* at;
  int64_t stride;
};

// The results of all instructions for n elements from (row, col). What comes back is the one that
// divides integers by zero; null where none does.
const Instruction* run_tile(const Chain& chain, const Data& data, int64_t row, int64_t col,
                            int64_t n, const float* incoming, void* out, std::byte* local);
// The same for whole rows [row, row + count). Operands that only have columns are gathered where
// it is the first tile that uses this local memory.
const Instruction* run_rows(const Chain& chain, const Data& data, int64_t row, int64_t count,
                            bool is_first, std::byte* local);

}  // namespace sdx::SDX_ISA
