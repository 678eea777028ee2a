// Reads of many rows of several files at once.
#ifndef TWML_CORE_SCORER_ROW_READER_H_
#define TWML_CORE_SCORER_ROW_READER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/core/io_ring.h"
#include "cc/core/scorer/npy_row_file.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml::scorer {

// A part of a file, whose begin and end are multiples of the file's alignment.
struct FileRead {
  const NpyRowFile* file;
  int64_t offset;
  int64_t bytes;
  int64_t least;  // bytes that the file must have of it; the last part of a file may be shorter
  char* buffer;   // aligned as the offset
};

struct RowReaderOptions {
  int depth = 64;            // reads of one call that run at the same time
  bool use_io_uring = true;  // if the kernel has it
  // Experiments only: a read takes at least this long, as it would from a slower medium.
  int64_t delay_nanoseconds = 0;
};

// Any number of threads may call Read at the same time.
class RowReader {
 public:
  explicit RowReader(const RowReaderOptions& options);
  ~RowReader();

  // Reads all parts and returns when they are there. The calling thread submits them with io_uring,
  // up to `depth` at the same time; where that is missing, threads of the files read them.
  Status Read(Span<const FileRead> reads);

  bool uses_io_uring() const { return options_.use_io_uring; }

 private:
  struct Worker;

  std::unique_ptr<Worker> Take();
  void Return(std::unique_ptr<Worker> worker);
  Status ReadWithThreads(Span<const FileRead> reads);

  RowReaderOptions options_;
  std::mutex mu_;
  std::vector<std::unique_ptr<Worker>> free_;
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_ROW_READER_H_
