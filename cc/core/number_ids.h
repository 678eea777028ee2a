// Numbers the distinct ids of a batch in ascending order.
#ifndef TWML_CORE_NUMBER_IDS_H_
#define TWML_CORE_NUMBER_IDS_H_

#include <cstdint>

#include "cc/core/scratch.h"
#include "cc/core/span.h"

namespace twml {

template <class Id>
struct NumberedIds {
  SharedScratch<Id> distinct;  // ascending
  int64_t num_distinct = 0;
  Scratch<uint32_t> codes;  // distinct[codes[k]] is id k
};

// Numbers at most 2^32 - 1 ids, each in [0, input_dim). Returns false, and no numbers, if more than
// half of the first `sample` ids are distinct; `sample` is at most the number of ids.
template <class Id>
bool NumberIds(Span<const Id> ids, int64_t input_dim, int64_t sample, NumberedIds<Id>* numbered);

}  // namespace twml

#endif  // TWML_CORE_NUMBER_IDS_H_
