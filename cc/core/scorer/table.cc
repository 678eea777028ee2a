#include "cc/core/scorer/table.h"

#include <algorithm>
#include <cstring>

#include "cc/core/segment_sum.h"
#include "cc/core/simd_dispatch.h"

namespace twml::scorer {

Table Table::Read(StepReader& reader) {
  Table table;
  table.array_ = reader.Table("table");
  if (!reader.ok()) return table;
  table.data_ = table.array_.items<char>().data();
  table.row_bytes_ = table.dim() * SizeOf(table.array_.type());
  const bool scaled = reader.HasArray("scale");
  if (scaled != (table.array_.type() == ItemType::kInt8)) {
    reader.Fail("must have a scale if its table is int8, and only then");
    return table;
  }
  if (scaled) table.scale_ = reader.Array("scale", ItemType::kFloat32, 1);
  if (reader.ok() && scaled && table.scale_.size() != table.rows()) {
    reader.Fail("must have a scale for each row of its table");
  }
  return table;
}

void Table::SumPiece(const int64_t* ids, const float* values, int64_t n, int64_t readable,
                     float* out) const {
  if (array_.type() == ItemType::kFloat32) {
    GetRowKernels().float32.int64.sum_rows(array_.items<float>().data(), dim(), ids, values, n,
                                           readable, out);
  } else if (array_.type() == ItemType::kUint16) {
    const auto* const rows = reinterpret_cast<const Bfloat16*>(array_.items<uint16_t>().data());
    GetRowKernels().bfloat16.int64.sum_rows(rows, dim(), ids, values, n, readable, out);
  } else {
    GetScoringKernels().sum_int8_rows(array_.items<int8_t>().data(), scale_.items<float>().data(),
                                      dim(), ids, values, n, out);
  }
}

void Table::Sum(const int64_t* ids, const float* values, int64_t n, int64_t readable, float* out,
                EntryMemory* memory) const {
  if (dim() == 0) return;
  SumPiece(ids, values, std::min(n, kSegmentPiece), readable, out);
  if (n <= kSegmentPiece) return;
  float* const piece = memory->New<float>(dim());
  for (int64_t k = kSegmentPiece; k < n; k += kSegmentPiece) {
    SumPiece(ids + k, values == nullptr ? nullptr : values + k, std::min(n - k, kSegmentPiece),
             readable - k, piece);
    for (int64_t d = 0; d < dim(); ++d) out[d] += piece[d];
  }
}

void Table::Copy(int64_t id, float* out) const {
  const int64_t n = dim(), first = id * n;
  if (array_.type() == ItemType::kFloat32) {
    std::copy_n(array_.items<float>().data() + first, n, out);
  } else if (array_.type() == ItemType::kUint16) {
    const uint16_t* const row = array_.items<uint16_t>().data() + first;
    for (int64_t d = 0; d < n; ++d) {
      const uint32_t bits = static_cast<uint32_t>(row[d]) << 16;
      std::memcpy(out + d, &bits, sizeof(bits));
    }
  } else {
    const int8_t* const row = array_.items<int8_t>().data() + first;
    const float scale = scale_.items<float>()[id];
    for (int64_t d = 0; d < n; ++d) out[d] = static_cast<float>(row[d]) * scale;
  }
}

}  // namespace twml::scorer
