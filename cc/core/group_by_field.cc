#include "cc/core/group_by_field.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cc/core/first_position.h"

namespace twml {
namespace {

constexpr int64_t kMaxRowsOfField = 1 << 19;  // their counts still fit into a near cache
constexpr int64_t kMaxEntries = int64_t{1} << 31;
constexpr int64_t kFieldsPerTask = 4;  // whose ids are next to each other in a cache line

constexpr int64_t kRowsPerLine = 64;  // flags in a cache line

int64_t LinesOf(int64_t rows) { return (rows + kRowsPerLine - 1) / kRowsPerLine; }

int64_t RoundUpTo8(int64_t n) { return (n + 7) / 8 * 8; }

// Calls visit(i) for the bytes of [begin, end) that are not 0, in ascending order, and sets them to
// 0. `end` is a multiple of 8 from `begin`.
template <class Visit>
void TakeFlags(uint8_t* flags, int64_t begin, int64_t end, Visit visit) {
  for (int64_t i = begin; i < end; i += 8) {
    uint64_t word;
    std::memcpy(&word, flags + i, sizeof(word));
    if (word == 0) continue;
    std::memset(flags + i, 0, sizeof(word));
    for (; word != 0; word &= word - 1) visit(i + __builtin_ctzll(word) / 8);
  }
}

// Groups the entries of some fields at a time.
template <class Id, class Row>
class FieldGrouper {
 public:
  FieldGrouper(Span<const Id> ids, Span<const int64_t> field_starts, bool row_per_entry,
               const ParallelFor& parallel_for)
      : ids_(ids),
        starts_(field_starts),
        row_per_entry_(row_per_entry),
        parallel_for_(parallel_for),
        width_(field_starts.size() - 1),
        height_(ids.size() / width_) {
    for (int64_t f = 0; f < width_; ++f) max_rows_ = std::max(max_rows_, RowsOf(f));
  }

  Status Run(Groups<Id, Row>* groups) {
    const int64_t n = ids_.size();
    groups->rows = Scratch<Row>(n);
    const Scratch<uint32_t> keys(n), ends(n);  // of the groups of each field
    std::vector<int64_t> first(width_ + 1);
    const int64_t tasks = (width_ + kFieldsPerTask - 1) / kFieldsPerTask;
    parallel_for_(tasks, kFieldsPerTask * (height_ * 4 + LinesOf(max_rows_)),
                  [&](int64_t begin, int64_t end) {
                    Workspace work(*this);
                    for (int64_t t = begin; t < end; ++t) {
                      const int64_t from = t * kFieldsPerTask;
                      const int64_t to = std::min(from + kFieldsPerTask, width_);
                      if (!ReadKeys(from, to, work.keys.data())) continue;
                      for (int64_t f = from; f < to; ++f) {
                        first[f + 1] = GroupField(f, work.keys.data() + (f - from) * height_, work,
                                                  keys.data() + f * height_,
                                                  ends.data() + f * height_, groups->rows.data());
                      }
                    }
                  });
    if (out_of_field_.found()) return OutOfField(out_of_field_.value());
    for (int64_t f = 0; f < width_; ++f) first[f + 1] += first[f];
    groups->num_groups = first[width_];
    groups->ids = SharedScratch<Id>(groups->num_groups);
    groups->splits = SharedScratch<int64_t>(groups->num_groups + 1);
    groups->splits[0] = 0;
    for (int64_t f = 0; f < width_; ++f) {
      for (int64_t u = first[f], i = f * height_; u < first[f + 1]; ++u, ++i) {
        groups->ids[u] = static_cast<Id>(starts_[f] + keys[i]);
        groups->splits[u + 1] = ends[i];
      }
    }
    return Status();
  }

 private:
  // The memory of one thread, for one field at a time.
  struct Workspace {
    explicit Workspace(const FieldGrouper& grouper)
        : keys(kFieldsPerTask * grouper.height_),
          ranks(grouper.max_rows_),
          flags(LinesOf(grouper.max_rows_) * kRowsPerLine),
          lines(RoundUpTo8(LinesOf(grouper.max_rows_))) {
      std::fill_n(flags.data(), LinesOf(grouper.max_rows_) * kRowsPerLine, 0);
      std::fill_n(lines.data(), RoundUpTo8(LinesOf(grouper.max_rows_)), 0);
    }
    Scratch<uint32_t> keys;   // of each entry of a task: its id relative to the first of its field
    Scratch<uint32_t> ranks;  // of each key that is present: the number of smaller ones
    Scratch<uint8_t> flags;   // of each key: whether it is present
    Scratch<uint8_t> lines;   // of each cache line of `flags`: whether one of them is set
  };

  int64_t RowsOf(int64_t f) const { return starts_[f + 1] - starts_[f]; }

  // Writes the keys of the fields [from, to), one field after the other. Returns whether all ids
  // are in the range of their field.
  bool ReadKeys(int64_t from, int64_t to, uint32_t* keys) {
    constexpr int64_t kBlock = 64;  // rows, whose ids stay in the L1 cache
    const Id* const ids = ids_.data();
    const int64_t width = width_, height = height_;
    for (int64_t begin = 0; begin < height; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, height);
      bool bad = false;
      for (int64_t f = from; f < to; ++f) {
        const auto start = static_cast<uint64_t>(starts_[f]);
        const auto rows = static_cast<uint64_t>(RowsOf(f));
        uint32_t* const out = keys + (f - from) * height;
        for (int64_t b = begin; b < end; ++b) {
          const uint64_t key = static_cast<uint64_t>(ids[b * width + f]) - start;
          bad |= key >= rows;
          out[b] = static_cast<uint32_t>(key);
        }
      }
      if (!bad) continue;
      for (int64_t k = begin * width;; ++k) {
        const int64_t f = k % width;
        if (f < from || f >= to || (ids[k] >= starts_[f] && ids[k] < starts_[f + 1])) continue;
        out_of_field_.Record(k);
        return false;
      }
    }
    return true;
  }

  // Groups the entries of field f with these keys, which become numbers of groups. Returns the
  // number of groups, whose keys and ends it writes.
  int64_t GroupField(int64_t f, uint32_t* keys, const Workspace& work, uint32_t* present,
                     uint32_t* ends, Row* rows) const {
    const int64_t height = height_;
    uint32_t* const ranks = work.ranks.data();
    uint8_t *const flags = work.flags.data(), *const lines = work.lines.data();
    for (int64_t b = 0; b < height; ++b) {
      flags[keys[b]] = 1;
      lines[keys[b] / kRowsPerLine] = 1;
    }
    int64_t groups = 0;
    TakeFlags(lines, 0, RoundUpTo8(LinesOf(RowsOf(f))), [&](int64_t line) {
      const int64_t begin = line * kRowsPerLine;
      TakeFlags(flags, begin, begin + kRowsPerLine, [&](int64_t key) {
        ranks[key] = static_cast<uint32_t>(groups);
        present[groups++] = static_cast<uint32_t>(key);
      });
    });
    std::fill_n(ends, groups, 0);
    for (int64_t b = 0; b < height; ++b) {
      keys[b] = ranks[keys[b]];
      ++ends[keys[b]];
    }
    auto at = static_cast<uint32_t>(f * height);
    for (int64_t u = 0; u < groups; ++u) at += std::exchange(ends[u], at);
    const int64_t row = row_per_entry_ ? f : 0, step = row_per_entry_ ? width_ : 1;
    for (int64_t b = 0; b < height; ++b) rows[ends[keys[b]]++] = static_cast<Row>(row + b * step);
    return groups;
  }

  Status OutOfField(int64_t k) const {
    const int64_t f = k % width_;
    return Invalid("ids[", k, "] = ", static_cast<int64_t>(ids_[k]), " is out of range [",
                   starts_[f], ", ", starts_[f + 1], ") of field ", f);
  }

  const Span<const Id> ids_;
  const Span<const int64_t> starts_;
  const bool row_per_entry_;
  const ParallelFor& parallel_for_;
  const int64_t width_, height_;  // fields, and entries of each
  int64_t max_rows_ = 0;
  FirstPosition out_of_field_;
};

Status CheckStarts(Span<const int64_t> starts, int64_t num_entries, int64_t input_dim) {
  if (starts.size() < 2 || starts[0] < 0 || starts[starts.size() - 1] > input_dim) {
    return Invalid("field_starts must be at least two rows in [0, ", input_dim, "]");
  }
  for (int64_t f = 1; f < starts.size(); ++f) {
    if (starts[f] <= starts[f - 1]) {
      return Invalid("field_starts must be ascending, got ", starts[f], " after ", starts[f - 1]);
    }
  }
  if (num_entries % (starts.size() - 1) != 0) {
    return Invalid("the number of entries must be a multiple of the ", starts.size() - 1,
                   " fields, got ", num_entries);
  }
  return Status();
}

// Whether the counting of entries is faster than a sort.
bool CanCount(Span<const int64_t> starts, int64_t num_entries) {
  constexpr int64_t kLinesPerEntry = 4;  // a word without rows takes a fraction of a nanosecond
  int64_t lines = 0, most = 0;
  for (int64_t f = 1; f < starts.size(); ++f) {
    lines += LinesOf(starts[f] - starts[f - 1]);
    most = std::max(most, starts[f] - starts[f - 1]);
  }
  return num_entries > 0 && num_entries < kMaxEntries && most <= kMaxRowsOfField &&
         lines <= num_entries * kLinesPerEntry;
}

}  // namespace

template <class Id>
Status GroupByField(const Csr<Id>& batch, Span<const int64_t> field_starts, int64_t input_dim,
                    const ParallelFor& parallel_for, GroupedBatch<Id>* grouped) {
  const int64_t n = batch.num_entries();
  TWML_RETURN_IF_ERROR(CheckStarts(field_starts, n, input_dim));
  const bool row_per_entry = HasRowsOfLength(batch, 1);
  const bool rows_of_fields = row_per_entry || HasRowsOfLength(batch, field_starts.size() - 1);
  if (!batch.binary || !batch.values.empty() || !rows_of_fields || !CanCount(field_starts, n)) {
    return GroupBatch<Id>(batch, input_dim, nullptr, parallel_for, grouped);
  }
  grouped->num_rows = batch.num_rows();
  grouped->num_entries = n;
  grouped->input_dim = input_dim;
  Groups<Id, int32_t> groups;
  TWML_RETURN_IF_ERROR(
      (FieldGrouper<Id, int32_t>(batch.ids, field_starts, row_per_entry, parallel_for)
           .Run(&groups)));
  grouped->groups = std::move(groups);
  return Status();
}

template Status GroupByField<int32_t>(const Csr<int32_t>&, Span<const int64_t>, int64_t,
                                      const ParallelFor&, GroupedBatch<int32_t>*);
template Status GroupByField<int64_t>(const Csr<int64_t>&, Span<const int64_t>, int64_t,
                                      const ParallelFor&, GroupedBatch<int64_t>*);

}  // namespace twml
