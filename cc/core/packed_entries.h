// Serialization of a batch's entries, with ids and counts in as few bits as they need.
//
// A message is a header, followed by sections of 64-bit words that are filled from the lowest bit:
// the number of entries of each row; the ids, or, if that is smaller, the gaps between the
// distinct ids in ascending order and the index of each entry's id among them; and the float32
// values, unless the batch is binary. Words have the byte order of the machine.
#ifndef TWML_CORE_PACKED_ENTRIES_H_
#define TWML_CORE_PACKED_ENTRIES_H_

#include <cstdint>
#include <functional>

#include "cc/core/csr.h"
#include "cc/core/group_by_id.h"
#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// Ids are deduplicated only if at most half of the first kDistinctSample ids are distinct.
constexpr int64_t kDistinctSample = 8192;

// Returns the memory for the message of a part, or null if it could not be allocated, in which case
// nothing is written. Called for part 0, 1, … in this order.
using AllocatePart = std::function<uint8_t*(int64_t part, int64_t bytes)>;

// Message p gets the entries with id mod parts = p in their order, with ids divided by `parts`.
// Allocates nothing if the input is invalid.
template <class Id>
Status PackEntries(const Csr<Id>& batch, int64_t input_dim, int64_t parts, bool deduplicate,
                   const ParallelFor& parallel_for, const AllocatePart& allocate);

// The memory for the entries of a message: ids [entries], values [entries] unless the batch is
// binary, and row_splits [rows + 1]. ids is null if allocation failed, in which case nothing is
// written.
template <class Id>
struct UnpackedEntries {
  Id* ids;
  float* values;
  int64_t* row_splits;
};
template <class Id>
using AllocateUnpacked =
    std::function<UnpackedEntries<Id>(int64_t entries, int64_t rows, bool binary)>;

// Reads a message of PackEntries. No bytes make it read or write out of bounds, but the ids may be
// any numbers that fit into Id. The sizes are validated before `allocate` is called, which is asked
// for at most kMaxUnpackedBytesPerByte bytes per byte of the message: a batch of many empty rows
// has an item of 8 bytes for each bit. If the codes are found to be invalid afterwards, what was
// written is undefined.
constexpr int64_t kMaxUnpackedBytesPerByte = 64;
template <class Id>
Status UnpackEntries(Span<const uint8_t> packed, const AllocateUnpacked<Id>& allocate);

// GroupBatch for the entries of a message, whose ids must be in [0, input_dim). Where it has
// distinct ids, they need not be sorted again. `binary` is whether the message must have no values.
// No bytes make it read or write out of bounds.
template <class Id>
Status GroupPackedEntries(Span<const uint8_t> packed, bool binary, int64_t input_dim,
                          const ParallelFor& parallel_for, GroupedBatch<Id>* grouped);

}  // namespace twml

#endif  // TWML_CORE_PACKED_ENTRIES_H_
