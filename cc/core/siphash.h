// SipHash-2-4 of byte strings: the hash of `tf.strings.to_hash_bucket_strong`.
//
// J.-P. Aumasson, D. J. Bernstein: "SipHash: a fast short-input PRF", INDOCRYPT 2012.
#ifndef TWML_CORE_SIPHASH_H_
#define TWML_CORE_SIPHASH_H_

#include <cstdint>

#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// The 128-bit key: its first and its second 8 bytes, little-endian.
struct SipKey {
  uint64_t k0;
  uint64_t k1;
};

// The 64-bit hash of `size` bytes. `bytes` may be null if size is 0.
uint64_t SipHash24(SipKey key, const uint8_t* bytes, int64_t size);

// The bucket of a hash, in [0, num_buckets): the remainder. num_buckets must be positive.
inline int64_t BucketOf(uint64_t hash, int64_t num_buckets) {
  const auto n = static_cast<uint64_t>(num_buckets);
  return static_cast<int64_t>((n & (n - 1)) == 0 ? hash & (n - 1) : hash % n);
}

// Checks that the offsets of strings start in the bytes, are non-decreasing, and end in the bytes.
// Offset is int32_t or int64_t.
template <class Offset>
Status CheckOffsets(Span<const Offset> offsets, int64_t num_bytes);

// out[i] = the bucket of the string bytes[offsets[i] .. offsets[i + 1]], for each of the
// offsets.size() - 1 strings; if `typed`, in the spelling of `TypedCategory`. Offset is int32_t or
// int64_t.
template <class Offset>
Status HashStrings(Span<const uint8_t> bytes, Span<const Offset> offsets, SipKey key,
                   int64_t num_buckets, const ParallelFor& parallel_for, int64_t* out,
                   bool typed = false);

}  // namespace twml

#endif  // TWML_CORE_SIPHASH_H_
