#include "cc/core/scorer/table.h"

#include <algorithm>
#include <cstring>

#include "cc/core/segment_sum.h"
#include "cc/core/simd_dispatch.h"

namespace twml::scorer {
namespace {

// Sums of fewer rows are added up in less time than it takes to find them in the cache of sums.
constexpr int64_t kLeastTerms = 2;

struct Codes {
  float scale, offset;
  const uint8_t* codes;
};

Codes ReadCodes(const char* row) {
  Codes out;
  std::memcpy(&out.scale, row, sizeof(float));
  std::memcpy(&out.offset, row + sizeof(float), sizeof(float));
  out.codes = reinterpret_cast<const uint8_t*>(row + kQuantizedRowHead);
  return out;
}

}  // namespace

Table Table::Read(StepReader& reader) {
  Table table;
  TableArray array = reader.Table("table");
  if (!reader.ok()) return table;
  const bool in_file = array.file != nullptr;
  const Status valid =
      in_file ? table.SetFormat(array.file->header().type, array.file->header().shape, reader)
              : table.SetFormat(array.array.type(), array.array.shape(), reader);
  if (!valid.ok()) {
    reader.Fail(valid.message());
    return table;
  }
  const bool scaled = reader.HasArray("scale");
  if (scaled != (table.format_ == RowFormat::kScaledInt8)) {
    reader.Fail("must have a scale if its table is int8, and only then");
    return table;
  }
  if (scaled) table.scale_ = reader.Array("scale", ItemType::kFloat32, 1);
  if (reader.ok() && scaled && table.scale_.size() != table.rows()) {
    reader.Fail("must have a scale for each row of its table");
  }
  if (!reader.ok()) return table;
  if (!in_file) {
    table.array_ = std::move(array.array);
    table.data_ = table.array_.items<char>().data();
    return table;
  }
  if (scaled) {
    reader.Fail("has an int8 table with scales of its own in " + array.file->path() +
                ", which cannot stay in a file; export the model again");
    return table;
  }
  table.files_ = reader.table_files();
  table.file_ = reader.table_files()->Add(std::move(array.file));
  return table;
}

Status Table::SetFormat(ItemType type, const std::vector<int64_t>& shape, StepReader& reader) {
  rows_ = shape[0];
  dim_ = shape[1];
  row_bytes_ = dim_ * SizeOf(type);
  switch (type) {
    case ItemType::kFloat32:
      format_ = RowFormat::kFloat32;
      return Status();
    case ItemType::kUint16:
      format_ = RowFormat::kBfloat16;
      return Status();
    case ItemType::kInt8:
      format_ = RowFormat::kScaledInt8;
      return Status();
    case ItemType::kUint8:
      break;
    default:
      return Invalid("must have a table of float32, uint16 (bfloat16), int8 or uint8, got ",
                     NameOf(type));
  }
  const bool four = reader.Choice("row_format", {"int8", "int4"}) == 1;
  format_ = four ? RowFormat::kInt4 : RowFormat::kInt8;
  dim_ = reader.Integer("units");
  if (!reader.ok()) return Status();
  if (dim_ < 0 || dim_ > row_bytes_ * 2 || QuantizedRowBytes(dim_, four ? 4 : 8) != row_bytes_) {
    return Invalid("must have rows of ", dim_, " units in its table, got rows of ", row_bytes_,
                   " bytes");
  }
  return Status();
}

void Table::SumPiece(const char* data, const int64_t* ids, const float* values, int64_t n,
                     int64_t readable, float* out) const {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(data);
  switch (format_) {
    case RowFormat::kFloat32:
      return GetRowKernels().float32.int64.sum_rows(reinterpret_cast<const float*>(data), dim_, ids,
                                                    values, n, readable, out);
    case RowFormat::kBfloat16:
      return GetRowKernels().bfloat16.int64.sum_rows(reinterpret_cast<const Bfloat16*>(data), dim_,
                                                     ids, values, n, readable, out);
    case RowFormat::kScaledInt8:
      return GetScoringKernels().sum_int8_rows(reinterpret_cast<const int8_t*>(data),
                                               scale_.items<float>().data(), dim_, ids, values, n,
                                               out);
    case RowFormat::kInt8:
      return GetScoringKernels().sum_quantized_rows[0](bytes, dim_, ids, values, n, out);
    case RowFormat::kInt4:
      return GetScoringKernels().sum_quantized_rows[1](bytes, dim_, ids, values, n, out);
  }
}

void Table::Sum(const char* data, const int64_t* ids, const float* values, int64_t n,
                int64_t readable, float* out, EntryMemory* memory) const {
  if (dim_ == 0) return;
  SumPiece(data, ids, values, std::min(n, kSegmentPiece), readable, out);
  if (n <= kSegmentPiece) return;
  float* const piece = memory->New<float>(dim_);
  for (int64_t k = kSegmentPiece; k < n; k += kSegmentPiece) {
    SumPiece(data, ids + k, values == nullptr ? nullptr : values + k,
             std::min(n - k, kSegmentPiece), readable - k, piece);
    for (int64_t d = 0; d < dim_; ++d) out[d] += piece[d];
  }
}

void Table::Copy(const char* row, int64_t id, float* out) const {
  const int64_t n = dim_;
  switch (format_) {
    case RowFormat::kFloat32:
      std::memcpy(out, row, static_cast<size_t>(n) * sizeof(float));
      return;
    case RowFormat::kBfloat16:
      for (int64_t d = 0; d < n; ++d) {
        uint16_t item;
        std::memcpy(&item, row + 2 * d, sizeof(item));
        const uint32_t bits = static_cast<uint32_t>(item) << 16;
        std::memcpy(out + d, &bits, sizeof(bits));
      }
      return;
    case RowFormat::kScaledInt8: {
      const auto* const items = reinterpret_cast<const int8_t*>(row);
      const float scale = scale_.items<float>()[id];
      for (int64_t d = 0; d < n; ++d) out[d] = static_cast<float>(items[d]) * scale;
      return;
    }
    case RowFormat::kInt8: {
      const Codes c = ReadCodes(row);
      for (int64_t d = 0; d < n; ++d) out[d] = c.offset + c.scale * static_cast<float>(c.codes[d]);
      return;
    }
    case RowFormat::kInt4: {
      const Codes c = ReadCodes(row);
      const int64_t half = (n + 1) / 2;
      for (int64_t d = 0; d < n; ++d) {
        const int code = d < half ? c.codes[d] & 15 : c.codes[d - half] >> 4;
        out[d] = c.offset + c.scale * static_cast<float>(code);
      }
      return;
    }
  }
}

void Table::CollectSum(const int64_t* ids, const float* values, int64_t n,
                       FetchedRows* fetched) const {
  RowsOfTable& rows = fetched->tables[file_->number];
  if (SumsCache* const sums = files_->sums(); sums != nullptr) {
    const auto place = static_cast<int64_t>(rows.sums.size());
    if (n >= kLeastTerms) {
      const bool hit = sums->Find({file_->number, ids, values, n}, &fetched->key, &rows.sums);
      files_->CountSum(hit);
      if (hit) return rows.AddSum(place);
    }
    rows.AddSum(RowsOfTable::kNoSum);
  }
  rows.AddIds(ids, n);
}

void Table::CollectCopies(const int64_t* ids, int64_t n, FetchedRows* fetched) const {
  fetched->tables[file_->number].AddIds(ids, n);
}

TableRows::TableRows(const Table& table, const Frame& frame)
    : table_(table), memory_(frame.memory) {
  if (!table.in_file()) return;
  fetched_ = &frame.fetched->tables[table.file_->number];
  slots_ = fetched_->slots(frame.block);
  sum_places_ = fetched_->sum_places(frame.block);
}

void TableRows::Sum(const int64_t* ids, const float* values, int64_t n, int64_t readable,
                    float* out) {
  if (fetched_ == nullptr) {
    return table_.Sum(table_.data_, ids, values, n, readable, out, memory_);
  }
  SumsCache* const sums = table_.files_->sums();
  const int64_t place = sums == nullptr ? RowsOfTable::kNoSum : *sum_places_++;
  if (place != RowsOfTable::kNoSum) {
    std::copy_n(fetched_->sum(place), table_.dim(), out);
    return;
  }
  table_.Sum(fetched_->rows.data(), slots_, values, n, n, out, memory_);
  slots_ += n;
  if (sums != nullptr && n >= kLeastTerms) {
    thread_local std::string key;
    sums->Insert({table_.file_->number, ids, values, n}, out, table_.dim(), &key);
  }
}

void TableRows::Copy(int64_t id, float* out) {
  const bool fetched = fetched_ != nullptr;
  const char* const data = fetched ? fetched_->rows.data() : table_.data_;
  const int64_t row = fetched ? *slots_++ : id;
  table_.Copy(data + row * table_.row_bytes_, id, out);
}

}  // namespace twml::scorer
