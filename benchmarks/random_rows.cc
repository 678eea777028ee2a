// Reads or updates rows of a table in the order of `ids`, with prefetch and no other work. This is the access pattern
// of a sparse kernel, so its time is the floor that kernels can be compared with. See random_row_floor.py.
#include <cstdint>

namespace {

constexpr int64_t kAhead = 8;           // rows
constexpr int64_t kFloatsPerLine = 16;  // in a cache line of 64 bytes

inline void Prefetch(const float* row, int64_t dim) {
  for (int64_t i = 0; i < dim; i += kFloatsPerLine) __builtin_prefetch(row + i);
}

}  // namespace

// Adds the rows into `sum` [dim].
extern "C" void ReadRows(const float* table, const int64_t* ids, int64_t count, int64_t dim, float* sum) {
  for (int64_t k = 0; k < count; ++k) {
    if (k + kAhead < count) Prefetch(table + ids[k + kAhead] * dim, dim);
    const float* row = table + ids[k] * dim;
    for (int64_t i = 0; i < dim; ++i) sum[i] += row[i];
  }
}

// Multiplies the rows by `factor` in place. Rows of different threads must be distinct.
extern "C" void UpdateRows(float* table, const int64_t* ids, int64_t count, int64_t dim, float factor) {
  for (int64_t k = 0; k < count; ++k) {
    if (k + kAhead < count) Prefetch(table + ids[k + kAhead] * dim, dim);
    float* row = table + ids[k] * dim;
    for (int64_t i = 0; i < dim; ++i) row[i] *= factor;
  }
}
