#include "cc/core/group_by_id.h"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>
#include <utility>

namespace twml {
namespace {

constexpr int kMaxDigitBits = 11;  // 2048 counters, which stay in the L1 cache
constexpr int64_t kEntriesPerChunk = 1 << 14;
constexpr int64_t kMaxChunks = 64;

template <class Key, class Row, bool kWeighted>
struct Entry;
template <class Key, class Row>
struct Entry<Key, Row, true> {
  Key key;
  Row row;
  float value;
};
template <class Key, class Row>
struct Entry<Key, Row, false> {
  Key key;
  Row row;
};

int BitsOf(int64_t last_id) {
  int bits = 1;
  while (bits < 63 && (last_id >> bits) != 0) ++bits;
  return bits;
}

// Calls visit(k, row) for each of the entries [begin, end). Without row_splits entry k is row k.
template <class Visit>
void ForEachRow(Span<const int64_t> row_splits, int64_t begin, int64_t end, Visit visit) {
  if (row_splits.empty()) {
    for (int64_t k = begin; k < end; ++k) visit(k, k);
    return;
  }
  int64_t row =
      std::upper_bound(row_splits.begin(), row_splits.end(), begin) - row_splits.begin() - 1;
  for (int64_t k = begin; k < end; ++row) {
    const int64_t row_end = std::min(end, row_splits[row + 1]);
    for (; k < row_end; ++k) visit(k, row);
  }
}

// A stable radix sort, least significant digit first. A stable order is unique, so the result does
// not depend on the chunks or the threads.
template <class Id, class Row, class Key, bool kWeighted>
class Grouper {
  using E = Entry<Key, Row, kWeighted>;

 public:
  Grouper(Span<const Id> ids, Span<const float> values, Span<const int64_t> row_splits,
          int64_t input_dim, const ParallelFor& parallel_for)
      : ids_(ids),
        values_(values),
        row_splits_(row_splits),
        parallel_for_(parallel_for),
        n_(ids.size()),
        bits_(BitsOf(input_dim - 1)),
        chunks_(std::clamp<int64_t>(n_ / kEntriesPerChunk, 1, kMaxChunks)) {}

  Groups<Id, Row> Run() {
    const int passes = (bits_ + kMaxDigitBits - 1) / kMaxDigitBits;
    digit_bits_ = (bits_ + passes - 1) / passes;
    counts_ = Scratch<int64_t>(chunks_ << digit_bits_);
    Scratch<E> from(n_), to(passes > 1 ? n_ : 0);
    ScatterBatch(from.data());
    for (int pass = 1; pass < passes; ++pass) {
      ScatterByDigit(pass * digit_bits_, from.data(), to.data());
      std::swap(from, to);
    }
    return FindGroups(from.data());
  }

 private:
  int64_t ChunkBegin(int64_t chunk) const { return n_ * chunk / chunks_; }
  int64_t* Counts(int64_t chunk) { return counts_.data() + (chunk << digit_bits_); }
  int64_t num_digits() const { return int64_t{1} << digit_bits_; }

  // Calls body(chunk, begin, end) with the entries of each chunk.
  template <class Body>
  void ForEachChunk(Body body) {
    constexpr int64_t kCostPerEntry = 2;
    parallel_for_(chunks_, std::max<int64_t>(1, n_ / chunks_ * kCostPerEntry),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t c = begin; c < end; ++c) body(c, ChunkBegin(c), ChunkBegin(c + 1));
                  });
  }

  // Sorts the batch by its first digit. Entries are created as they are written.
  void ScatterBatch(E* to) {
    const auto digit = [&](int64_t k) { return static_cast<Key>(ids_[k]) & (num_digits() - 1); };
    ComputePositions(digit);
    ForEachChunk([&](int64_t chunk, int64_t begin, int64_t end) {
      int64_t* const positions = Counts(chunk);
      ForEachRow(row_splits_, begin, end,
                 [&](int64_t k, int64_t row) __attribute__((always_inline)) {
                   E e;
                   e.key = static_cast<Key>(ids_[k]);
                   e.row = static_cast<Row>(row);
                   if constexpr (kWeighted) e.value = values_[k];
                   to[positions[digit(k)]++] = e;
                 });
    });
  }

  // Sorts by another digit. The entries are sorted by all lower digits.
  void ScatterByDigit(int shift, const E* from, E* to) {
    const auto digit = [&](int64_t k) { return (from[k].key >> shift) & (num_digits() - 1); };
    ComputePositions(digit);
    ForEachChunk([&](int64_t chunk, int64_t begin, int64_t end) {
      int64_t* const positions = Counts(chunk);
      for (int64_t k = begin; k < end; ++k) to[positions[digit(k)]++] = from[k];
    });
  }

  // Sets Counts(chunk)[d] to the output position of the chunk's first entry with digit d.
  template <class Digit>
  void ComputePositions(Digit digit) {
    std::fill_n(counts_.data(), chunks_ << digit_bits_, 0);
    ForEachChunk([&](int64_t chunk, int64_t begin, int64_t end) {
      int64_t* const counts = Counts(chunk);
      for (int64_t k = begin; k < end; ++k) ++counts[digit(k)];
    });
    std::array<int64_t, 1 << kMaxDigitBits> next = {};
    for (int64_t c = 0; c < chunks_; ++c) {
      const int64_t* const counts = Counts(c);
      for (int64_t d = 0; d < num_digits(); ++d) next[d] += counts[d];
    }
    int64_t at = 0;
    for (int64_t d = 0; d < num_digits(); ++d) at += std::exchange(next[d], at);
    for (int64_t c = 0; c < chunks_; ++c) {
      int64_t* const counts = Counts(c);
      for (int64_t d = 0; d < num_digits(); ++d) next[d] += std::exchange(counts[d], next[d]);
    }
  }

  Groups<Id, Row> FindGroups(const E* sorted) {
    const auto ends_group = [&](int64_t k) {
      return k + 1 == n_ || sorted[k + 1].key != sorted[k].key;
    };
    std::array<int64_t, kMaxChunks + 1> first = {};
    ForEachChunk([&](int64_t chunk, int64_t begin, int64_t end) {
      int64_t count = 0;
      for (int64_t k = begin; k < std::min(end, n_ - 1); ++k) {
        count += sorted[k + 1].key != sorted[k].key;
      }
      first[chunk + 1] = count;
    });
    for (int64_t c = 0; c < chunks_; ++c) first[c + 1] += first[c];
    Groups<Id, Row> groups;
    groups.num_groups = first[chunks_] + 1;
    groups.ids = SharedScratch<Id>(groups.num_groups);
    groups.splits = SharedScratch<int64_t>(groups.num_groups + 1);
    groups.rows = Scratch<Row>(n_);
    if (kWeighted) groups.values = Scratch<float>(n_);
    groups.splits[0] = 0;
    ForEachChunk([&](int64_t chunk, int64_t begin, int64_t end) {
      Row* const rows = groups.rows.data();
      float* const values = groups.values.data();
      Id* const ids = groups.ids.data();
      int64_t* const ends = groups.splits.data() + 1;
      for (int64_t k = begin; k < end; ++k) rows[k] = sorted[k].row;
      if constexpr (kWeighted) {
        for (int64_t k = begin; k < end; ++k) values[k] = sorted[k].value;
      }
      // The chunk writes the groups that end in it. It writes at each of their entries, because a
      // branch could not be predicted.
      int64_t last = end;
      while (last > begin && !ends_group(last - 1)) --last;
      int64_t u = first[chunk];
      for (int64_t k = begin; k < last; ++k) {
        const Key key = sorted[k].key;
        ids[u] = static_cast<Id>(key);
        ends[u] = k + 1;
        u += k + 1 == last || sorted[k + 1].key != key;
      }
    });
    return groups;
  }

  const Span<const Id> ids_;
  const Span<const float> values_;
  const Span<const int64_t> row_splits_;
  const ParallelFor& parallel_for_;
  const int64_t n_;
  const int bits_;
  const int64_t chunks_;
  int digit_bits_ = 0;
  Scratch<int64_t> counts_;
};

// A counting sort of entries by codes, which must be less than the number of ids. Codes without
// entries get empty groups.
template <class Row, class Position, class Id>
Groups<Id, Row> GroupByCode(const Csr<Id>& batch, Span<const uint32_t> codes,
                            const ParallelFor& parallel_for) {
  const int64_t n = codes.size(), num_ids = batch.ids.size();
  // The counters of all chunks take no more memory than the entries. To wake other threads does not
  // pay for less than half a millisecond.
  constexpr int64_t kCodesPerChunk = 1 << 17;
  const auto chunks = std::clamp<int64_t>(n / std::max(kCodesPerChunk, num_ids), 1, kMaxChunks);
  const Scratch<Position> counts(chunks * num_ids);
  const uint32_t* const code_of = codes.data();
  const auto for_each_chunk = [&](auto body) {
    parallel_for(chunks, 2 * n / chunks + 1, [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) {
        body(counts.data() + c * num_ids, n * c / chunks, n * (c + 1) / chunks);
      }
    });
  };
  for_each_chunk([&](Position* of_chunk, int64_t begin, int64_t end) {
    std::fill_n(of_chunk, num_ids, 0);
    for (int64_t k = begin; k < end; ++k) ++of_chunk[code_of[k]];
  });
  Groups<Id, Row> groups;
  groups.num_groups = num_ids;
  groups.ids = SharedScratch<Id>(num_ids);
  groups.splits = SharedScratch<int64_t>(num_ids + 1);
  groups.rows = Scratch<Row>(n);
  groups.values = Scratch<float>(batch.binary ? 0 : n);
  std::copy_n(batch.ids.data(), num_ids, groups.ids.data());
  int64_t* const splits = groups.splits.data();
  Position* const of_first = counts.data();
  Position at = 0;
  for (int64_t u = 0; u < num_ids; ++u) {
    splits[u] = at;
    for (int64_t c = 0; c < chunks; ++c) at += std::exchange(of_first[c * num_ids + u], at);
  }
  splits[num_ids] = at;
  Row* const rows = groups.rows.data();
  const auto scatter = [&](auto write) {
    for_each_chunk([&](Position* positions, int64_t begin, int64_t end) {
      constexpr int64_t kAhead = 16;
      ForEachRow(batch.row_splits, begin, end,
                 [&](int64_t k, int64_t row) __attribute__((always_inline)) {
                   const uint32_t later = code_of[std::min(k + kAhead, n - 1)];
                   __builtin_prefetch(rows + positions[later], 1);
                   const Position to = positions[code_of[k]]++;
                   rows[to] = static_cast<Row>(row);
                   write(to, k);
                 });
    });
  };
  if (batch.binary) {
    scatter([](Position, int64_t) {});
  } else {
    float* const values = groups.values.data();
    scatter([=, &batch](Position to, int64_t k) { values[to] = batch.values[k]; });
  }
  return groups;
}

// The groups `order`, whose rows are numbers of entries, with the rows and values of these entries.
template <class Row, class Id, class Position>
Groups<Id, Row> EntriesInOrder(const Groups<Id, Position>& order, const Csr<Id>& batch,
                               const ParallelFor& parallel_for) {
  struct RowAndValue {
    Row row;
    float value;
  };
  const int64_t n = batch.num_entries();
  Groups<Id, Row> groups;
  groups.ids = order.ids;
  groups.splits = order.splits;
  groups.num_groups = order.num_groups;
  groups.rows = Scratch<Row>(n);
  const Position* const from = order.rows.data();
  Row* const rows = groups.rows.data();
  // The row and the value of an entry are next to each other, so that one cache miss fetches both.
  const auto run = [&](auto* entries, auto make, auto write) {
    parallel_for(n, 1, [&](int64_t begin, int64_t end) {
      ForEachRow(batch.row_splits, begin, end,
                 [&](int64_t k, int64_t row) { entries[k] = make(k, static_cast<Row>(row)); });
    });
    parallel_for(n, 2, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) write(k, entries[from[k]]);
    });
  };
  if (batch.binary) {
    const Scratch<Row> entries(n);
    run(
        entries.data(), [](int64_t, Row row) { return row; },
        [&](int64_t k, Row row) { rows[k] = row; });
    return groups;
  }
  groups.values = Scratch<float>(n);
  float* const values = groups.values.data();
  const Scratch<RowAndValue> entries(n);
  run(
      entries.data(), [&](int64_t k, Row row) { return RowAndValue{row, batch.values[k]}; },
      [&](int64_t k, const RowAndValue& entry) {
        rows[k] = entry.row;
        values[k] = entry.value;
      });
  return groups;
}

}  // namespace

template <class Id, class Row>
Groups<Id, Row> GroupById(Span<const Id> ids, Span<const float> values,
                          Span<const int64_t> row_splits, int64_t input_dim,
                          const ParallelFor& parallel_for) {
  if (ids.empty()) return Groups<Id, Row>();
  const auto run = [&](auto key, auto weighted) {
    return Grouper<Id, Row, decltype(key), decltype(weighted)::value>(ids, values, row_splits,
                                                                      input_dim, parallel_for)
        .Run();
  };
  const bool narrow = input_dim <= int64_t{1} << 32;
  if (values.empty()) {
    return narrow ? run(uint32_t{}, std::false_type{}) : run(uint64_t{}, std::false_type{});
  }
  return narrow ? run(uint32_t{}, std::true_type{}) : run(uint64_t{}, std::true_type{});
}

template <class Id>
Status GroupIds(Span<const Id> ids, int64_t input_dim, const ParallelFor& parallel_for,
                GroupedBatch<Id>* grouped) {
  TWML_RETURN_IF_ERROR(CheckIds(ids, input_dim, parallel_for));
  grouped->num_rows = grouped->num_entries = ids.size();
  grouped->input_dim = input_dim;
  WithRowType(ids.size(), [&](auto row) {
    grouped->groups = GroupById<Id, decltype(row)>(ids, {}, {}, input_dim, parallel_for);
  });
  return Status();
}

template <class Id>
Status GroupBatch(const Csr<Id>& batch, int64_t input_dim, const GroupedBatch<Id>* grouped_ids,
                  const ParallelFor& parallel_for, GroupedBatch<Id>* grouped) {
  TWML_RETURN_IF_ERROR(CheckCsrShape(batch));
  if (grouped_ids == nullptr) {
    TWML_RETURN_IF_ERROR(CheckIds(batch.ids, input_dim, parallel_for));
  } else {
    TWML_RETURN_IF_ERROR(CheckGroupedIds(*grouped_ids, batch.ids, input_dim, parallel_for));
  }
  grouped->num_rows = batch.num_rows();
  grouped->num_entries = batch.num_entries();
  grouped->input_dim = input_dim;
  WithRowType(batch.num_rows(), [&](auto row) {
    using Row = decltype(row);
    if (grouped_ids == nullptr) {
      grouped->groups =
          GroupById<Id, Row>(batch.ids, batch.values, batch.row_splits, input_dim, parallel_for);
    } else {
      std::visit(
          [&](const auto& order) {
            grouped->groups = EntriesInOrder<Row>(order, batch, parallel_for);
          },
          grouped_ids->groups);
    }
  });
  return Status();
}

template <class Id>
Status GroupCodedBatch(const Csr<Id>& batch, Span<const uint32_t> codes, int64_t input_dim,
                       const ParallelFor& parallel_for, GroupedBatch<Id>* grouped) {
  const int64_t n = codes.size(), num_ids = batch.ids.size();
  TWML_RETURN_IF_ERROR(CheckRowSplits(batch.row_splits, n));
  if (batch.values.size() != (batch.binary ? 0 : n)) {
    return Invalid("values must have ", batch.binary ? 0 : n, " items, got ", batch.values.size());
  }
  TWML_RETURN_IF_ERROR(CheckIds(batch.ids, input_dim, parallel_for));
  const auto not_greater =
      std::adjacent_find(batch.ids.begin(), batch.ids.end(), [](Id a, Id b) { return a >= b; });
  if (not_greater != batch.ids.end()) {
    return Invalid("distinct ids must increase, but ids[", not_greater - batch.ids.begin(),
                   "] = ", *not_greater, " is followed by ", *(not_greater + 1));
  }
  const Span<const int32_t> narrow(reinterpret_cast<const int32_t*>(codes.data()), n);
  if (num_ids > std::numeric_limits<int32_t>::max() || !IdsInRange(narrow, num_ids)) {
    uint32_t largest = 0;
    for (const uint32_t code : codes) largest = std::max(largest, code);
    if (n > 0 && static_cast<int64_t>(largest) >= num_ids) {
      return Invalid("codes must be in [0, ", num_ids, "), got ", largest);
    }
  }
  grouped->num_rows = batch.num_rows();
  grouped->num_entries = n;
  grouped->input_dim = input_dim;
  int64_t empty = -1;
  WithRowType(batch.num_rows(), [&](auto row) {
    WithRowType(n, [&](auto position) {
      auto groups = GroupByCode<decltype(row), decltype(position)>(batch, codes, parallel_for);
      for (int64_t u = 0; u < num_ids; ++u) {
        if (groups.splits[u] == groups.splits[u + 1]) empty = u;
      }
      grouped->groups = std::move(groups);
    });
  });
  if (empty >= 0) return Invalid("ids[", empty, "] = ", batch.ids[empty], " has no entry");
  return Status();
}

template <class Id>
Status CheckGroupedIds(const GroupedBatch<Id>& groups, Span<const Id> ids, int64_t input_dim,
                       const ParallelFor& parallel_for) {
  if (groups.num_entries != ids.size() || groups.num_rows != ids.size()) {
    return Invalid("groups must be made of the ", ids.size(), " ids, got ", groups.num_entries,
                   " entries of ", groups.num_rows, " rows");
  }
  return groups.input_dim <= input_dim ? Status() : CheckIds(ids, input_dim, parallel_for);
}

#define TWML_INSTANTIATE(Id, Row)                                                \
  template Groups<Id, Row> GroupById<Id, Row>(Span<const Id>, Span<const float>, \
                                              Span<const int64_t>, int64_t, const ParallelFor&);
TWML_INSTANTIATE(int32_t, int32_t)
TWML_INSTANTIATE(int32_t, int64_t)
TWML_INSTANTIATE(int64_t, int32_t)
TWML_INSTANTIATE(int64_t, int64_t)
#undef TWML_INSTANTIATE

#define TWML_INSTANTIATE(Id)                                                                    \
  template Status GroupIds<Id>(Span<const Id>, int64_t, const ParallelFor&, GroupedBatch<Id>*); \
  template Status GroupBatch<Id>(const Csr<Id>&, int64_t, const GroupedBatch<Id>*,              \
                                 const ParallelFor&, GroupedBatch<Id>*);                        \
  template Status GroupCodedBatch<Id>(const Csr<Id>&, Span<const uint32_t>, int64_t,            \
                                      const ParallelFor&, GroupedBatch<Id>*);                   \
  template Status CheckGroupedIds<Id>(const GroupedBatch<Id>&, Span<const Id>, int64_t,         \
                                      const ParallelFor&);
TWML_INSTANTIATE(int32_t)
TWML_INSTANTIATE(int64_t)
#undef TWML_INSTANTIATE

}  // namespace twml
