// The file of a RowStore, as long as the store exists: its path, its lock and its space.
#ifndef TWML_CORE_ROW_FILE_H_
#define TWML_CORE_ROW_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/status.h"

namespace twml {

// A status about a file that the system cannot create, read or write, and whether a status is one.
// All other statuses of the users of row files are about invalid arguments.
template <class... Parts>
Status FileStatus(const std::string& path, const Parts&... what) {
  return Invalid("the file ", path, what...);
}
inline bool IsFileStatus(const Status& status) {
  return status.message().rfind("the file ", 0) == 0;
}

inline constexpr char kRowFileInUse[] = " is in use by another table";  // after the path

// The file is scratch memory of the process, and is removed with this object.
class RowFile {
 public:
  static constexpr int64_t kHeaderBytes = 4096;

  // Creates a file of `bytes` with the header, whose space is reserved, or replaces one that an
  // ended process left there. A file of another kind, or one that is in use, is an error. `direct`
  // is whether to go past the page cache, if the file system can do that. `content` is for errors.
  static Status Create(const std::string& path, int64_t bytes, bool direct,
                       const std::string& content, std::unique_ptr<RowFile>* file);
  ~RowFile();
  // Removes the files of ended processes from a folder: row files that nothing has locked.
  static void RemoveUnused(const std::string& folder);
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  bool direct() const { return alignment_ > 1; }
  // Of the offsets, sizes and addresses of reads and writes.
  int64_t alignment() const { return alignment_; }

  // Takes the path of another file, which is removed. After an error nothing has changed.
  Status Replace(RowFile* other);

 private:
  explicit RowFile(const std::string& path) : path_(path) {}
  Status Error(const char* what) const;  // with errno
  Status Lock();
  Status Reserve(int64_t bytes, const std::string& content);
  void FindAlignment();

  std::string path_;
  int fd_ = -1;
  int64_t alignment_ = 1;
};

}  // namespace twml

#endif  // TWML_CORE_ROW_FILE_H_
