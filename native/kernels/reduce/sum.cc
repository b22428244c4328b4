// ReduceSum, ReduceMean and ReduceLogSum.
#include "kernels/reduce/sum.h"

#include "kernels/reduce/kernels.h"

namespace sdx::SDX_ISA {
namespace {

void mean(double* totals, int64_t n, int64_t count) {
  for (int64_t i = 0; i < n; ++i) totals[i] /= double(count);
}
// Integer division truncates towards zero, as in the reference.
void mean_signed(uint64_t* totals, int64_t n, int64_t count) {
  for (int64_t i = 0; i < n; ++i) totals[i] = uint64_t(int64_t(totals[i]) / count);
}
void mean_unsigned(uint64_t* totals, int64_t n, int64_t count) {
  for (int64_t i = 0; i < n; ++i) totals[i] /= uint64_t(count);
}
void logarithm(double* totals, int64_t n, int64_t) {
  for (int64_t i = 0; i < n; ++i) totals[i] = __builtin_log(totals[i]);
}

Status sum(const Call& call, Plan& plan, Finish<double> finish, Finish<uint64_t> finish_int) {
  const DType dtype = call.in[0].dtype;
  if (is_float(dtype)) return prepare_reduction<Sum<float>>(call, plan, finish);
  if (dtype == DType::f64) return prepare_reduction<Sum<double>>(call, plan, finish);
  return prepare_reduction<Sum<uint64_t>>(call, plan, finish_int);
}

}  // namespace

Status reduce_sum(const Call& call, Plan& plan) { return sum(call, plan, nullptr, nullptr); }

Status reduce_log_sum(const Call& call, Plan& plan) { return sum(call, plan, logarithm, nullptr); }

Status reduce_mean(const Call& call, Plan& plan) {
  const DType dtype = call.in[0].dtype;
  Status status = sum(call, plan, mean, is_signed(dtype) ? mean_signed : mean_unsigned);
  const bool is_integer = !is_float(dtype) && dtype != DType::f64;
  if (status.ok() && is_integer && static_cast<const ReduceArgs*>(plan.args)->n == 0)
    return Status::fail("the mean of no integers is undefined");
  return status;
}

}  // namespace sdx::SDX_ISA
