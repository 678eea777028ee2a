// The memory accesses of sparse kernels, with prefetch and no other work, so that their time is a
// floor that kernels can be compared with. Rows are read or updated once each, or as often as the
// entries of a batch name them. See random_row_floor.py.
#include <cstdint>

namespace {

constexpr int64_t kAhead = 8;           // rows
constexpr int64_t kFloatsPerLine = 16;  // in a cache line of 64 bytes

typedef float Line __attribute__((vector_size(kFloatsPerLine * sizeof(float)), aligned(4)));

inline void Prefetch(const float* row, int64_t dim) {
  for (int64_t i = 0; i < dim; i += kFloatsPerLine) __builtin_prefetch(row + i);
}

// Adds `lines` lines of each of the rows, from the column `begin` on, in registers.
template <int kLines, class Id>
void SumLines(int lines, const float* table, const Id* rows, int64_t count, int64_t readable,
              int64_t dim, float* sum) {
  if constexpr (kLines > 1) {
    if (lines < kLines) return SumLines<kLines - 1>(lines, table, rows, count, readable, dim, sum);
  }
  constexpr int64_t kAheadOfSum = kLines < 8 ? 64 / kLines : 12;
  Line sums[kLines] = {};
  for (int64_t k = 0; k < count; ++k) {
    if (k + kAheadOfSum < readable) {
#pragma GCC unroll 8
      for (int i = 0; i < kLines; ++i)
        __builtin_prefetch(table + rows[k + kAheadOfSum] * dim + i * kFloatsPerLine);
    }
    const Line* row = reinterpret_cast<const Line*>(table + rows[k] * dim);
#pragma GCC unroll 8
    for (int i = 0; i < kLines; ++i) sums[i] += row[i];
  }
  __builtin_memcpy(sum, sums, sizeof(sums));
}

// Writes the sum of the rows, whose `dim` is a multiple of 16. `readable` rows follow in the batch.
template <class Id>
void SumRows(const float* table, const Id* rows, int64_t count, int64_t readable, int64_t dim,
             float* sum) {
  constexpr int kLines = 8;
  for (int64_t i = 0; i < dim; i += kLines * kFloatsPerLine) {
    const int64_t left = (dim - i) / kFloatsPerLine;
    SumLines<kLines>(left < kLines ? static_cast<int>(left) : kLines, table + i, rows, count,
                     readable, dim, sum + i);
  }
}

}  // namespace

// Adds the rows into `sum` [dim].
extern "C" void ReadRows(const float* table, const int64_t* ids, int64_t count, int64_t dim,
                         float* sum) {
  for (int64_t k = 0; k < count; ++k) {
    if (k + kAhead < count) Prefetch(table + ids[k + kAhead] * dim, dim);
    const float* row = table + ids[k] * dim;
    for (int64_t i = 0; i < dim; ++i) sum[i] += row[i];
  }
}

// Multiplies the rows by `factor` in place. Rows of different threads must be distinct.
extern "C" void UpdateRows(float* table, const int64_t* ids, int64_t count, int64_t dim,
                           float factor) {
  for (int64_t k = 0; k < count; ++k) {
    if (k + kAhead < count) Prefetch(table + ids[k + kAhead] * dim, dim);
    float* row = table + ids[k] * dim;
    for (int64_t i = 0; i < dim; ++i) row[i] *= factor;
  }
}

// Writes the sum of the rows of each of the segments [begin, end) to out [segments, dim]: the
// accesses of a forward pass.
extern "C" void SumSegments(const float* table, const int64_t* ids, const int64_t* splits,
                            int64_t begin, int64_t end, int64_t dim, float* out) {
  for (int64_t s = begin; s < end; ++s) {
    const int64_t k = splits[s];
    SumRows(table, ids + k, splits[s + 1] - k, splits[end] - k, dim, out + s * dim);
  }
}

// Sums the rows of `grad` of each of the groups [begin, end) and multiplies the row of its id in
// each of the tables by `factor`: the accesses of a backward pass and an update. `sum` are `dim`
// floats of the calling thread.
extern "C" void UpdateGroups(const float* grad, const int32_t* grad_rows, const int64_t* splits,
                             const int64_t* ids, int64_t begin, int64_t end, int64_t dim,
                             float* const* tables, const int64_t* table_dims, int64_t num_tables,
                             float factor, float* sum) {
  for (int64_t u = begin; u < end; ++u) {
    if (u + kAhead < end) {
      for (int64_t t = 0; t < num_tables; ++t)
        Prefetch(tables[t] + ids[u + kAhead] * table_dims[t], table_dims[t]);
    }
    const int64_t k = splits[u];
    SumRows(grad, grad_rows + k, splits[u + 1] - k, splits[end] - k, dim, sum);
    for (int64_t t = 0; t < num_tables; ++t) {
      float* row = tables[t] + ids[u] * table_dims[t];
      for (int64_t i = 0; i < table_dims[t]; ++i) row[i] *= factor;
    }
    __asm__ volatile("" : : "r"(sum) : "memory");  // the sum is used
  }
}
