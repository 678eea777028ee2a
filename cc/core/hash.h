// The hash of the package: ids are mixed to 64 bits and reduced to a space of 2^bits.
#ifndef TWML_CORE_HASH_H_
#define TWML_CORE_HASH_H_

#include <cstdint>

#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

constexpr int kMaxHashBits = 62;

// A bijection of 64-bit numbers in which every input bit flips each output bit with a probability
// near 1/2. It is the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom
// Number Generators", OOPSLA 2014), also known as David Stafford's "Mix13".
constexpr uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Hashes the pair (a, b). For each a it is a bijection of b: item b of the SplitMix64 stream that
// is seeded with the mixed a. The stream's step is 2^64 divided by the golden ratio.
constexpr uint64_t HashPair(int64_t a, int64_t b) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
  const uint64_t seed = Mix64(static_cast<uint64_t>(a) + kStep);
  return Mix64(seed + kStep * static_cast<uint64_t>(b));
}

// The upper `bits` bits of a hash, which are an id in [0, 2^bits). `bits` must be in [1, 62].
constexpr int64_t ReduceToBits(uint64_t hash, int bits) {
  return static_cast<int64_t>(hash >> (64 - bits));
}

inline Status CheckHashBits(int64_t bits, const char* name) {
  if (bits >= 1 && bits <= kMaxHashBits) return Status();
  return Invalid(name, " must be in [1, ", kMaxHashBits, "], got ", bits);
}

// Sets out[k] to HashPair(salt, ids[k]), reduced to `bits` bits. Any ids are allowed.
template <class Id>
Status HashIds(Span<const Id> ids, int64_t bits, int64_t salt, const ParallelFor& parallel_for,
               int64_t* out) {
  TWML_RETURN_IF_ERROR(CheckHashBits(bits, "bits"));
  parallel_for(ids.size(), 2, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      out[k] = ReduceToBits(HashPair(salt, ids[k]), static_cast<int>(bits));
    }
  });
  return Status();
}

}  // namespace twml

#endif  // TWML_CORE_HASH_H_
