#include "cc/core/find_keys.h"

#include <algorithm>

namespace twml {
namespace {

constexpr int64_t kBlock = 32;  // keys whose cache misses overlap
constexpr int64_t kCostPerKey = 30;

// The position of the first item that is not smaller than the key, near `start`: the distance
// doubles until the item is enclosed.
int64_t LowerBoundNear(const int64_t* known, int64_t size, int64_t key, int64_t start) {
  int64_t low, high;  // known[low] < key, known[high] >= key, with known[-1] and known[size]
  if (known[start] < key) {
    low = start;
    int64_t step = 1;
    while (high = std::min(low + step, size), high < size && known[high] < key) {
      low = high;
      step *= 2;
    }
  } else {
    high = start;
    int64_t step = 1;
    while (low = std::max<int64_t>(high - step, -1), low >= 0 && known[low] >= key) {
      high = low;
      step *= 2;
    }
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (known[middle] < key ? low : high) = middle;
  }
  return high;
}

}  // namespace

void FindKeys(Span<const int64_t> known, Span<const int64_t> keys, const ParallelFor& parallel_for,
              int64_t* positions) {
  const int64_t size = known.size();
  if (size == 0) {
    std::fill_n(positions, keys.size(), -1);
    return;
  }
  const int64_t* const items = known.data();
  const double last = static_cast<double>(size - 1);
  const double range = static_cast<double>(items[size - 1]) - static_cast<double>(items[0]);
  const double per_key = range > 0 ? last / range : 0.0;  // positions
  // Where `key` would be if the keys were evenly spaced around the item at `from`.
  const auto interpolate = [&](int64_t key, int64_t from) {
    const double away = static_cast<double>(key) - static_cast<double>(items[from]);
    const double position = static_cast<double>(from) + away * per_key;
    return static_cast<int64_t>(std::min(std::max(position, 0.0), last));
  };
  parallel_for(keys.size(), kCostPerKey, [&](int64_t begin, int64_t end) {
    int64_t guess[kBlock];
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t count = std::min(end - first, kBlock);
      const int64_t* const block = keys.data() + first;
      for (int64_t i = 0; i < count; ++i) {
        guess[i] = interpolate(block[i], 0);
        __builtin_prefetch(items + guess[i]);
      }
      for (int64_t i = 0; i < count; ++i) {
        guess[i] = interpolate(block[i], guess[i]);
        __builtin_prefetch(items + guess[i]);
      }
      for (int64_t i = 0; i < count; ++i) {
        const int64_t found = LowerBoundNear(items, size, block[i], guess[i]);
        positions[first + i] = found < size && items[found] == block[i] ? found : -1;
      }
    }
  });
}

}  // namespace twml
