// The order in which the rows of a DynamicLookup are evicted, without a look at all rows.
#ifndef TWML_CORE_DYNAMIC_LOOKUP_EVICTIONS_H_
#define TWML_CORE_DYNAMIC_LOOKUP_EVICTIONS_H_

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "cc/core/span.h"

namespace twml {

// A row that may be evicted. Smaller ones go first.
using Victim = std::tuple<int64_t, int64_t, int64_t>;  // uses, last use, row

// What decides which rows are evicted.
struct RowUses {
  Span<const int64_t> last_used;  // 0: the row is free. Row 0 is never evicted.
  Span<const int64_t> counts;     // empty: the last use alone decides

  Victim KeyOf(int64_t row) const {
    return {counts.empty() ? 0 : counts[row], last_used[row], row};
  }
};

// A heap of the rows with the smallest keys. All rows that are not in it have larger keys than
// `bound_`, which stays so, because the key of a row only grows until the row is evicted. A key
// in the heap may be an earlier one of its row; then the row goes back with the current one. All
// rows are looked at again when the heap is empty, which is after many rows were evicted.
class EvictionOrder {
 public:
  explicit EvictionOrder(int64_t capacity);

  // Takes the `number` smallest rows that were not used after lookup `newest`, in ascending order.
  // `victims` must have room for them; nothing is allocated.
  void Take(const RowUses& uses, int64_t newest, int64_t number, std::vector<Victim>* victims);

  // A row that was taken has a new id.
  void Add(const RowUses& uses, int64_t row);

  // The number of keys that were looked at so far.
  int64_t work() const { return work_; }

  // Whether this may be the order of a state: some rows are compared.
  bool Fits(const RowUses& uses) const;

 private:
  void Build(const RowUses& uses, int64_t number);
  void Push(const Victim& key);

  std::vector<Victim> heap_;
  std::vector<bool> in_heap_;
  Victim bound_;
  bool has_all_ = false;  // rows in the heap
  bool built_ = false;
  int64_t work_ = 0;
};

// Identifies a state: where it is, and what its header says after its last lookup.
struct StateStamp {
  const void* last_used = nullptr;
  int64_t capacity = 0, lookups = 0, used = 0;
  bool by_counts = false;

  bool operator==(const StateStamp& other) const {
    return last_used == other.last_used && capacity == other.capacity && lookups == other.lookups &&
           used == other.used && by_counts == other.by_counts;
  }
};

// The order of a state that KeepEvictionOrder was called with, or null if there is none, or if the
// state has been changed otherwise. Orders are kept beside the states, whose format they are no
// part of, for the states that were used last.
std::unique_ptr<EvictionOrder> TakeEvictionOrder(const StateStamp& stamp, const RowUses& uses);
void KeepEvictionOrder(const StateStamp& stamp, std::unique_ptr<EvictionOrder> order);

}  // namespace twml

#endif  // TWML_CORE_DYNAMIC_LOOKUP_EVICTIONS_H_
