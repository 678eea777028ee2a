// Tables of rows in the formats of an export, in memory or in files.
#ifndef TWML_CORE_SCORER_TABLE_H_
#define TWML_CORE_SCORER_TABLE_H_

#include <cstdint>

#include "cc/core/scorer/array_file.h"
#include "cc/core/scorer/step.h"
#include "cc/core/scorer/step_reader.h"
#include "cc/core/scorer/table_files.h"

namespace twml::scorer {

enum class RowFormat : uint8_t {
  kFloat32,
  kBfloat16,
  kScaledInt8,  // int8, with scales in an array of their own; of exports before version 0.3
  kInt8,        // float32 scale and offset, and a code of 8 bits for each number
  kInt4,        // the same with 4 bits: byte i has the codes of i and of i + (dim + 1) / 2
};

class Table {
 public:
  // Reads the arrays `table` and `scale` of a step, and the attributes `row_format` and `units` if
  // the table is of uint8.
  static Table Read(StepReader& reader);

  int64_t rows() const { return rows_; }
  int64_t dim() const { return dim_; }
  // Whether rows have to be fetched. They are read by TableRows.
  bool in_file() const { return file_ != nullptr; }

  // Lists the rows of a sum, in the order of the calls of TableRows.
  void CollectSum(const int64_t* ids, const float* values, int64_t n, FetchedRows* fetched) const;
  // Lists rows that are copied.
  void CollectCopies(const int64_t* ids, int64_t n, FetchedRows* fetched) const;

 private:
  friend class TableRows;

  Status SetFormat(ItemType type, const std::vector<int64_t>& shape, StepReader& reader);
  void Sum(const char* data, const int64_t* ids, const float* values, int64_t n, int64_t readable,
           float* out, EntryMemory* memory) const;
  void SumPiece(const char* data, const int64_t* ids, const float* values, int64_t n,
                int64_t readable, float* out) const;
  void Copy(const char* row, int64_t id, float* out) const;

  RowFormat format_ = RowFormat::kFloat32;
  int64_t rows_ = 0, dim_ = 0, row_bytes_ = 0;
  ArrayFile array_, scale_;
  const char* data_ = nullptr;
  const FileTable* file_ = nullptr;
  const TableFiles* files_ = nullptr;
};

// The rows of a table for a block of a request. Of a table in a file, rows are read in the order in
// which they were listed for the block.
class TableRows {
 public:
  TableRows(const Table& table, const Frame& frame);

  // out[0, dim) = the sum of values[k] * row ids[k] over k in [0, n), as SparseLinear computes it.
  // All values are 1 if `values` is null. Ids must be valid up to `readable` >= n.
  void Sum(const int64_t* ids, const float* values, int64_t n, int64_t readable, float* out);

  void Copy(int64_t id, float* out);

 private:
  const Table& table_;
  EntryMemory* const memory_;
  const RowsOfTable* fetched_ = nullptr;
  // The next of each, if the table is in a file.
  const int64_t* slots_ = nullptr;
  const int64_t* sum_places_ = nullptr;
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_TABLE_H_
