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

// Known keys, and where a key would be if they were evenly spaced.
class KeySearch {
 public:
  explicit KeySearch(Span<const int64_t> known)
      : items_(known.data()), size_(known.size()), last_(static_cast<double>(size_ - 1)) {
    const double range =
        size_ == 0 ? 0 : static_cast<double>(items_[size_ - 1]) - static_cast<double>(items_[0]);
    per_key_ = range > 0 ? last_ / range : 0.0;
  }

  void Find(const int64_t* keys, int64_t n, int64_t* positions) const {
    if (size_ == 0) {
      std::fill_n(positions, n, -1);
      return;
    }
    int64_t guess[kBlock];
    for (int64_t first = 0; first < n; first += kBlock) {
      const int64_t count = std::min(n - first, kBlock);
      const int64_t* const block = keys + first;
      for (int64_t i = 0; i < count; ++i) {
        guess[i] = Interpolate(block[i], 0);
        __builtin_prefetch(items_ + guess[i]);
      }
      for (int64_t i = 0; i < count; ++i) {
        guess[i] = Interpolate(block[i], guess[i]);
        __builtin_prefetch(items_ + guess[i]);
      }
      for (int64_t i = 0; i < count; ++i) {
        const int64_t found = LowerBoundNear(items_, size_, block[i], guess[i]);
        positions[first + i] = found < size_ && items_[found] == block[i] ? found : -1;
      }
    }
  }

 private:
  // Where `key` would be if the keys were evenly spaced around the item at `from`.
  int64_t Interpolate(int64_t key, int64_t from) const {
    const double away = static_cast<double>(key) - static_cast<double>(items_[from]);
    const double position = static_cast<double>(from) + away * per_key_;
    return static_cast<int64_t>(std::min(std::max(position, 0.0), last_));
  }

  const int64_t* const items_;
  const int64_t size_;
  const double last_;
  double per_key_;  // positions
};

}  // namespace

void FindKeys(Span<const int64_t> known, Span<const int64_t> keys, const ParallelFor& parallel_for,
              int64_t* positions) {
  const KeySearch search(known);
  parallel_for(keys.size(), kCostPerKey, [&](int64_t begin, int64_t end) {
    search.Find(keys.data() + begin, end - begin, positions + begin);
  });
}

void FindKeysSerially(Span<const int64_t> known, Span<const int64_t> keys, int64_t* positions) {
  KeySearch(known).Find(keys.data(), keys.size(), positions);
}

}  // namespace twml
