// Optimizers whose update of an element depends on that element only: SGD, Adam, AdamW, Lion. A
// step reads and writes each tensor once; clipping by the norm reads the gradients once more.
//
// Phases: sums of squares of the gradients by block, their norm (both only where it is needed), the
// constants of each parameter, the updates by block.
#include "kernels/optimizer/kernels.h"
#include "kernels/optimizer/params.h"

namespace sdx::SDX_ISA {
namespace {

// One block of a parameter. `factor` clips gradients and has the sign of the objective.
template <class T>
struct Block {
  T* data;
  T* grad;
  T* states[3];
  int64_t n;
  float factor;
};

template <class T>
SDX_INLINE Block<T> block_of(const Param& p, int64_t from, float factor) {
  const auto at = [&](void* base) {
    return base == nullptr ? nullptr : static_cast<T*>(base) + from;
  };
  return {at(p.data),
          at(p.grad),
          {at(p.states[0]), at(p.states[1]), at(p.states[2])},
          p.n - from < kBlock ? p.n - from : kBlock,
          factor};
}

// The gradient to follow.
template <class T, class L>
SDX_INLINE f32v read_grad(const Block<T>& b, int64_t i, L lanes) {
  return load_float(b.grad + i, lanes) * b.factor;
}

// Divides the gradients of a block by the factor of the loss, in place: torch.amp.GradScaler
// expects unscaled gradients after the step. The block stays in the cache for the update.
template <class T>
void unscale(const Block<T>& b, float inverse_scale) {
  vloop(b.n, [&](int64_t i, auto lanes) {
    store_float(b.grad + i, load_float(b.grad + i, lanes) * inverse_scale, lanes);
  });
}

// Adam, and with decoupled weight decay AdamW:
//   m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2,
//   p = p decay - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
struct Adam {
  struct Group {
    double lr, beta1, beta2, eps, weight_decay, amsgrad, is_decoupled, sign;
  };
  struct Constants {
    float step_size, keep1, take1, keep2, take2, eps, inverse_root, decay, l2;
    bool amsgrad;
  };

  static Constants begin(const Param& p, const Group& g) {
    const double t = *p.step;
    const auto take1 = float(1 - g.beta1), take2 = float(1 - g.beta2);
    Constants c;
    c.step_size = float(g.lr / (1 - __builtin_pow(g.beta1, t)));
    c.keep1 = float(g.beta1), c.take1 = take1, c.keep2 = float(g.beta2), c.take2 = take2;
    c.eps = float(g.eps);
    c.inverse_root = float(1 / __builtin_sqrt(1 - __builtin_pow(g.beta2, t)));
    c.decay = g.is_decoupled != 0 ? float(1 - g.lr * g.weight_decay) : 1.0f;
    c.l2 = g.is_decoupled != 0 ? 0.0f : float(g.weight_decay);
    c.amsgrad = g.amsgrad != 0;
    return c;
  }

  // All loads come before the stores: the compiler cannot move a load over a store of another
  // array.
  template <bool kAmsgrad, bool kL2, int kVectors, class T, class L>
  SDX_INLINE static void vectors(const Constants& c, const Block<T>& b, int64_t at, L lanes) {
    f32v p[kVectors], m[kVectors], v[kVectors], top[kVectors];
    for (int k = 0; k < kVectors; ++k) {
      const int64_t i = at + k * kLanes;
      p[k] = load_float(b.data + i, lanes);
      f32v g = read_grad(b, i, lanes);
      if (kL2) g += c.l2 * p[k];
      m[k] = c.keep1 * load_float(b.states[0] + i, lanes) + c.take1 * g;
      v[k] = c.keep2 * load_float(b.states[1] + i, lanes) + c.take2 * (g * g);
      top[k] = kAmsgrad ? vmax(load_float(b.states[2] + i, lanes), v[k]) : v[k];
    }
    for (int k = 0; k < kVectors; ++k)
      p[k] = p[k] * c.decay - c.step_size * m[k] / (vsqrt(top[k]) * c.inverse_root + c.eps);
    for (int k = 0; k < kVectors; ++k) store_float(b.states[0] + at + k * kLanes, m[k], lanes);
    for (int k = 0; k < kVectors; ++k) store_float(b.states[1] + at + k * kLanes, v[k], lanes);
    for (int k = 0; k < kVectors; ++k)
      if (kAmsgrad) store_float(b.states[2] + at + k * kLanes, top[k], lanes);
    for (int k = 0; k < kVectors; ++k) store_float(b.data + at + k * kLanes, p[k], lanes);
  }

  template <bool kAmsgrad, bool kL2, class T>
  static void run(const Constants& c, const Block<T>& b) {
    int64_t i = 0;
    for (; i + 2 * kLanes <= b.n; i += 2 * kLanes) vectors<kAmsgrad, kL2, 2>(c, b, i, Full{});
    vloop(b.n - i, [&](int64_t j, auto lanes) { vectors<kAmsgrad, kL2, 1>(c, b, i + j, lanes); });
  }

  template <class T>
  static void update(const Constants& c, const Block<T>& b) {
    if (c.amsgrad)
      c.l2 != 0 ? run<true, true>(c, b) : run<true, false>(c, b);
    else
      c.l2 != 0 ? run<false, true>(c, b) : run<false, false>(c, b);
  }
};

// SGD: g += l2 p; buffer = momentum buffer + (1 - dampening) g, or g in the first step;
// p -= lr d, where d is g, the buffer, or g + momentum buffer (Nesterov).
struct Sgd {
  struct Group {
    double lr, momentum, dampening, weight_decay, nesterov, unused0, unused1, sign;
  };
  enum class Follows : uint8_t { gradient, buffer, nesterov };
  struct Constants {
    float lr, momentum, keep, take, l2;
    Follows follows;
  };

  static Constants begin(const Param& p, const Group& g) {
    Constants c;
    c.lr = float(g.lr), c.momentum = float(g.momentum), c.l2 = float(g.weight_decay);
    c.keep = p.is_first != 0 ? 0.0f : c.momentum;
    c.take = p.is_first != 0 ? 1.0f : float(1 - g.dampening);
    c.follows = g.momentum == 0   ? Follows::gradient
                : g.nesterov != 0 ? Follows::nesterov
                                  : Follows::buffer;
    return c;
  }

  // Without weight decay l2 p is left out: it would be NaN for an infinite p.
  template <Follows kFollows, bool kL2, class T>
  static void run(const Constants& c, const Block<T>& b) {
    vloop(b.n, [&](int64_t i, auto lanes) {
      const f32v p = load_float(b.data + i, lanes);
      f32v g = read_grad(b, i, lanes);
      if (kL2) g += c.l2 * p;
      if (kFollows != Follows::gradient) {
        const f32v buffer = c.keep * load_float(b.states[0] + i, lanes) + c.take * g;
        store_float(b.states[0] + i, buffer, lanes);
        g = kFollows == Follows::nesterov ? g + c.momentum * buffer : buffer;
      }
      store_float(b.data + i, p - c.lr * g, lanes);
    });
  }

  template <Follows kFollows, class T>
  static void choose(const Constants& c, const Block<T>& b) {
    c.l2 != 0 ? run<kFollows, true>(c, b) : run<kFollows, false>(c, b);
  }

  template <class T>
  static void update(const Constants& c, const Block<T>& b) {
    switch (c.follows) {
      case Follows::gradient: return choose<Follows::gradient>(c, b);
      case Follows::buffer: return choose<Follows::buffer>(c, b);
      case Follows::nesterov: return choose<Follows::nesterov>(c, b);
    }
  }
};

// Lion: p = p decay - lr sign(b1 m + (1 - b1) g), m = b2 m + (1 - b2) g.
struct Lion {
  struct Group {
    double lr, beta1, beta2, weight_decay, unused0, unused1, unused2, sign;
  };
  struct Constants {
    float lr, keep1, take1, keep2, take2, decay;
  };

  static Constants begin(const Param&, const Group& g) {
    return {float(g.lr),    float(g.beta1),     float(1 - g.beta1),
            float(g.beta2), float(1 - g.beta2), float(1 - g.lr * g.weight_decay)};
  }

  template <class T>
  static void update(const Constants& c, const Block<T>& b) {
    const f32v zero{}, one = splat(1.0f);
    vloop(b.n, [&](int64_t i, auto lanes) {
      const f32v m = load_float(b.states[0] + i, lanes), g = read_grad(b, i, lanes);
      const f32v mixed = c.keep1 * m + c.take1 * g;
      const f32v sign = mixed > zero ? one : mixed < zero ? -one : zero;
      store_float(b.data + i, load_float(b.data + i, lanes) * c.decay - c.lr * sign, lanes);
      store_float(b.states[0] + i, c.keep2 * m + c.take2 * g, lanes);
    });
  }
};

// Scratch memory: the factor that clips, sums of squares by block, constants by parameter.
template <class Rule>
struct Scratch {
  double* factor;
  double* squares;
  typename Rule::Constants* constants;

  Scratch(const StepArgs& a, const Data& data)
      : factor(reinterpret_cast<double*>(data.scratch)),
        squares(factor + 8),
        constants(reinterpret_cast<typename Rule::Constants*>(squares +
                                                              (a.clips() ? a.n_blocks() : 0))) {}
};

// Items: blocks.
template <class Rule>
Status square_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const StepArgs*>(args);
  double* squares = Scratch<Rule>(a, data).squares;
  each_block(a, begin, end, [&](int64_t i, int64_t block) {
    const Param& p = a.params[i];
    visit_param(p, [&]<class T>() {
      const Block<T> b = block_of<T>(p, block * kBlock, 1);
      squares[a.first_blocks[i] + block] = sum_of_squares(b.grad, b.n);
    });
  });
  return {};
}

// One item: the step counters, and the constants of all parameters.
template <class Rule>
Status begin_step(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const StepArgs*>(args);
  const Scratch<Rule> s(a, data);
  report_update(a, data);
  *s.factor = clip_factor(a, data, s.squares, true);
  for (int64_t i = 0; i < a.n_params; ++i) {
    const RunParam p(a, data, i);
    if (p.step != nullptr) *p.step += 1;
    s.constants[i] = Rule::begin(p, group_of<typename Rule::Group>(a, data, p));
  }
  return {};
}

// Items: blocks.
template <class Rule>
Status update_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const StepArgs*>(args);
  const Scratch<Rule> s(a, data);
  if (is_skipped(a, data)) return {};
  each_block(a, begin, end, [&](int64_t i, int64_t block) {
    const RunParam p(a, data, i);
    const double sign = a.group(p)[kHyperparameters - 1];
    visit_param(p, [&]<class T>() {
      const auto b = block_of<T>(p, block * kBlock, float(sign * *s.factor));
      if (a.inverse_scale != 1) unscale(b, float(a.inverse_scale));
      Rule::update(s.constants[i], b);
    });
  });
  return {};
}

template <class Rule>
Status prepare_step(const StepArgs& tables, Plan& plan) {
  auto* args = plan.make<StepArgs>();
  *args = tables;
  auto* first_blocks = plan.table<int64_t>(size_t(args->n_params) + 1);
  if (first_blocks == nullptr) return no_table();
  for (int64_t i = 0; i < args->n_params; ++i)
    first_blocks[i + 1] = first_blocks[i] + (args->params[i].n + kBlock - 1) / kBlock;
  args->first_blocks = first_blocks;
  plan.args = args;
  const int64_t n_squares = args->clips() ? args->n_blocks() : 0;
  plan.scratch_bytes = (8 + n_squares) * int64_t(sizeof(double)) +
                       args->n_params * int64_t(sizeof(typename Rule::Constants));
  if (n_squares > 0) plan.add(square_blocks<Rule>, args->n_blocks(), kBlock / 4);
  plan.add(begin_step<Rule>, 1, 1);
  plan.add(update_blocks<Rule>, args->n_blocks(), kBlock);
  return {};
}

}  // namespace

Status adam_step(const Call& call, Plan& plan) {
  return prepare_step<Adam>(read_tables(call), plan);
}
Status lion_step(const Call& call, Plan& plan) {
  return prepare_step<Lion>(read_tables(call), plan);
}
Status sgd_step(const Call& call, Plan& plan) { return prepare_step<Sgd>(read_tables(call), plan); }
Status adam_update(const Call& call, Plan& plan) {
  return prepare_step<Adam>(read_operands(call, plan), plan);
}
Status sgd_update(const Call& call, Plan& plan) {
  return prepare_step<Sgd>(read_operands(call, plan), plan);
}

}  // namespace sdx::SDX_ISA
