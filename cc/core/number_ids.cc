#include "cc/core/number_ids.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cc/core/group_by_id.h"
#include "cc/core/id_index.h"
#include "cc/core/parallel.h"

namespace twml {
namespace {

// Up to so many possible ids for each entry, a table of all of them is faster than a hash table.
constexpr int64_t kMaxIdsPerEntry = 16;

// Numbers the ids of a set of bits, which fits into a cache where a number for each possible id
// does not. Only the numbers of ids that occur are then written and read.
template <class Id>
bool NumberByTable(Span<const Id> ids, int64_t input_dim, int64_t sample,
                   NumberedIds<Id>* numbered) {
  const int64_t words = input_dim / 64 + 1;
  const Scratch<uint64_t> occurs(words);
  std::fill_n(occurs.data(), words, 0);
  const auto add = [&](Id id) {  // returns whether it is new
    uint64_t& word = occurs[static_cast<uint64_t>(id) / 64];
    const uint64_t before = word;
    word |= uint64_t{1} << (static_cast<uint64_t>(id) % 64);
    return word != before;
  };
  int64_t in_sample = 0;
  for (int64_t k = 0; k < sample; ++k) in_sample += add(ids[k]);
  if (2 * in_sample > sample) return false;
  for (int64_t k = sample; k < ids.size(); ++k) add(ids[k]);
  numbered->distinct = SharedScratch<Id>(std::min(input_dim, ids.size()));
  const Scratch<uint32_t> code_of(input_dim);
  Id* const distinct = numbered->distinct.data();
  uint32_t next = 0;
  for (int64_t w = 0; w < words; ++w) {
    for (uint64_t left = occurs[w]; left != 0; left &= left - 1) {
      const int64_t id = 64 * w + __builtin_ctzll(left);
      distinct[next] = static_cast<Id>(id);
      code_of[id] = next++;
    }
  }
  numbered->num_distinct = next;
  numbered->codes = Scratch<uint32_t>(ids.size());
  for (int64_t k = 0; k < ids.size(); ++k) numbered->codes[k] = code_of[ids[k]];
  return true;
}

template <class Id>
bool NumberByHash(Span<const Id> ids, int64_t input_dim, int64_t sample,
                  NumberedIds<Id>* numbered) {
  IdIndex index;
  std::vector<Id> found;
  Scratch<uint32_t> codes(ids.size());
  for (int64_t k = 0; k < ids.size(); ++k) {
    const int64_t code = index.FindOrAdd(ids[k]);
    if (code == static_cast<int64_t>(found.size())) found.push_back(ids[k]);
    codes[k] = static_cast<uint32_t>(code);
    if (k + 1 == sample && 2 * index.size() > sample) return false;
  }
  numbered->num_distinct = index.size();
  const Span<const Id> unsorted(found.data(), index.size());
  const auto sorted = GroupById<Id, int64_t>(unsorted, {}, {}, input_dim, Serial);
  const Scratch<uint32_t> code_of(index.size());
  for (int64_t u = 0; u < index.size(); ++u) code_of[sorted.rows[u]] = static_cast<uint32_t>(u);
  for (int64_t k = 0; k < ids.size(); ++k) codes[k] = code_of[codes[k]];
  numbered->codes = std::move(codes);
  numbered->distinct = sorted.ids;
  return true;
}

}  // namespace

template <class Id>
bool NumberIds(Span<const Id> ids, int64_t input_dim, int64_t sample, NumberedIds<Id>* numbered) {
  const bool few = input_dim / kMaxIdsPerEntry <= ids.size();
  return few ? NumberByTable(ids, input_dim, sample, numbered)
             : NumberByHash(ids, input_dim, sample, numbered);
}

template bool NumberIds<int32_t>(Span<const int32_t>, int64_t, int64_t, NumberedIds<int32_t>*);
template bool NumberIds<int64_t>(Span<const int64_t>, int64_t, int64_t, NumberedIds<int64_t>*);

}  // namespace twml
