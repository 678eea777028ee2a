// Rows of a bounded table for ids of an unbounded space.
#ifndef TWML_CORE_DYNAMIC_LOOKUP_H_
#define TWML_CORE_DYNAMIC_LOOKUP_H_

#include <cstdint>
#include <vector>

#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

enum class Eviction {
  kNone,  // ids that find no free row share row 0
  kLru,   // the least recently used row is evicted
  kLfu,   // the row with the fewest uses is evicted; of several, the least recently used
  kAge,   // as kLru, but only rows that were not used by the last max_age lookups
};

struct DynamicLookupOptions {
  int64_t min_count = 1;  // sightings after which an id gets a row, in [1, 255]
  Eviction eviction = Eviction::kLru;
  int64_t max_age = 0;      // for kAge
  int64_t pinned = 1;       // rows that the last `pinned` lookups used are not evicted
  int64_t seed = 0;         // of the hashes
  int64_t* work = nullptr;  // adds the number of rows that were looked at to find the evicted ones
};

// The state. Row 0 is shared by all ids without a row. A row is free if last_used is 0.
template <class Int64, class Int32, class Byte>
struct DynamicRows {
  Span<Int64> keys, last_used, counts;  // [capacity]
  Span<Int32> index;                    // a power of two of at least 2 * capacity rows or -1:
                                        // open addressing with linear probing
  Span<Byte> sketch;                    // [kSketchDepth, width], width a power of two or 0
  Span<Int64> header;                   // lookups, rows in use, sightings since the
                                        // sketch was halved, the lookup in which it was
};
using ConstDynamicRows = DynamicRows<const int64_t, const int32_t, const uint8_t>;
using MutableDynamicRows = DynamicRows<int64_t, int32_t, uint8_t>;

constexpr int64_t kSketchDepth = 4;
constexpr int64_t kDynamicHeaderSize = 4;

// Writes the row of each id, or 0 if it has none.
Status FindDynamicRows(Span<const int64_t> ids, const ConstDynamicRows& state,
                       const DynamicLookupOptions& options, const ParallelFor& parallel_for,
                       int64_t* rows);

// Checks the sizes of the keys and of the index of a state that is only read.
Status CheckDynamicIndex(int64_t num_keys, int64_t index_size);

// FindDynamicRows on the calling thread, from the keys and the index alone, whose sizes were
// checked. Rows are in [0, keys.size()) whatever the arrays hold.
void FindDynamicRowsSerially(Span<const int64_t> ids, Span<const int64_t> keys,
                             Span<const int32_t> index, int64_t seed, int64_t* rows);

// FindDynamicRows after the ids were counted and new ones got rows, in the order of their first
// occurrence. `reset` receives the rows that have a new id, in the order in which they were given.
//
// An id without a row gets one after min_count sightings, which a count-min sketch counts (Cormode
// and Muthukrishnan, 2005). Its counters are halved after every width / 2 sightings, so that they
// say what was recently seen (Einziger, Friedman and Manes, 2017, "TinyLFU"), but not more often
// than every min_count lookups, so that an id that is in every lookup is always admitted. The
// result depends on the sequence of lookups only, not on the threads. An error leaves the state
// unchanged. While a table is full, the process keeps the order in which its rows leave, so
// that a lookup does not look at all of them; what has changed the state meanwhile is noticed by
// the header and by samples.
Status AssignDynamicRows(Span<const int64_t> ids, const MutableDynamicRows& state,
                         const DynamicLookupOptions& options, const ParallelFor& parallel_for,
                         int64_t* rows, std::vector<int64_t>* reset);

}  // namespace twml

#endif  // TWML_CORE_DYNAMIC_LOOKUP_H_
