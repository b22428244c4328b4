// ReduceSum and ReduceMean.
#include "kernels/reduce/rows.h"
#include "kernels/reduce/sums.h"

namespace sdx::SDX_ISA {
namespace {

template <class C>
struct Mean : Sum<C> {
  using W = typename Sum<C>::W;
  // Integers are divided towards zero.
  static SDX_INLINE W finish(W total, int64_t count) { return total / W(count); }
};

template <class T>
struct AveragedIn {
  using type = std::conditional_t<kIsFloat<T>, Wide<T>,
                                  std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
};

}  // namespace

Status reduce_sum(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Summable{},
               [&]<class T>() { return prepare_reduction<Sum<Summed<T>>, T>(call, plan); });
}

Status reduce_mean(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Summable{}, [&]<class T>() {
    Status status = prepare_reduction<Mean<typename AveragedIn<T>::type>, T>(call, plan);
    if (!kIsFloat<T> && static_cast<const ReduceArgs*>(plan.args)->n == 0)
      status = Status::fail("the mean of no integers is undefined");
    return status;
  });
}

}  // namespace sdx::SDX_ISA
