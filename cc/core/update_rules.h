// The update rules of the optimizers by name, with their slots and hyperparameters. The formulas
// are in cc/core/simd/update_formulas.h.
#ifndef TWML_CORE_UPDATE_RULES_H_
#define TWML_CORE_UPDATE_RULES_H_

#include <cstdint>
#include <string_view>

namespace twml {

// `hyper` of every rule begins with learning_rate and decay. Each updated row is first multiplied
// by 1 - decay (decoupled weight decay) and then takes the step of the rule:
//   sgd              w -= lr g
//   momentum         m = mu m - lr g; w += m                hyper: mu, nesterov (0 | 1)
//   adagrad          a += g^2; w -= lr g / sqrt(a + eps)    hyper: eps
//   rowwise_adagrad  a += mean(g^2), one a for each row     hyper: eps
//   lazy_adam        m += (1-b1)(g-m); v += (1-b2)(g^2-v); w -= lr m / (sqrt(v) + eps)
//                    hyper: b1, b2, eps; lr includes the bias correction
//   ftrl             McMahan et al. 2013, Keras' form       hyper: lr_power, l1, l2, l2_shrinkage
// With a learning rate of 0, only the decay changes a row. The gradient accumulators (a, m, v)
// still advance, except with ftrl: its z divides by the rate, so the step diverges as the rate
// goes to 0. Ftrl treats rates below kMinFtrlRate as 0. An element of an ftrl row that has had no
// gradient and no l2 (a = g = l2 = 0) does not change either, because its step would divide by 0.
//
// Each line has the identifier of a rule, its name, its number of slots, whether a slot has one
// float per row instead of dim, and its number of hyperparameters.
#define TWML_FOR_EACH_UPDATE_RULE(RULE)               \
  RULE(Sgd, "sgd", 0, false, 2)                       \
  RULE(Momentum, "momentum", 1, false, 4)             \
  RULE(Adagrad, "adagrad", 1, false, 3)               \
  RULE(RowWiseAdagrad, "rowwise_adagrad", 1, true, 3) \
  RULE(LazyAdam, "lazy_adam", 2, false, 5)            \
  RULE(Ftrl, "ftrl", 2, false, 6)

#define TWML_RULE(Name, ...) k##Name,
enum class UpdateRule { TWML_FOR_EACH_UPDATE_RULE(TWML_RULE) };
#undef TWML_RULE
constexpr int kMaxSlots = 2;
constexpr float kMinFtrlRate = 0x1p-100f;  // keeps 1 / rate times a sum of gradients finite

struct UpdateRuleInfo {
  std::string_view name;
  int num_slots;
  bool rowwise_slots;  // one float per row instead of dim
  int num_hyper;
};

#define TWML_RULE(Name, ...) {__VA_ARGS__},
constexpr UpdateRuleInfo kUpdateRules[] = {TWML_FOR_EACH_UPDATE_RULE(TWML_RULE)};
#undef TWML_RULE
constexpr int kNumUpdateRules = sizeof(kUpdateRules) / sizeof(kUpdateRules[0]);

// The index of a rule in kUpdateRules, or -1.
inline int FindUpdateRule(std::string_view name) {
  for (int i = 0; i < kNumUpdateRules; ++i) {
    if (kUpdateRules[i].name == name) return i;
  }
  return -1;
}

}  // namespace twml

#endif  // TWML_CORE_UPDATE_RULES_H_
