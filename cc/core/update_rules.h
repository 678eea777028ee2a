// The optimizers' update rules for one row, by name: the slots each keeps and its hyperparameters.
#ifndef TWML_CORE_UPDATE_RULES_H_
#define TWML_CORE_UPDATE_RULES_H_

#include <cstdint>
#include <string_view>

namespace twml {

// `hyper` of every rule begins with learning_rate and decay; a row first loses decay * itself
// (decoupled weight decay of the touched rows), then takes the rule's step:
//   sgd              w -= lr g
//   momentum         m = mu m - lr g; w += m                hyper: mu, nesterov (0 | 1)
//   adagrad          a += g^2; w -= lr g / sqrt(a + eps)    hyper: eps
//   rowwise_adagrad  a += mean(g^2), one a per row          hyper: eps
//   lazy_adam        m += (1-b1)(g-m); v += (1-b2)(g^2-v); w -= lr m / (sqrt(v) + eps)
//                    hyper: b1, b2, eps; lr comes with the bias correction already in it
//   ftrl             McMahan et al. 2013, Keras' form       hyper: lr_power, l1, l2, l2_shrinkage
// A learning rate of 0 leaves what decay left of the row as it is. The accumulators of gradients
// (a, m, v) still advance, but not those of ftrl: its z divides by the rate, so that the step has
// no limit as the rate falls to 0. Rates below kLeastFtrlRate count as 0. An element of an ftrl row
// that has seen no gradient and has no l2 to divide by (a = g = l2 = 0) stays as it is as well.
enum class UpdateRule { kSgd, kMomentum, kAdagrad, kRowWiseAdagrad, kLazyAdam, kFtrl };
constexpr int kNumUpdateRules = 6;
constexpr int kMaxSlots = 2;
constexpr float kLeastFtrlRate = 0x1p-100f;  // 1 / rate times a sum of gradients stays finite

struct UpdateRuleInfo {
  std::string_view name;
  int num_slots;
  bool rowwise_slots;  // one float a row instead of dim
  int num_hyper;
};

constexpr UpdateRuleInfo kUpdateRules[kNumUpdateRules] = {
    {"sgd", 0, false, 2},       {"momentum", 1, false, 4},
    {"adagrad", 1, false, 3},   {"rowwise_adagrad", 1, true, 3},
    {"lazy_adam", 2, false, 5}, {"ftrl", 2, false, 6},
};

// The index into kUpdateRules, or -1.
inline int FindUpdateRule(std::string_view name) {
  for (int i = 0; i < kNumUpdateRules; ++i) {
    if (kUpdateRules[i].name == name) return i;
  }
  return -1;
}

}  // namespace twml

#endif  // TWML_CORE_UPDATE_RULES_H_
