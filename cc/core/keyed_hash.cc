#include "cc/core/keyed_hash.h"

#include <chrono>
#include <exception>
#include <random>

namespace twml {
namespace {

uint64_t DrawKey() noexcept {
  try {
    std::random_device device;
    return static_cast<uint64_t>(device()) << 32 | device();
  } catch (const std::exception&) {  // the system has no source of random numbers
    const auto now = std::chrono::high_resolution_clock::now().time_since_epoch().count();
    return Mix64(static_cast<uint64_t>(now) ^ reinterpret_cast<uintptr_t>(&now));
  }
}

}  // namespace

uint64_t ProcessHashKey() noexcept {
  static const uint64_t key = DrawKey();
  return key;
}

}  // namespace twml
