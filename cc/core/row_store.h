// Records of fixed size in a file, which are read one by one and written in large pieces.
//
// The file is divided into segments. Written records are collected in a segment in memory, which is
// written as a whole when it is full, so writing costs few operations of the device, and no block
// is ever read in order to change a part of it (Rosenblum and Ousterhout, 1992, "The Design and
// Implementation of a Log-Structured File System"). An index in memory has the place of each row. A
// thread frees segments in which few records are still valid: it appends these to a segment of
// their own and makes the old one available.
//
// Behind each record are the number of its row and a checksum that depends on the record, the row
// and how often the segment was written. So a record that is not the one that was written last (a
// write that the system lost, a file that another process has changed) is an error.
//
// The file is scratch memory: its content is useless without the index of the process, and it is
// removed with the store.
#ifndef TWML_CORE_ROW_STORE_H_
#define TWML_CORE_ROW_STORE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/aligned_buffer.h"
#include "cc/core/block_io.h"
#include "cc/core/row_file.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// The error of a record that is not the one that was written; see DescribeRowError.
constexpr int kWrongRecord = -2;

// What went wrong with a read or write of a RowStore.
std::string DescribeRowError(int error);

struct RowStoreOptions {
  int64_t num_rows = 0;
  int64_t row_bytes = 0;
  bool direct = true;         // past the page cache, if the file system can do that
  bool use_io_uring = true;   // if the system has it
  int depth = 64;             // requests at the same time
  int64_t segment_bytes = 0;  // 0: at most 256 KiB, and so that there are about 256 segments
  IoFault fault = nullptr;    // for tests
};

// All functions may be called from any thread.
class RowStore {
 public:
  struct Statistics {
    int64_t rows_read = 0;      // from the file
    int64_t rows_written = 0;   // by Append
    int64_t bytes_written = 0;  // to the file, including rows that were moved
    int64_t bytes_read = 0;     // from the file
    int64_t clean_steps = 0;    // of the search for segments that are cleaned
  };
  // Receives a record, or an error. It runs on any thread, with the store locked if the record is
  // in memory, so it must not call the store. It must not throw.
  using Receive = std::function<void(const char* record, int error)>;

  // Creates the file, or replaces one that an ended process left there. A file of another kind, or
  // one that is in use, is an error.
  static Status Create(const std::string& path, const RowStoreOptions& options,
                       std::unique_ptr<RowStore>* store);
  // Removes the file.
  ~RowStore();
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  // Stores records. write(i, record) writes that of rows[i]. Returns an error if the file cannot be
  // written; then `*stored` records have been stored, and none of them is lost.
  Status Append(Span<const int64_t> rows, const std::function<void(int64_t, char*)>& write,
                int64_t* stored);

  // Whether there is a valid record of a row.
  bool Has(int64_t row) const;

  // Makes the records of rows invalid. Rows that have none are ignored.
  void Forget(Span<const int64_t> rows);

  // Reads the record of a row that has one. `receive` is called once, unless this throws.
  void Read(int64_t row, bool urgent, Receive receive);

  // Reads the rows [begin, begin + count), in pieces as large as possible, and calls
  // receive(row, record) for each row that has a record.
  Status ReadRange(int64_t begin, int64_t count,
                   const std::function<void(int64_t row, const char* record)>& receive);

  // Tries again to write what could not be written. Returns an error if it still cannot.
  Status RetryWrites();

  // Gives the file the place of that of another store, whose file is removed. After an error
  // nothing has changed. No other thread may use the stores meanwhile.
  Status Replace(RowStore* other);

  int64_t num_rows() const { return options_.num_rows; }
  int64_t row_bytes() const { return options_.row_bytes; }
  bool direct() const { return file_->direct(); }
  bool uses_io_uring() const { return io_->uses_io_uring(); }
  const std::string& path() const { return file_->path(); }
  Statistics statistics() const;

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  static constexpr int kNumStreams = 2;  // of new records, and of moved records
  static constexpr int kMoved = 1;
  static constexpr int kNumBuffers = 6;
  static constexpr int64_t kCleanedAtOnce = 4;
  static constexpr int64_t kMinFree = kCleanedAtOnce;  // segments that are left for moved records

  enum class State : uint8_t { kFree, kOpen, kWriting, kFull, kFailed, kCleaned };
  struct Segment {
    int32_t live = 0;      // valid records
    int32_t readers = 0;   // reads of the file that have begun
    uint32_t version = 0;  // how often it was opened
    int16_t buffer = -1;   // while the content is in memory
    State state = State::kFree;
    uint32_t previous = kNowhere, next = kNowhere;  // in the list of a full segment
  };
  struct WaitingRead {
    int64_t row;
    Receive receive;
  };
  // A read of the file that has begun.
  struct RunningRead {
    int64_t row, segment;
    uint32_t version;
    int64_t skipped;  // bytes of the aligned blocks before the record
    Receive receive;
  };
  // Segments that are cleaned at the same time.
  struct Cleaned {
    int64_t segments[kCleanedAtOnce];
    int count = 0;
  };
  struct Sizes {
    int64_t segment_bytes, rows_per_segment, num_segments;
  };
  // What is behind a record.
  struct Tag {
    uint32_t row, checksum;
  };

  explicit RowStore(const RowStoreOptions& options) : options_(options) {}
  static Status SizesOf(const RowStoreOptions& options, Sizes* sizes);
  Status Error(const char* what, int error) const;
  int64_t SegmentOffset(int64_t segment) const {
    return RowFile::kHeaderBytes + segment * sizes_.segment_bytes;
  }
  int64_t RecordOffset(uint32_t place) const {
    return SegmentOffset(place / sizes_.rows_per_segment) +
           place % sizes_.rows_per_segment * record_bytes_;
  }
  char* RecordInMemory(uint32_t place) const;
  Tag TagOf(const char* record, int64_t row, uint32_t version) const;
  // Returns 0 or kWrongRecord.
  int CheckRecord(const char* record, int64_t row, uint32_t version) const;

  // These need the lock. `lock` is released while they wait.
  Status PlaceFor(int stream, std::unique_lock<std::mutex>* lock, uint32_t* place);
  bool CanOpen(int stream) const;
  void Seal(int64_t segment);
  void Forget(int64_t row);
  void StartRead(int64_t row, Receive receive, bool urgent);
  // Full segments are in the list of those with as many valid records, and in no other state.
  void EnterFull(int64_t segment);
  void LeaveFull(int64_t segment, State state);
  Cleaned TakeSegmentsToClean();

  void FinishRead(int number, int error);
  void Clean();
  int ReadSegments(const Cleaned& cleaned);
  int MoveRecords(int64_t number, const char* content, std::unique_lock<std::mutex>* lock);

  const RowStoreOptions options_;
  Sizes sizes_ = {};
  int64_t record_bytes_ = 0;  // with its tag
  std::unique_ptr<RowFile> file_;
  int64_t read_bytes_ = 0;  // of the aligned blocks around a record

  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::vector<uint32_t> places_;  // of each row
  std::vector<Segment> segments_;
  std::vector<int64_t> free_;
  std::vector<uint32_t> full_;  // the first segment of each list, by the number of valid records
  int64_t fewest_ = 0;          // all lists before this one are empty
  int64_t open_[kNumStreams] = {-1, -1};
  int64_t used_[kNumStreams] = {0, 0};  // records in the open segments
  std::vector<AlignedBuffer> buffers_;
  std::vector<int> free_buffers_;
  std::vector<RunningRead> reads_;
  std::vector<int> free_reads_;
  std::deque<WaitingRead> waiting_reads_;
  int64_t running_ = 0;  // requests
  int write_error_ = 0, clean_error_ = 0;
  Statistics statistics_;
  bool ends_ = false;

  AlignedBuffer read_buffers_, clean_buffer_;
  std::unique_ptr<BlockIo> io_;
  std::thread cleaner_;
};

}  // namespace twml

#endif  // TWML_CORE_ROW_STORE_H_
