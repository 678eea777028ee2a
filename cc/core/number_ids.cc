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

template <class Id>
bool NumberByTable(Span<const Id> ids, int64_t input_dim, int64_t sample,
                   NumberedIds<Id>* numbered) {
  const Scratch<uint32_t> code_of(input_dim);
  std::fill_n(code_of.data(), input_dim, 0);
  int64_t in_sample = 0;
  for (int64_t k = 0; k < sample; ++k) {
    in_sample += code_of[ids[k]] == 0;
    code_of[ids[k]] = 1;
  }
  if (2 * in_sample > sample) return false;
  for (int64_t k = sample; k < ids.size(); ++k) code_of[ids[k]] = 1;
  const int64_t count = std::count(code_of.data(), code_of.data() + input_dim, 1u);
  numbered->distinct = SharedScratch<Id>(count + 1);  // one more, which the last ids may write
  Id* const distinct = numbered->distinct.data();
  uint32_t next = 0;
  for (int64_t id = 0; id < input_dim; ++id) {  // a branch could not be predicted
    const uint32_t occurs = code_of[id];
    distinct[next] = static_cast<Id>(id);
    code_of[id] = next;
    next += occurs;
  }
  numbered->num_distinct = count;
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
