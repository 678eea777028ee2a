// IEEE float16 numbers as 16 bits, converted in software: with the same result on every CPU.
#ifndef TWML_CORE_FLOAT16_H_
#define TWML_CORE_FLOAT16_H_

#include <cmath>
#include <cstdint>
#include <cstring>

namespace twml {

constexpr float kMaxFloat16 = 65504;

// The number with these bits; infinities and NaNs included.
inline float FromFloat16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const auto mantissa = static_cast<float>(bits & 1023);
  float magnitude;
  if (exponent == 31) {
    magnitude = mantissa == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, -24);
  } else {
    magnitude = std::ldexp(1024 + mantissa, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// The nearest float16 of at most the magnitude of x. |x| must not exceed kMaxFloat16.
inline uint16_t Float16TowardZero(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const float magnitude = std::abs(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (magnitude < 0x1p-14f) return sign | static_cast<uint16_t>(magnitude * 0x1p24f);
  return sign | static_cast<uint16_t>(((bits & 0x7fffffff) >> 13) - (112u << 10));
}

// The largest float16 that is at most x, and the smallest that is at least x. |x| must be less than
// kMaxFloat16.
inline uint16_t Float16Down(float x) {
  const uint16_t bits = Float16TowardZero(x);
  return static_cast<uint16_t>(FromFloat16(bits) > x ? bits + 1 : bits);
}
inline uint16_t Float16Up(float x) {
  const uint16_t bits = Float16TowardZero(x);
  return static_cast<uint16_t>(FromFloat16(bits) < x ? bits + 1 : bits);
}

}  // namespace twml

#endif  // TWML_CORE_FLOAT16_H_
