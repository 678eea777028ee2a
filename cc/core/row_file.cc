#include "cc/core/row_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "cc/core/aligned_buffer.h"
#include "cc/core/block_io.h"

namespace twml {
namespace {

constexpr char kMagic[] = "twml_ops row store 1\n";

// Calls a function of the system again until no signal interrupts it.
template <class Call>
auto Uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

Status RowFile::Error(const char* what) const {
  return FileStatus(path_, " cannot be ", what, ": ", DescribeError(errno));
}

Status RowFile::Create(const std::string& path, int64_t bytes, bool direct,
                       const std::string& content, std::unique_ptr<RowFile>* file) {
  std::unique_ptr<RowFile> made(new RowFile(path));
  TWML_RETURN_IF_ERROR(made->Lock());
  TWML_RETURN_IF_ERROR(made->Reserve(bytes, content));
  if (direct) made->FindAlignment();
  *file = std::move(made);
  return Status();
}

void RowFile::RemoveUnused(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> paths;
  for (std::filesystem::directory_iterator each(folder, error), end; !error && each != end;
       each.increment(error)) {
    if (each->path().extension() == ".rows") paths.push_back(each->path().string());
  }
  for (const std::string& path : paths) {
    const int fd = Uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC); });
    if (fd < 0) continue;
    std::string header(sizeof(kMagic), '\0');
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        pread(fd, header.data(), header.size(), 0) == static_cast<ssize_t>(header.size()) &&
        header == std::string(kMagic, sizeof(kMagic))) {
      unlink(path.c_str());
    }
    close(fd);
  }
}

RowFile::~RowFile() {
  if (fd_ < 0) return;
  if (!path_.empty()) unlink(path_.c_str());
  close(fd_);
}

// Opens the file and checks that it may be replaced. After an error it is not removed.
Status RowFile::Lock() {
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC;
  const auto give_up = [this](const Status& status) {
    close(std::exchange(fd_, -1));
    return status;
  };
  for (;;) {
    fd_ = Uninterrupted([&] { return open(path_.c_str(), flags, 0600); });
    if (fd_ < 0) return Error("created");
    if (Uninterrupted([&] { return flock(fd_, LOCK_EX | LOCK_NB); }) != 0) {
      if (errno == EWOULDBLOCK) return give_up(FileStatus(path_, kRowFileInUse));
      return give_up(Error("locked"));
    }
    // Another store may have removed the file after it was opened here.
    struct stat of_fd, of_path;
    if (fstat(fd_, &of_fd) == 0 && stat(path_.c_str(), &of_path) == 0 &&
        of_fd.st_dev == of_path.st_dev && of_fd.st_ino == of_path.st_ino) {
      break;
    }
    close(fd_);
  }
  std::string header(sizeof(kMagic), '\0');
  const auto n = Uninterrupted([&] { return pread(fd_, header.data(), header.size(), 0); });
  if (n < 0) return give_up(Error("read"));
  if (n != 0 && header != std::string(kMagic, sizeof(kMagic))) {
    return give_up(FileStatus(path_, " exists and is not a row store"));
  }
  return Status();
}

// All space is reserved at once, so that a disk that is too small is noticed now.
Status RowFile::Reserve(int64_t bytes, const std::string& content) {
  std::string header(kHeaderBytes, '\0');
  header.replace(0, sizeof(kMagic), kMagic, sizeof(kMagic));
  if (ftruncate(fd_, 0) != 0) return Error("emptied");
  const auto n = Uninterrupted([&] { return pwrite(fd_, header.data(), header.size(), 0); });
  if (n >= 0 && n != kHeaderBytes) errno = ENOSPC;
  if (n != kHeaderBytes) return Error("written");
#ifdef __linux__
  if (Uninterrupted([&] { return fallocate(fd_, 0, 0, bytes); }) == 0) return Status();
  if (errno != EOPNOTSUPP && errno != ENOSYS) {
    return FileStatus(path_, " cannot have the ", bytes, " bytes that ", content,
                      " need: ", DescribeError(errno));
  }
#endif
  return ftruncate(fd_, bytes) == 0 ? Status() : Error("enlarged");
}

// The alignment that the file system needs for direct reads is found by trying.
void RowFile::FindAlignment() {
#ifdef O_DIRECT
  constexpr int64_t kPage = AlignedBuffer::kPage;
  if (fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_DIRECT) != 0) return;
  const AlignedBuffer probe(kPage);
  for (int64_t each = 512; each <= kPage; each *= 2) {
    if (pread(fd_, probe.data(), each, kHeaderBytes + each) != each) continue;
    alignment_ = each;
    return;
  }
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) & ~O_DIRECT);
#endif
}

Status RowFile::Replace(RowFile* other) {
  if (std::rename(path_.c_str(), other->path_.c_str()) != 0) return Error("renamed");
  path_ = std::exchange(other->path_, "");
  return Status();
}

}  // namespace twml
