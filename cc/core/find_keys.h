// Search for keys in sorted keys.
#ifndef TWML_CORE_FIND_KEYS_H_
#define TWML_CORE_FIND_KEYS_H_

#include <cstdint>

#include "cc/core/parallel.h"
#include "cc/core/span.h"

namespace twml {

// Writes for each key its position in `known`, or -1 if it is not there. `known` must be ascending;
// otherwise keys may not be found. The time for a key is O(log(known)), and O(log(log(known))) if
// the keys are hashes: the search begins where evenly distributed keys would have it (interpolation
// search, Perl, Itai and Avni, 1978).
void FindKeys(Span<const int64_t> known, Span<const int64_t> keys, const ParallelFor& parallel_for,
              int64_t* positions);

// The same on the calling thread, without memory of its own.
void FindKeysSerially(Span<const int64_t> known, Span<const int64_t> keys, int64_t* positions);

}  // namespace twml

#endif  // TWML_CORE_FIND_KEYS_H_
