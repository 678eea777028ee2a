// The first invalid position that a parallel check finds. It makes error messages independent of
// the number of threads.
#ifndef TWML_CORE_FIRST_POSITION_H_
#define TWML_CORE_FIRST_POSITION_H_

#include <atomic>
#include <cstdint>

namespace twml {

class FirstPosition {
 public:
  static constexpr int64_t kNone = INT64_MAX;

  // Keeps the smallest position that was recorded.
  void Record(int64_t position) {
    int64_t current = first_.load();
    while (position < current && !first_.compare_exchange_weak(current, position)) {
    }
  }
  bool found() const { return first_.load() != kNone; }
  int64_t value() const { return first_.load(); }

 private:
  std::atomic<int64_t> first_{kNone};
};

}  // namespace twml

#endif  // TWML_CORE_FIRST_POSITION_H_
