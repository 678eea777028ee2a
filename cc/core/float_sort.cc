#include "cc/core/float_sort.h"

#include <algorithm>
#include <utility>

namespace twml {
namespace {

// One pass of a radix sort, by the digit of kBits bits at `shift`. `count` holds how often each
// digit value occurs.
template <int kBits>
void SortByDigit(int shift, uint32_t* count, std::vector<uint32_t>* keys,
                 std::vector<uint32_t>* scratch) {
  constexpr uint32_t kMask = (1 << kBits) - 1;
  if (count[((*keys)[0] >> shift) & kMask] == keys->size()) return;  // all keys have the same digit
  uint32_t sum = 0;
  for (uint32_t d = 0; d <= kMask; ++d) sum += std::exchange(count[d], sum);
  for (const uint32_t key : *keys) (*scratch)[count[(key >> shift) & kMask]++] = key;
  keys->swap(*scratch);
}

// Sorts by kPasses digits of kBits bits, the least significant digit first, from bit `low` on. The
// keys must agree in all bits above these digits.
template <int kBits, int kPasses>
void RadixSortDigits(int low, std::vector<uint32_t>* keys, std::vector<uint32_t>* scratch) {
  constexpr uint32_t kMask = (1 << kBits) - 1;
  uint32_t count[kPasses][1 << kBits] = {};
  for (const uint32_t key : *keys) {
    for (int d = 0; d < kPasses; ++d) ++count[d][(key >> (low + d * kBits)) & kMask];
  }
  scratch->resize(keys->size());
  for (int d = 0; d < kPasses; ++d) SortByDigit<kBits>(low + d * kBits, count[d], keys, scratch);
}

// Sorts keys that are nearly sorted. Gives up and returns false if they are not; the keys are then
// in an arbitrary order.
bool InsertionSort(std::vector<uint32_t>* keys) {
  uint32_t* k = keys->data();
  const size_t n = keys->size();
  size_t moves = 4 * n;
  for (size_t i = 1; i < n; ++i) {
    const uint32_t key = k[i];
    size_t j = i;
    for (; j > 0 && k[j - 1] > key && moves > 0; --j, --moves) k[j] = k[j - 1];
    k[j] = key;
  }
  return moves > 0;
}

// Sorts by the two highest digits in which keys differ, which puts nearly all keys in their places,
// and completes the order with an insertion sort.
template <int kBits>
bool SortByHighBits(std::vector<uint32_t>* keys, std::vector<uint32_t>* scratch) {
  uint32_t different = 0;
  for (const uint32_t key : *keys) different |= key ^ (*keys)[0];
  if (different == 0) return true;
  const int low = std::max(0, 32 - __builtin_clz(different) - 2 * kBits);
  RadixSortDigits<kBits, 2>(low, keys, scratch);
  return low == 0 || InsertionSort(keys);
}

}  // namespace

void RadixSort(std::vector<uint32_t>* keys, std::vector<uint32_t>* scratch) {
  constexpr size_t kSmall = 48, kMedium = 1024, kLarge = 1 << 14;
  const size_t n = keys->size();
  if (n < kSmall) return std::sort(keys->begin(), keys->end());
  if (n < kMedium && SortByHighBits<8>(keys, scratch)) return;
  if (n >= kMedium && n < kLarge && SortByHighBits<10>(keys, scratch)) return;
  RadixSortDigits<11, 3>(0, keys, scratch);
}

}  // namespace twml
