#include "cc/core/row_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace twml {
namespace row_store_test {

constexpr int64_t kRows = 600, kRowBytes = 100;

// Whether to go past the page cache, and whether to use io_uring.
class RowStoreTest : public testing::TestWithParam<std::pair<bool, bool>> {
 protected:
  RowStoreTest() {
    const std::string name = "twml_store_" + std::to_string(getpid());
    path_ = (std::filesystem::temp_directory_path() / name).string();
  }
  ~RowStoreTest() override { std::filesystem::remove(path_); }

  RowStoreOptions Options() const {
    RowStoreOptions options;
    options.num_rows = kRows;
    options.row_bytes = kRowBytes;
    options.direct = GetParam().first;
    options.use_io_uring = GetParam().second;
    options.depth = 8;
    return options;
  }
  std::unique_ptr<RowStore> Create() const {
    std::unique_ptr<RowStore> store;
    const Status status = RowStore::Create(path_, Options(), &store);
    EXPECT_TRUE(status.ok()) << status.message();
    return store;
  }
  std::string path_;
};

std::string Content(int64_t row, int version) {
  std::string content(kRowBytes, static_cast<char>(version));
  std::memcpy(content.data(), &row, sizeof(row));
  return content;
}

Status Append(RowStore* store, const std::vector<int64_t>& rows, int version,
              int64_t* stored = nullptr) {
  int64_t unused;
  return store->Append(
      rows,
      [&](int64_t i, char* record) {
        std::memcpy(record, Content(rows[i], version).data(), kRowBytes);
      },
      stored == nullptr ? &unused : stored);
}

std::vector<int64_t> AllRows() {
  std::vector<int64_t> rows(kRows);
  for (int64_t i = 0; i < kRows; ++i) rows[i] = i;
  return rows;
}

// Reads one row. Returns the error.
int Read(RowStore* store, int64_t row, std::string* content) {
  std::mutex mu;
  std::condition_variable changed;
  bool done = false;
  int found = 0;
  store->Read(row, /*urgent=*/true, [&](const char* record, int error) {
    std::lock_guard<std::mutex> lock(mu);
    found = error;
    if (error == 0) content->assign(record, kRowBytes);
    done = true;
    changed.notify_all();
  });
  std::unique_lock<std::mutex> lock(mu);
  changed.wait(lock, [&] { return done; });
  return found;
}

// Appends other rows until those before are no longer in memory.
void PushOutOfMemory(RowStore* store, int64_t from, int version) {
  std::vector<int64_t> rows;
  for (int64_t row = from; row < kRows; ++row) rows.push_back(row);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Append(store, rows, version).ok());
}

// While it exists, the process cannot write files beyond a size. The error is that of a full disk.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit = {bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallFiles() {
    setrlimit(RLIMIT_FSIZE, &old_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit old_;
  void (*handler_)(int);
};

TEST_P(RowStoreTest, RecordsAreThoseThatWereAppendedLast) {
  const auto store = Create();
  std::vector<int> versions(kRows, -1);
  std::mt19937_64 random(3);
  for (int version = 0; version < 120; ++version) {
    std::vector<int64_t> rows;
    for (const int64_t row : AllRows()) {
      if (random() % 8 == 0) rows.push_back(row);
    }
    if (version % 10 == 9) {
      store->Forget(rows);
      for (const int64_t row : rows) versions[row] = -1;
      continue;
    }
    ASSERT_TRUE(Append(store.get(), rows, version).ok());
    for (const int64_t row : rows) versions[row] = version;
    const auto row = static_cast<int64_t>(random() % kRows);
    ASSERT_EQ(store->Has(row), versions[row] >= 0);
    std::string content;
    if (versions[row] < 0) continue;
    ASSERT_EQ(Read(store.get(), row, &content), 0);
    ASSERT_EQ(content, Content(row, versions[row]));
  }
  std::vector<std::string> read(kRows);
  ASSERT_TRUE(store
                  ->ReadRange(0, kRows,
                              [&](int64_t row, const char* record) {
                                EXPECT_TRUE(read[row].empty());
                                read[row].assign(record, kRowBytes);
                              })
                  .ok());
  for (int64_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(read[row], versions[row] < 0 ? "" : Content(row, versions[row]));
  }
  EXPECT_GT(store->statistics().bytes_written, 0);
}

TEST_P(RowStoreTest, ThreadsThatReadWhileOthersAppendFindWholeRecords) {
  const auto store = Create();
  ASSERT_TRUE(Append(store.get(), AllRows(), 1).ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 300; ++i) {
        const auto row = static_cast<int64_t>(random() % kRows);
        if (t == 0) {
          ASSERT_TRUE(Append(store.get(), {row, (row + 7) % kRows}, i % 50).ok());
          continue;
        }
        std::string content;
        ASSERT_EQ(Read(store.get(), row, &content), 0);
        ASSERT_EQ(content, Content(row, content.back()));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(RowStoreTest, TheFileExistsAsLongAsTheStoreAndIsUsedByOneOnly) {
  {
    const auto store = Create();
    EXPECT_TRUE(std::filesystem::exists(path_));
    std::unique_ptr<RowStore> other;
    const Status status = RowStore::Create(path_, Options(), &other);
    EXPECT_EQ(status.message(), "the file " + path_ + " is in use by another table");
    EXPECT_TRUE(std::filesystem::exists(path_));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_P(RowStoreTest, StoresThatAreCreatedAndRemovedAtTheSameTimeNeverShareAFile) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        std::unique_ptr<RowStore> store;
        if (!RowStore::Create(path_, Options(), &store).ok()) continue;
        struct stat before;
        ASSERT_EQ(stat(path_.c_str(), &before), 0);  // no other store has removed it
        ASSERT_TRUE(Append(store.get(), {i}, t).ok());
        struct stat after;
        ASSERT_EQ(stat(path_.c_str(), &after), 0);
        ASSERT_EQ(before.st_ino, after.st_ino);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(RowStoreTest, AStoreThatReplacesAnotherHasItsPath) {
  auto store = Create();
  RowStoreOptions options = Options();
  std::unique_ptr<RowStore> other;
  ASSERT_TRUE(RowStore::Create(path_ + ".new", options, &other).ok());
  ASSERT_TRUE(Append(other.get(), AllRows(), 5).ok());
  ASSERT_TRUE(other->Replace(store.get()).ok());
  store.reset();
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
  EXPECT_TRUE(std::filesystem::exists(path_));
  std::string content;
  ASSERT_EQ(Read(other.get(), 3, &content), 0);
  EXPECT_EQ(content, Content(3, 5));
  other.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_P(RowStoreTest, AFileThatAKilledProcessLeftIsReplacedAndOthersAreNot) {
  for (const char* const content : {"", "twml_ops row store 1\n"}) {
    std::ofstream(path_) << std::string(content, std::strlen(content) + 1).substr(*content == 0);
    EXPECT_NE(Create(), nullptr);
  }
  for (const char* const content : {"x", "twml_ops row store 2\n", "twml_ops row store 1"}) {
    std::ofstream(path_) << content;
    std::unique_ptr<RowStore> store;
    const Status status = RowStore::Create(path_, Options(), &store);
    EXPECT_EQ(status.message(), "the file " + path_ + " exists and is not a row store");
    std::ifstream file(path_);
    const std::string left{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(left, content);
  }
}

TEST_P(RowStoreTest, AFullDiskIsAnErrorThatLeavesNoFile) {
  const SmallFiles limit(100000);
  std::unique_ptr<RowStore> store;
  const Status status = RowStore::Create(path_, Options(), &store);
  EXPECT_TRUE(IsFileStatus(status));
  EXPECT_NE(status.message().find("cannot have the"), std::string::npos) << status.message();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_P(RowStoreTest, NoRecordIsLostWhileTheFileCannotBeWritten) {
  const auto store = Create();
  ASSERT_TRUE(Append(store.get(), AllRows(), 1).ok());
  std::vector<int> versions(kRows, 1);
  {
    const SmallFiles limit(4096);
    Status status;
    for (int version = 2; status.ok() && version < 50; ++version) {
      int64_t stored;
      status = Append(store.get(), AllRows(), version, &stored);
      for (int64_t row = 0; row < stored; ++row) versions[row] = version;
    }
    EXPECT_NE(status.message().find("cannot be written"), std::string::npos) << status.message();
    EXPECT_FALSE(store->RetryWrites().ok());
    for (int64_t row = 0; row < kRows; ++row) {
      std::string content;
      ASSERT_EQ(Read(store.get(), row, &content), 0);
      ASSERT_EQ(content, Content(row, versions[row]));
    }
  }
  ASSERT_TRUE(store->RetryWrites().ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Append(store.get(), AllRows(), 77).ok());
  std::string content;
  ASSERT_EQ(Read(store.get(), 5, &content), 0);
  EXPECT_EQ(content, Content(5, 77));
}

TEST_P(RowStoreTest, RecordsBehindTheEndOfATruncatedFileAreAnError) {
  const auto store = Create();
  ASSERT_TRUE(Append(store.get(), AllRows(), 1).ok());
  PushOutOfMemory(store.get(), 100, 2);
  ASSERT_EQ(truncate(path_.c_str(), 4096 + 700), 0);
  int failed = 0;
  for (int64_t row = 0; row < 100; ++row) {
    std::string content;
    const int error = Read(store.get(), row, &content);
    if (error == 0) {
      EXPECT_EQ(content, Content(row, 1));
    } else {
      EXPECT_TRUE(error == BlockRequest::kEndOfFile || error == kWrongRecord) << error;
      ++failed;
    }
  }
  EXPECT_GT(failed, 0);
  const Status status = store->ReadRange(0, kRows, [](int64_t, const char*) {});
  // Segments that were still being written may have made the file longer again.
  const std::string start = "the file " + path_ + " cannot be read: ";
  EXPECT_TRUE(status.message() == start + "the file ends too early" ||
              status.message() == start + DescribeRowError(kWrongRecord))
      << status.message();
}

TEST_P(RowStoreTest, RecordsThatAreNotThoseThatWereWrittenAreAnError) {
  const auto store = Create();
  ASSERT_TRUE(Append(store.get(), AllRows(), 1).ok());
  PushOutOfMemory(store.get(), 100, 2);
  const auto size = static_cast<off_t>(std::filesystem::file_size(path_));
  ASSERT_EQ(truncate(path_.c_str(), 4096), 0);
  ASSERT_EQ(truncate(path_.c_str(), size), 0);  // all zero, as after a lost write
  int failed = 0;
  for (int64_t row = 0; row < 100; ++row) {
    std::string content;
    const int error = Read(store.get(), row, &content);
    if (error == 0) {
      EXPECT_EQ(content, Content(row, 1));
    } else {
      EXPECT_EQ(error, kWrongRecord);
      ++failed;
    }
  }
  EXPECT_GT(failed, 0);
  const Status status = store->ReadRange(0, kRows, [](int64_t, const char*) {});
  EXPECT_EQ(status.message(),
            "the file " + path_ + " cannot be read: a record is not the one that was written");
  // The thread that frees segments meets such records as well.
  std::vector<int64_t> rows;
  for (int64_t row = 100; row < kRows; ++row) rows.push_back(row);
  Status appended;
  for (int i = 0; i < 100 && appended.ok(); ++i) appended = Append(store.get(), rows, 3);
  if (!appended.ok()) {
    EXPECT_EQ(appended.message(), status.message());
  }
}

TEST_P(RowStoreTest, ThreadsThatAppendAtTheSameTimeAllEnd) {
  RowStoreOptions options = Options();
  options.segment_bytes = 4096;
  std::unique_ptr<RowStore> store;
  ASSERT_TRUE(RowStore::Create(path_, options, &store).ok());
  std::vector<std::thread> threads;
  std::vector<int> errors(3);
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int n = 0; n < 1500; ++n) {
        std::vector<int64_t> rows(20);
        for (int64_t& row : rows) row = static_cast<int64_t>(random() % kRows);
        errors[t] += Append(store.get(), rows, 1).ok() ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors, std::vector<int>(3));
  int64_t found = 0, wrong = 0;
  ASSERT_TRUE(store
                  ->ReadRange(0, kRows,
                              [&](int64_t row, const char* record) {
                                ++found;
                                wrong += Content(row, 1) != std::string(record, kRowBytes);
                              })
                  .ok());
  EXPECT_EQ(found, kRows);
  EXPECT_EQ(wrong, 0);
}

// The cleaner looks at a bounded number of lists for each row that is written, however large the
// file is.
TEST_P(RowStoreTest, TheSearchForSegmentsToCleanDoesNotGrowWithTheirNumber) {
  for (const int64_t num_rows : {2000, 32000}) {
    RowStoreOptions options = Options();
    options.num_rows = num_rows;
    options.segment_bytes = 4096;
    std::unique_ptr<RowStore> store;
    ASSERT_TRUE(RowStore::Create(path_, options, &store).ok());
    std::mt19937_64 random(5);
    std::vector<int64_t> rows(500);
    int64_t written = 0;
    const auto append = [&] {
      ASSERT_TRUE(Append(store.get(), rows, 1).ok());
      written += static_cast<int64_t>(rows.size());
    };
    for (int64_t begin = 0; begin < num_rows; begin += 500) {
      for (int64_t i = 0; i < 500; ++i) rows[i] = begin + i;
      append();
    }
    while (written < 2 * num_rows) {
      for (int64_t& row : rows) row = static_cast<int64_t>(random() % num_rows);
      append();
    }
    const int64_t steps = store->statistics().clean_steps;
    EXPECT_GT(steps, 0);
    EXPECT_LT(steps, 8 * written);
  }
}

TEST_P(RowStoreTest, OptionsOutOfRangeAreErrors) {
  std::unique_ptr<RowStore> store;
  RowStoreOptions options = Options();
  for (const int64_t num_rows : {int64_t{-1}, int64_t{0}, int64_t{UINT32_MAX}, INT64_MAX}) {
    options.num_rows = num_rows;
    EXPECT_FALSE(RowStore::Create(path_, options, &store).ok());
  }
  options = Options();
  for (const int64_t row_bytes : {int64_t{0}, (int64_t{1} << 30) + 1, INT64_MAX}) {
    options.row_bytes = row_bytes;
    EXPECT_FALSE(RowStore::Create(path_, options, &store).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

INSTANTIATE_TEST_SUITE_P(All, RowStoreTest,
                         testing::Values(std::pair{true, true}, std::pair{true, false},
                                         std::pair{false, true}, std::pair{false, false}));

}  // namespace row_store_test
}  // namespace twml
