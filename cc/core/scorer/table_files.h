// The tables of a scorer that are in files, the cache of their rows, and the reads of a request.
#ifndef TWML_CORE_SCORER_TABLE_FILES_H_
#define TWML_CORE_SCORER_TABLE_FILES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/fork.h"
#include "cc/core/scorer/array_file.h"
#include "cc/core/scorer/fetched_rows.h"
#include "cc/core/scorer/npy_row_file.h"
#include "cc/core/scorer/row_reader.h"
#include "cc/core/scorer/shared_row_cache.h"
#include "cc/core/scorer/sums_cache.h"
#include "cc/core/scorer/table_options.h"
#include "cc/core/status.h"

namespace twml::scorer {

// One table: an array in a file, some rows of which may be replaced by rows of another file.
class FileTable {
 public:
  // `rows` are the numbers of the replaced rows, in ascending order, which are in the file
  // `values_path`; empty: none are replaced.
  static Status Open(const std::string& path, const ArrayFile& rows, const std::string& values_path,
                     bool direct, std::unique_ptr<FileTable>* out);

  const ArrayHeader& header() const { return base_->header(); }
  const std::string& path() const { return base_->path(); }
  int64_t row_bytes() const { return base_->row_bytes(); }
  int64_t file_bytes() const { return header().shape[0] * row_bytes(); }
  bool direct() const { return base_->direct(); }
  const NpyRowFile* values_file() const { return values_.get(); }

  // The file that has a row, and the offset of the row in it.
  const NpyRowFile* Locate(int64_t row, int64_t* offset) const;

  int64_t number = 0;       // in FetchedRows
  int64_t cache_bytes = 0;  // of the cache of its rows

 private:
  std::unique_ptr<NpyRowFile> base_, values_;
  ArrayFile rows_;
};

// Any number of threads may call all functions but Add and Finish.
class TableFiles {
 public:
  explicit TableFiles(const TableOptions& options) : options_(options) {}

  const TableOptions& options() const { return options_; }

  // Adds a table while the scorer is read.
  const FileTable* Add(std::unique_ptr<FileTable> table);
  // Divides the memory of the cache among the tables by their size.
  void Finish();

  bool empty() const { return tables_.empty(); }
  int64_t size() const { return static_cast<int64_t>(tables_.size()); }
  // Null: sums are not cached.
  SumsCache* sums() const { return process().sums.get(); }
  bool direct() const { return !tables_.empty() && tables_[0]->direct(); }
  bool uses_io_uring() const { return !empty() && process().reader.uses_io_uring(); }
  int64_t cache_bytes() const;

  // Brings the rows that `fetched` lists into its memory. Rows of all tables that are not in the
  // cache are read at once; a part of a file that has several of them is read once.
  Status Fetch(FetchedRows* fetched) const;

  void CountSum(bool hit) const { ++(hit ? sum_hits_ : sum_misses_); }
  TableStatistics statistics() const;

 private:
  // A row that is read.
  struct Wanted {
    const NpyRowFile* file;
    int64_t offset;
    int64_t bytes;
    char* to;
  };

  // What has locks, threads and rings.
  struct Process {
    explicit Process(const TableFiles& files);
    RowReader reader;
    std::vector<std::unique_ptr<SharedRowCache>> caches;  // by the number of the table
    std::unique_ptr<SumsCache> sums;
  };
  Process& process() const {
    return process_.Get([this] { return std::make_unique<Process>(*this); });
  }

  Status ReadRows(std::vector<Wanted>* wanted, PageBuffer* blocks) const;

  const TableOptions options_;
  std::vector<std::unique_ptr<FileTable>> tables_;
  PerProcess<Process> process_;
  mutable std::atomic<int64_t> entries_{0}, rows_{0}, misses_{0}, reads_{0}, bytes_read_{0},
      bytes_needed_{0}, sum_hits_{0}, sum_misses_{0};
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_TABLE_FILES_H_
