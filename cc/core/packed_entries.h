// A batch's entries as bytes that travel: ids and counts in as few bits as they need.
//
// A message is a header, then sections of 64-bit words, bits filled from the lowest: the number of
// entries of each row; the ids, or where that is less the distinct ids and for each entry which of
// them it is; the values as they are, unless the batch is binary. Words are in the machine's order.
#ifndef TWML_CORE_PACKED_ENTRIES_H_
#define TWML_CORE_PACKED_ENTRIES_H_

#include <cstdint>
#include <functional>

#include "cc/core/csr.h"
#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// Distinct ids are counted only where at most half of this many first ones are distinct.
constexpr int64_t kDistinctSample = 8192;

// Where the message of a part goes, once its size is known; null: there is no memory, and nothing
// is written. Called for part 0, 1, ... in order.
using AllocatePart = std::function<uint8_t*(int64_t part, int64_t bytes)>;

// Message p gets the entries with id mod parts = p, in order, their ids divided by `parts`. Returns
// without allocating if the input is refused.
template <class Id>
Status PackEntries(const Csr<Id>& batch, int64_t input_dim, int64_t parts, bool deduplicate,
                   const ParallelFor& parallel_for, const AllocatePart& allocate);

// Where a message's entries go: ids [entries], values [entries] unless binary, row_splits
// [rows + 1]. ids null: there is no memory, and nothing is written.
template <class Id>
struct UnpackedEntries {
  Id* ids;
  float* values;
  int64_t* row_splits;
};
template <class Id>
using AllocateUnpacked =
    std::function<UnpackedEntries<Id>(int64_t entries, int64_t rows, bool binary)>;

// What PackEntries was given. Whatever the bytes, nothing is read or written out of bounds; an id
// may be anything that fits into Id. The whole message is checked before anything is allocated, and
// what is then allocated is at most kMaxUnpackedBytesPerByte bytes for each of its own: an item of
// 8 bytes for a bit, which a batch of many empty rows really is.
constexpr int64_t kMaxUnpackedBytesPerByte = 64;
template <class Id>
Status UnpackEntries(Span<const uint8_t> packed, const AllocateUnpacked<Id>& allocate);

}  // namespace twml

#endif  // TWML_CORE_PACKED_ENTRIES_H_
