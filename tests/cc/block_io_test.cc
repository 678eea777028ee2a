#include "cc/core/block_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include "cc/core/row_store.h"
#include "gtest/gtest.h"

namespace twml {
namespace block_io_test {

constexpr int kRequests = 2000;
constexpr int64_t kBytes = 512;

// The descriptors of io_uring in this process.
std::vector<int> Rings() {
  std::vector<int> found;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(each.path(), error);
    if (target == "anon_inode:[io_uring]") found.push_back(std::stoi(each.path().filename()));
  }
  return found;
}

// From now on the kernel refuses all requests.
void Break(int ring) {
  const int other = open("/dev/null", O_RDWR);
  ASSERT_EQ(dup2(other, ring), ring);
  close(other);
}

class BlockIoTest : public testing::Test {
 protected:
  BlockIoTest() {
    path_ = std::filesystem::temp_directory_path() / ("twml_io_" + std::to_string(getpid()));
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT, 0600);
    EXPECT_EQ(ftruncate(fd_, kRequests * kBytes), 0);
  }
  ~BlockIoTest() override {
    close(fd_);
    std::filesystem::remove(path_);
  }

  // Submits reads, calls body() in their midst, and waits. Each must be done once.
  template <class Body>
  void ReadAll(Body body, std::atomic<int>* failed) {
    std::vector<char> buffer(kRequests * kBytes);
    std::vector<std::atomic<int>> done(kRequests);
    {
      BlockIo io(fd_, 16, /*use_io_uring=*/true);
      std::atomic<int> left{kRequests};
      for (int i = 0; i < kRequests; ++i) {
        BlockRequest request;
        request.offset = i * kBytes;
        request.bytes = kBytes;
        request.buffer = buffer.data() + i * kBytes;
        request.done = [&, i](int error) {
          *failed += error != 0 ? 1 : 0;
          ++done[i];
          --left;
        };
        io.Submit(std::move(request), i % 7 == 0);
        if (i == kRequests / 2) body(&io);
      }
      while (left > 0) std::this_thread::yield();
    }
    for (const auto& each : done) EXPECT_EQ(each, 1);
  }

  std::string path_;
  int fd_ = -1;
};

TEST_F(BlockIoTest, RequestsAreDoneOnce) {
  std::atomic<int> failed{0};
  ReadAll([](BlockIo*) {}, &failed);
  EXPECT_EQ(failed, 0);
}

TEST_F(BlockIoTest, ARingThatTheKernelRefusesIsAnErrorOfEachRequest) {
  std::atomic<int> failed{0};
  bool has_ring = false;
  ReadAll(
      [&](BlockIo* io) {
        has_ring = io->uses_io_uring();
        if (has_ring) Break(Rings().at(0));
      },
      &failed);
  if (!has_ring) GTEST_SKIP() << "no io_uring";
  EXPECT_GE(failed, kRequests / 2 - 1);
}

TEST_F(BlockIoTest, AStoreWhoseRingTheKernelRefusesNamesItsFile) {
  RowStoreOptions options;
  options.num_rows = 600;
  options.row_bytes = 100;
  std::unique_ptr<RowStore> store;
  ASSERT_TRUE(RowStore::Create(path_ + ".rows", options, &store).ok());
  if (!store->uses_io_uring()) GTEST_SKIP() << "no io_uring";
  std::vector<int64_t> rows(options.num_rows);
  for (int64_t i = 0; i < options.num_rows; ++i) rows[i] = i;
  int64_t stored;
  const auto write = [](int64_t, char*) {};
  ASSERT_TRUE(store->Append(rows, write, &stored).ok());
  Break(Rings().at(0));
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) status = store->Append(rows, write, &stored);
  EXPECT_TRUE(IsFileStatus(status));
  EXPECT_NE(status.message().find(path_ + ".rows cannot be "), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("not supported"), std::string::npos) << status.message();
  for (const int64_t row : rows) EXPECT_TRUE(store->Has(row));
}

}  // namespace block_io_test
}  // namespace twml
