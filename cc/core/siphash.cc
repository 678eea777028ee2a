#include "cc/core/siphash.h"

#include <cstring>
#include <string_view>

#include "cc/core/category_text.h"

namespace twml {
namespace {

constexpr uint64_t RotateLeft(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

// The internal state. The names v0 to v3 are from the paper.
struct State {
  uint64_t v0, v1, v2, v3;

  explicit State(SipKey key)
      : v0(key.k0 ^ 0x736f6d6570736575),
        v1(key.k1 ^ 0x646f72616e646f6d),
        v2(key.k0 ^ 0x6c7967656e657261),
        v3(key.k1 ^ 0x7465646279746573) {}

  void Round() {
    v0 += v1;
    v2 += v3;
    v1 = RotateLeft(v1, 13) ^ v0;
    v3 = RotateLeft(v3, 16) ^ v2;
    v0 = RotateLeft(v0, 32);
    v2 += v1;
    v0 += v3;
    v1 = RotateLeft(v1, 17) ^ v2;
    v3 = RotateLeft(v3, 21) ^ v0;
    v2 = RotateLeft(v2, 32);
  }

  void Compress(uint64_t word) {
    v3 ^= word;
    Round();
    Round();
    v0 ^= word;
  }

  uint64_t Finalize() {
    v2 ^= 0xff;
    for (int i = 0; i < 4; ++i) Round();
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

// The little-endian word of `size` bytes, at most 8; the bytes that are missing are 0.
uint64_t LoadWord(const uint8_t* bytes, int64_t size) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  if (size == 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    return word;
  }
#endif
  uint64_t word = 0;
  for (int64_t i = 0; i < size; ++i) word |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return word;
}

}  // namespace

uint64_t SipHash24(SipKey key, const uint8_t* bytes, int64_t size) {
  State state(key);
  const int64_t whole = size & ~int64_t{7};
  for (int64_t i = 0; i < whole; i += 8) state.Compress(LoadWord(bytes + i, 8));
  // The last word has the length, modulo 256, in its highest byte.
  const uint64_t rest = size == whole ? 0 : LoadWord(bytes + whole, size - whole);
  state.Compress(rest | static_cast<uint64_t>(size) << 56);
  return state.Finalize();
}

template <class Offset>
Status CheckOffsets(Span<const Offset> offsets, int64_t num_bytes) {
  if (offsets.empty()) return Invalid("offsets must have at least 1 element, got 0");
  if (offsets[0] < 0) return Invalid("offsets[0] must be at least 0, got ", offsets[0]);
  for (int64_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) {
      return Invalid("offsets must be non-decreasing, got ", offsets[i - 1], " and ", offsets[i],
                     " at ", i - 1, " and ", i);
    }
  }
  const int64_t last = offsets[offsets.size() - 1];
  if (last <= num_bytes) return Status();
  return Invalid("the last offset must be at most the number of bytes, ", num_bytes, ", got ",
                 last);
}

template <class Offset>
Status HashStrings(Span<const uint8_t> bytes, Span<const Offset> offsets, SipKey key,
                   int64_t num_buckets, const ParallelFor& parallel_for, int64_t* out, bool typed) {
  if (num_buckets < 1) return Invalid("num_buckets must be at least 1, got ", num_buckets);
  TWML_RETURN_IF_ERROR(CheckOffsets(offsets, bytes.size()));
  const int64_t count = offsets.size() - 1;
  if (count == 0) return Status();
  const int64_t per_string = (offsets[count] - offsets[0]) / count;
  parallel_for(count, 20 + 2 * per_string, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto* text = reinterpret_cast<const char*>(bytes.data() + offsets[i]);
      std::string_view token(text, static_cast<size_t>(offsets[i + 1] - offsets[i]));
      if (typed) token = TypedCategory(token);
      const auto* data = reinterpret_cast<const uint8_t*>(token.data());
      out[i] = BucketOf(SipHash24(key, data, static_cast<int64_t>(token.size())), num_buckets);
    }
  });
  return Status();
}

template Status CheckOffsets(Span<const int32_t>, int64_t);
template Status CheckOffsets(Span<const int64_t>, int64_t);
template Status HashStrings(Span<const uint8_t>, Span<const int32_t>, SipKey, int64_t,
                            const ParallelFor&, int64_t*, bool);
template Status HashStrings(Span<const uint8_t>, Span<const int64_t>, SipKey, int64_t,
                            const ParallelFor&, int64_t*, bool);

}  // namespace twml
