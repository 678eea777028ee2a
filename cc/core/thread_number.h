// Numbers of threads, for memory that each thread should have for itself.
#ifndef TWML_CORE_THREAD_NUMBER_H_
#define TWML_CORE_THREAD_NUMBER_H_

#include <atomic>
#include <cstdint>

namespace twml {

// The number of the calling thread: threads are counted in the order of their first calls.
inline uint32_t ThreadNumber() {
  static std::atomic<uint32_t> threads{0};
  thread_local const uint32_t number = threads.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace twml

#endif  // TWML_CORE_THREAD_NUMBER_H_
