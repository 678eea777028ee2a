// Allocations that fail; out_of_memory_test.cc has the allocator.
#ifndef TWML_TESTS_CC_FAILING_ALLOCATIONS_H_
#define TWML_TESTS_CC_FAILING_ALLOCATIONS_H_

#include <atomic>
#include <cstdint>
#include <new>

namespace twml {

// Of all threads, until one fails; negative: all succeed.
extern std::atomic<int64_t> allocations_left;

// Calls body() again and again; its allocation number 0, 1, 2, ... fails. Stops when none has
// failed. Returns how many have.
template <class Body>
int64_t FailEachAllocation(Body body) {
  for (int64_t number = 0;; ++number) {
    allocations_left = number;
    try {
      body();
    } catch (const std::bad_alloc&) {
    }
    if (allocations_left.exchange(-1) >= 0) return number;
  }
}

// The same, and check(threw) looks at the outcome of each call of body(), also of the last one, in
// which no allocation has failed. All allocations of check() succeed.
template <class Body, class Check>
int64_t FailEachAllocation(Body body, Check check) {
  for (int64_t number = 0;; ++number) {
    allocations_left = number;
    bool threw = false;
    try {
      body();
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    const bool failed = allocations_left.exchange(-1) < 0;
    check(threw);
    if (!failed) return number;
  }
}

}  // namespace twml

#endif  // TWML_TESTS_CC_FAILING_ALLOCATIONS_H_
