// A table in a file of which single rows are read, past the page cache or through it.
#ifndef TWML_CORE_SCORER_NPY_ROW_FILE_H_
#define TWML_CORE_SCORER_NPY_ROW_FILE_H_

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/block_io.h"
#include "cc/core/fork.h"
#include "cc/core/scorer/array_file.h"
#include "cc/core/status.h"

namespace twml::scorer {

// Immutable; any number of threads may use a file.
class NpyRowFile {
 public:
  // Opens an NPY file with an array of two dimensions. With `direct`, reads go past the page cache
  // if the file system can do that.
  static Status Open(const std::string& path, bool direct, std::unique_ptr<NpyRowFile>* out);
  ~NpyRowFile();
  NpyRowFile(const NpyRowFile&) = delete;
  NpyRowFile& operator=(const NpyRowFile&) = delete;

  const std::string& path() const { return path_; }
  const ArrayHeader& header() const { return header_; }
  int64_t row_bytes() const { return row_bytes_; }
  int fd() const { return fd_; }
  // Reads must begin and end at multiples of it, except at the end of the file.
  int64_t alignment() const { return alignment_; }
  bool direct() const { return alignment_ > 1; }
  int64_t OffsetOf(int64_t row) const { return header_.data_begin + row * row_bytes_; }

  // An error if the file is not the one that was opened: its size or the time of its last change
  // differ.
  Status CheckUnchanged() const;

  // Threads that read the file, where the kernel has no io_uring. They start at the first use.
  BlockIo& threads(int depth) const;

 private:
  explicit NpyRowFile(std::string path) : path_(std::move(path)) {}
  Status Prepare(bool direct);

  const std::string path_;
  int fd_ = -1;
  ArrayHeader header_;
  int64_t row_bytes_ = 0, alignment_ = 1;
  struct stat opened_ = {};
  PerProcess<BlockIo> threads_;
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_NPY_ROW_FILE_H_
