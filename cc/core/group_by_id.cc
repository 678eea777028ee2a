#include "cc/core/group_by_id.h"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

namespace twml {
namespace {

constexpr int kMaxDigitBits = 11;  // 2048 counters: they stay in the first-level cache
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

// A stable radix sort, least significant digit first. A stable order is unique, so neither the
// chunks nor the threads can be seen in the result.
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
    Groups<Id, Row> groups;
    groups.rows = Scratch<Row>(n_);
    if (kWeighted) groups.values = Scratch<float>(n_);
    sorted_keys_ = Scratch<Key>(n_);
    Scratch<E> from(passes > 1 ? n_ : 0), to(passes > 2 ? n_ : 0);

    const auto emit = [&](const E& e, int64_t at) {
      sorted_keys_[at] = e.key;
      groups.rows[at] = e.row;
      if constexpr (kWeighted) groups.values[at] = e.value;
    };
    for (int pass = 0; pass < passes; ++pass) {
      const int shift = pass * digit_bits_;
      const auto move = [&](const E& e, int64_t at) { to[at] = e; };
      const auto move_first = [&](const E& e, int64_t at) { from[at] = e; };
      const auto from_batch = [&](auto visit) { VisitBatch(visit); };
      const auto from_sorted = [&](auto visit) { VisitSorted(from, visit); };
      const bool last = pass == passes - 1;
      if (pass == 0 && last) {
        Pass(shift, from_batch, emit);
      } else if (pass == 0) {
        Pass(shift, from_batch, move_first);
      } else if (last) {
        Pass(shift, from_sorted, emit);
      } else {
        Pass(shift, from_sorted, move);
        std::swap(from, to);
      }
    }
    FindGroups(&groups);
    return groups;
  }

 private:
  int64_t ChunkBegin(int64_t chunk) const { return n_ * chunk / chunks_; }
  int64_t* Counts(int64_t chunk) { return counts_.data() + (chunk << digit_bits_); }

  template <class Body>
  void ForEachChunk(int64_t cost_per_entry, Body body) {
    parallel_for_(chunks_, std::max<int64_t>(1, n_ / chunks_ * cost_per_entry),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t c = begin; c < end; ++c) body(c, ChunkBegin(c), ChunkBegin(c + 1));
                  });
  }

  template <class Visit>
  void VisitBatch(Visit visit) {
    ForEachChunk(2, [&](int64_t chunk, int64_t begin, int64_t end) {
      int64_t row = 0, row_end = std::numeric_limits<int64_t>::max();
      if (!row_splits_.empty()) {
        row = std::upper_bound(row_splits_.begin(), row_splits_.end(), begin) -
              row_splits_.begin() - 1;
        row_end = begin < end ? row_splits_[row + 1] : row_end;
      }
      for (int64_t k = begin; k < end; ++k) {
        while (k >= row_end) row_end = row_splits_[++row + 1];
        E e;
        e.key = static_cast<Key>(ids_[k]);
        e.row = static_cast<Row>(row_splits_.empty() ? k : row);
        if constexpr (kWeighted) e.value = values_[k];
        visit(chunk, e);
      }
    });
  }

  template <class Visit>
  void VisitSorted(const Scratch<E>& entries, Visit visit) {
    ForEachChunk(2, [&](int64_t chunk, int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) visit(chunk, entries[k]);
    });
  }

  // One digit: count, turn the counts into places, put every entry in its place.
  template <class Source, class Put>
  void Pass(int shift, Source source, Put put) {
    const int64_t digits = int64_t{1} << digit_bits_;
    std::fill_n(counts_.data(), chunks_ * digits, 0);
    const auto digit = [&](const E& e) { return (e.key >> shift) & (digits - 1); };
    source([&](int64_t chunk, const E& e) { ++Counts(chunk)[digit(e)]; });
    int64_t at = 0;
    for (int64_t d = 0; d < digits; ++d) {
      for (int64_t c = 0; c < chunks_; ++c) {
        const int64_t count = Counts(c)[d];
        Counts(c)[d] = at;
        at += count;
      }
    }
    source([&](int64_t chunk, const E& e) { put(e, Counts(chunk)[digit(e)]++); });
  }

  void FindGroups(Groups<Id, Row>* groups) {
    const auto starts_group = [&](int64_t k) {
      return k == 0 || sorted_keys_[k] != sorted_keys_[k - 1];
    };
    std::array<int64_t, kMaxChunks + 1> first = {};
    ForEachChunk(1, [&](int64_t chunk, int64_t begin, int64_t end) {
      int64_t count = 0;
      for (int64_t k = begin; k < end; ++k) count += starts_group(k);
      first[chunk + 1] = count;
    });
    for (int64_t c = 0; c < chunks_; ++c) first[c + 1] += first[c];
    groups->num_groups = first[chunks_];
    groups->ids = Scratch<Id>(groups->num_groups);
    groups->splits = Scratch<int64_t>(groups->num_groups + 1);
    ForEachChunk(1, [&](int64_t chunk, int64_t begin, int64_t end) {
      int64_t u = first[chunk];
      for (int64_t k = begin; k < end; ++k) {
        if (!starts_group(k)) continue;
        groups->ids[u] = static_cast<Id>(sorted_keys_[k]);
        groups->splits[u++] = k;
      }
    });
    groups->splits[groups->num_groups] = n_;
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
  Scratch<Key> sorted_keys_;
};

}  // namespace

template <class Id, class Row>
Groups<Id, Row> GroupById(Span<const Id> ids, Span<const float> values,
                          Span<const int64_t> row_splits, int64_t input_dim,
                          const ParallelFor& parallel_for) {
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

#define TWML_INSTANTIATE(Id, Row)                                                \
  template Groups<Id, Row> GroupById<Id, Row>(Span<const Id>, Span<const float>, \
                                              Span<const int64_t>, int64_t, const ParallelFor&);
TWML_INSTANTIATE(int32_t, int32_t)
TWML_INSTANTIATE(int32_t, int64_t)
TWML_INSTANTIATE(int64_t, int32_t)
TWML_INSTANTIATE(int64_t, int64_t)
#undef TWML_INSTANTIATE

}  // namespace twml
