#include "cc/core/scorer/table_files.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace twml::scorer {
namespace {

constexpr int64_t kReadBytes = int64_t{16} << 20;  // of the reads that are submitted together
constexpr int64_t kLargestRead = 128 << 10;        // of neighboring rows

}  // namespace

Status FileTable::Open(const std::string& path, const ArrayFile& rows,
                       const std::string& values_path, bool direct,
                       std::unique_ptr<FileTable>* out) {
  auto table = std::make_unique<FileTable>();
  TWML_RETURN_IF_ERROR(NpyRowFile::Open(path, direct, &table->base_));
  if (!values_path.empty()) {
    TWML_RETURN_IF_ERROR(NpyRowFile::Open(values_path, direct, &table->values_));
    table->rows_ = rows;
    if (rows.type() != ItemType::kInt64 || rows.shape().size() != 1) {
      return Invalid(rows.path(), " must have the numbers of rows, int64 of 1 dimension");
    }
    const ArrayHeader &base = table->base_->header(), &values = table->values_->header();
    if (values.type != base.type || values.shape[0] != rows.size() ||
        values.shape[1] != base.shape[1]) {
      return Invalid(values_path, " must have ", rows.size(), " rows of the array in ", path);
    }
    int64_t least = 0;
    for (const int64_t row : rows.items<int64_t>()) {
      if (row < least || row >= base.shape[0]) {
        return Invalid(rows.path(), " must have ascending numbers of rows below ", base.shape[0],
                       ", got ", row);
      }
      least = row + 1;
    }
  }
  *out = std::move(table);
  return Status();
}

const NpyRowFile* FileTable::Locate(int64_t row, int64_t* offset) const {
  if (values_ != nullptr) {
    const auto rows = rows_.items<int64_t>();
    const int64_t* const found = std::lower_bound(rows.begin(), rows.end(), row);
    if (found != rows.end() && *found == row) {
      *offset = values_->OffsetOf(found - rows.begin());
      return values_.get();
    }
  }
  *offset = base_->OffsetOf(row);
  return base_.get();
}

const FileTable* TableFiles::Add(std::unique_ptr<FileTable> table) {
  table->number = size();
  tables_.push_back(std::move(table));
  return tables_.back().get();
}

void TableFiles::Finish() {
  if (tables_.empty()) return;
  double total = 0;
  for (const auto& table : tables_) total += static_cast<double>(table->file_bytes());
  for (const auto& table : tables_) {
    const double part = static_cast<double>(table->file_bytes()) / std::max(total, 1.0);
    table->cache_bytes =
        std::min(static_cast<int64_t>(part * static_cast<double>(options_.cache_bytes)),
                 SharedRowCache::BytesFor(table->header().shape[0], table->row_bytes()));
  }
  process();  // what the system refuses is noticed now
}

TableFiles::Process::Process(const TableFiles& files) : reader(files.options_.reader) {
  for (const auto& table : files.tables_) {
    caches.push_back(std::make_unique<SharedRowCache>(table->cache_bytes, table->row_bytes()));
  }
  if (files.options_.sums_cache_bytes > 0) {
    sums = std::make_unique<SumsCache>(files.options_.sums_cache_bytes);
  }
}

int64_t TableFiles::cache_bytes() const {
  int64_t bytes = 0;
  if (!empty()) {
    for (const auto& cache : process().caches) bytes += cache->bytes();
  }
  return bytes;
}

Status TableFiles::Fetch(FetchedRows* fetched) const {
  std::vector<Wanted> wanted;
  const auto& caches = process().caches;
  for (const auto& table : tables_) {
    RowsOfTable& rows = fetched->tables[table->number];
    const int64_t entries = rows.num_entries();
    if (entries == 0) continue;
    rows.Number();
    const auto distinct = static_cast<int64_t>(rows.ids().size());
    const int64_t row_bytes = table->row_bytes();
    char* const out = rows.rows.Reserve(distinct * row_bytes);
    rows.missing.clear();
    for (int64_t slot = 0; slot < distinct; ++slot) {
      rows.missing.push_back({rows.ids()[slot], slot});
    }
    caches[table->number]->Find(&rows.missing, out);
    entries_ += entries;
    rows_ += distinct;
    misses_ += static_cast<int64_t>(rows.missing.size());
    for (const SharedRowCache::Row& row : rows.missing) {
      Wanted each;
      each.file = table->Locate(row.id, &each.offset);
      each.bytes = row_bytes;
      each.to = out + row.slot * row_bytes;
      wanted.push_back(each);
    }
  }
  if (wanted.empty()) return Status();
  TWML_RETURN_IF_ERROR(ReadRows(&wanted, &fetched->blocks));
  for (const auto& table : tables_) {
    RowsOfTable& rows = fetched->tables[table->number];
    if (rows.num_entries() == 0) continue;
    caches[table->number]->Insert(rows.missing, rows.rows.data());
  }
  return Status();
}

Status TableFiles::ReadRows(std::vector<Wanted>* wanted, PageBuffer* blocks) const {
  std::sort(wanted->begin(), wanted->end(), [](const Wanted& a, const Wanted& b) {
    return a.file != b.file ? a.file < b.file : a.offset < b.offset;
  });
  std::vector<FileRead> reads;
  const size_t size = wanted->size();
  for (size_t begin = 0; begin < size;) {
    // Reads that fit into the memory of one submission, with their places in it as buffers.
    reads.clear();
    int64_t bytes = 0;
    size_t end = begin;
    for (; end < size; ++end) {
      const Wanted& row = (*wanted)[end];
      const int64_t alignment = row.file->alignment();
      const int64_t from = row.offset / alignment * alignment;
      const int64_t row_end = row.offset + row.bytes;
      const int64_t to = (row_end + alignment - 1) / alignment * alignment;
      FileRead* const last = reads.empty() ? nullptr : &reads.back();
      if (last != nullptr && last->file == row.file && from <= last->offset + last->bytes &&
          to - last->offset <= kLargestRead) {
        bytes += to - (last->offset + last->bytes);
        last->bytes = to - last->offset;
        last->least = row_end - last->offset;
        continue;
      }
      if (last != nullptr && bytes + (to - from) > kReadBytes) break;
      bytes = (bytes + alignment - 1) / alignment * alignment;
      reads.push_back({row.file, from, to - from, row_end - from, nullptr});
      bytes += to - from;
    }
    char* place = blocks->Reserve(bytes + PageBuffer::kPage * static_cast<int64_t>(2));
    int64_t read_bytes = 0;
    for (FileRead& read : reads) {
      const int64_t alignment = read.file->alignment();
      place += (alignment - reinterpret_cast<intptr_t>(place) % alignment) % alignment;
      read.buffer = place;
      place += read.bytes;
      read_bytes += read.bytes;
    }
    TWML_RETURN_IF_ERROR(process().reader.Read(reads));
    const NpyRowFile* checked = nullptr;
    for (const FileRead& read : reads) {
      if (read.file == checked) continue;
      checked = read.file;
      TWML_RETURN_IF_ERROR(checked->CheckUnchanged());
    }
    size_t r = 0;
    int64_t needed = 0;
    for (size_t i = begin; i < end; ++i) {
      const Wanted& row = (*wanted)[i];
      while (row.file != reads[r].file ||
             row.offset + row.bytes > reads[r].offset + reads[r].least) {
        ++r;
      }
      std::memcpy(row.to, reads[r].buffer + (row.offset - reads[r].offset),
                  static_cast<size_t>(row.bytes));
      needed += row.bytes;
    }
    reads_ += static_cast<int64_t>(reads.size());
    bytes_read_ += read_bytes;
    bytes_needed_ += needed;
    begin = end;
  }
  return Status();
}

TableStatistics TableFiles::statistics() const {
  TableStatistics out;
  out.entries = entries_;
  out.rows = rows_;
  out.misses = misses_;
  out.hits = out.rows - out.misses;
  out.reads = reads_;
  out.bytes_read = bytes_read_;
  out.bytes_needed = bytes_needed_;
  out.sum_hits = sum_hits_;
  out.sum_misses = sum_misses_;
  return out;
}

}  // namespace twml::scorer
