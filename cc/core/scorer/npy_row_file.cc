#include "cc/core/scorer/npy_row_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

namespace twml::scorer {
namespace {

constexpr int64_t kPage = 4096;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

bool SameTime(const struct stat& a, const struct stat& b) {
#ifdef __linux__
  return a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
#else
  return a.st_mtime == b.st_mtime;
#endif
}

}  // namespace

NpyRowFile::~NpyRowFile() {
  if (fd_ >= 0) ::close(fd_);  // nothing is read any more
}

Status NpyRowFile::Open(const std::string& path, bool direct, std::unique_ptr<NpyRowFile>* out) {
  std::unique_ptr<NpyRowFile> file(new NpyRowFile(path));
  TWML_RETURN_IF_ERROR(ReadArrayHeader(path, &file->header_));
  TWML_RETURN_IF_ERROR(file->Prepare(direct));
  *out = std::move(file);
  return Status();
}

Status NpyRowFile::Prepare(bool direct) {
  if (header_.shape.size() != 2) {
    return Invalid(path_, " must have an array of 2 dimensions, got ", header_.shape.size());
  }
  row_bytes_ = header_.shape[1] * SizeOf(header_.type);
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0 || ::fstat(fd_, &opened_) != 0) {
    return Invalid(path_, " cannot be opened: ", DescribeError(errno));
  }
  // The header was read from the same path: another file may be there now.
  if (opened_.st_size < header_.data_begin + header_.shape[0] * row_bytes_) {
    return Invalid(path_, " ends before its last row");
  }
#ifdef O_DIRECT
  if (direct && ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) | O_DIRECT) == 0) {
    // The alignment that the file system needs is found by trying.
    const std::unique_ptr<void, Free> probe(std::aligned_alloc(kPage, kPage));
    if (probe == nullptr) throw std::bad_alloc();
    for (int64_t tried = 512; tried <= kPage && alignment_ == 1; tried *= 2) {
      const auto size = static_cast<size_t>(tried);
      if (opened_.st_size >= 2 * tried && ::pread(fd_, probe.get(), size, tried) == tried) {
        alignment_ = tried;
      }
    }
    if (alignment_ == 1) ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_DIRECT);
  }
#endif
#ifdef POSIX_FADV_RANDOM
  if (alignment_ == 1) ::posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);
#endif
  return Status();
}

Status NpyRowFile::CheckUnchanged() const {
  struct stat now;
  if (::fstat(fd_, &now) != 0) return Invalid(path_, " cannot be read: ", DescribeError(errno));
  if (now.st_size == opened_.st_size && SameTime(now, opened_)) return Status();
  return Invalid(path_, " was changed while a scorer uses it; load the scorer again");
}

BlockIo& NpyRowFile::threads(int depth) const {
  return threads_.Get([&] { return std::make_unique<BlockIo>(fd_, depth, false); });
}

}  // namespace twml::scorer
