#include "cc/core/float_sort.h"

#include <algorithm>
#include <utility>

namespace twml {
namespace {

// One pass of a radix sort: by the digit of kBits at `shift`, whose values were counted.
template <int kBits>
void SortByDigit(int shift, uint32_t* count, std::vector<uint32_t>* keys,
                 std::vector<uint32_t>* other) {
  constexpr uint32_t kMask = (1 << kBits) - 1;
  if (count[((*keys)[0] >> shift) & kMask] == keys->size()) return;  // all have the same digit
  uint32_t sum = 0;
  for (uint32_t d = 0; d <= kMask; ++d) sum += std::exchange(count[d], sum);
  for (const uint32_t key : *keys) (*other)[count[(key >> shift) & kMask]++] = key;
  keys->swap(*other);
}

// By kPasses digits of kBits, the least first, from bit `low` on; bits above must not differ.
template <int kBits, int kPasses>
void RadixSort(int low, std::vector<uint32_t>* keys, std::vector<uint32_t>* other) {
  constexpr uint32_t kMask = (1 << kBits) - 1;
  uint32_t count[kPasses][1 << kBits] = {};
  for (const uint32_t key : *keys) {
    for (int d = 0; d < kPasses; ++d) ++count[d][(key >> (low + d * kBits)) & kMask];
  }
  other->resize(keys->size());
  for (int d = 0; d < kPasses; ++d) SortByDigit<kBits>(low + d * kBits, count[d], keys, other);
}

// What is nearly sorted. False, with the keys in some order, where they were not.
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

// Most values differ in the first bits in which any do, so two digits of those put nearly all in
// their places.
template <int kBits>
bool SortByFirstBits(std::vector<uint32_t>* keys, std::vector<uint32_t>* other) {
  uint32_t different = 0;
  for (const uint32_t key : *keys) different |= key ^ (*keys)[0];
  if (different == 0) return true;
  const int low = std::max(0, 32 - __builtin_clz(different) - 2 * kBits);
  RadixSort<kBits, 2>(low, keys, other);
  return low == 0 || InsertionSort(keys);
}

}  // namespace

void RadixSort(std::vector<uint32_t>* keys, std::vector<uint32_t>* other) {
  constexpr size_t kSmall = 48, kMiddle = 1024, kLarge = 1 << 14;
  const size_t n = keys->size();
  if (n < kSmall) return std::sort(keys->begin(), keys->end());
  if (n < kMiddle && SortByFirstBits<8>(keys, other)) return;
  if (n >= kMiddle && n < kLarge && SortByFirstBits<10>(keys, other)) return;
  RadixSort<11, 3>(0, keys, other);
}

}  // namespace twml
