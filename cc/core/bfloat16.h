// The storage type of bfloat16 weights.
#ifndef TWML_CORE_BFLOAT16_H_
#define TWML_CORE_BFLOAT16_H_

#include <cstdint>

namespace twml {

// The upper half of a float.
struct Bfloat16 {
  uint16_t bits;
};

}  // namespace twml

#endif  // TWML_CORE_BFLOAT16_H_
