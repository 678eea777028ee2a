#include "cc/core/fork.h"

#include <pthread.h>

namespace twml {
namespace {

std::atomic<int64_t> forks{0};

// Before main, or when the library is loaded.
[[maybe_unused]] const int registered = pthread_atfork(
    nullptr, nullptr, [] { forks.store(forks.load(std::memory_order_relaxed) + 1); });

}  // namespace

int64_t ForkNumber() noexcept { return forks.load(std::memory_order_relaxed); }

}  // namespace twml
