// Loops on integers of 8 and 16 bits, and on bools.
#include "kernels/elementwise/integers.h"

namespace sdx::SDX_ISA {
namespace {

using V = Vec<uint8_t>;
// Bools may be any nonzero byte on input and are 0 or 1 on output.
constexpr Loop kBoolLoops[] = {
    {ChainOp::logical_not, map1<uint8_t, [](V a) { return V(a == 0) & 1; }>},
    {ChainOp::bit_and, map2<uint8_t, [](V a, V b) { return V((a != 0) & (b != 0)) & 1; }>},
    {ChainOp::bit_or, map2<uint8_t, [](V a, V b) { return V((a | b) != 0) & 1; }>},
    {ChainOp::bit_xor, map2<uint8_t, [](V a, V b) { return V((a != 0) ^ (b != 0)) & 1; }>},
    {ChainOp::equal, compare<uint8_t, [](V a, V b) { return (a != 0) == (b != 0); }>},
};

}  // namespace

LoopFn find_narrow_loop(ChainOp op, DType type) {
  switch (type) {
    case DType::boolean: return find_in(kBoolLoops, op);
    case DType::i8: return find_in(Ints<int8_t>::kLoops, op);
    case DType::u8: return find_in(Ints<uint8_t>::kLoops, op);
    case DType::i16: return find_in(Ints<int16_t>::kLoops, op);
    case DType::u16: return find_in(Ints<uint16_t>::kLoops, op);
    default: return nullptr;
  }
}

}  // namespace sdx::SDX_ISA
