// Random steps of a table in a file, while reads and writes of the file fail, against a table in
// memory.
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/core/tiered_rows.h"
#include "gtest/gtest.h"
#include "tests/cc/testing.h"

namespace twml {
namespace tiered_machine_test {

constexpr int64_t kRows = 240, kWidths[] = {3, 300};  // four records in a segment
constexpr float kInitial[] = {0.0f, 0.5f};
constexpr int kShort = 0;
constexpr int kErrors[] = {kShort, EINTR, EAGAIN, EIO, ENOSPC};

// The call of the given number, counted down, fails.
struct Fault {
  std::atomic<int64_t> left{-1}, calls{0};
  std::atomic<int> error{EIO};

  int64_t operator()(int64_t bytes) {
    ++calls;
    if (left.load() < 0 || left.fetch_sub(1) != 0) return bytes;
    if (error != kShort) return -error;
    return std::max<int64_t>(1, bytes / 2 / 4096 * 4096) > 4095 ? bytes / 2 / 4096 * 4096 : bytes;
  }
};

struct Case {
  bool direct, use_io_uring;
  int64_t cache_rows, prefetch_rows;
  RowPolicy policy;
};

// A table in a file, and what its rows are.
class Machine {
 public:
  Machine(const Case& c, uint64_t seed) : random_(seed) {
    const std::string name = "twml_machine_" + std::to_string(getpid());
    options_.path = (std::filesystem::temp_directory_path() / name).string();
    options_.num_rows = kRows;
    options_.cache_rows = c.cache_rows;
    options_.prefetch_rows = c.prefetch_rows;
    options_.policy = c.policy;
    options_.direct = c.direct;
    options_.use_io_uring = c.use_io_uring;
    options_.depth = 4;
    options_.fault = [this](bool, int64_t bytes) { return fault(bytes); };
    Open();
  }

  void Step() {
    const auto kind = random_() % 40;
    if (kind < 14) return Lookup();
    if (kind < 28) return Update();
    if (kind < 32) return Prefetch();
    if (kind < 34) return ReadPart();
    if (kind < 36) return ReadRows();
    if (kind < 38) return WritePart();
    if (kind < 39) return SetParts();
    if (random_() % 8 == 0) Open();
  }

  void CheckAll() {
    for (int part = 0; part < 2; ++part) {
      std::vector<float> read(kRows * kWidths[part]);
      Must([&] { return rows_->ReadPart(part, 0, kRows, cache(), Bytes(&read)); });
      ASSERT_EQ(read, expected_[part]) << part;
    }
  }

  Fault fault;
  int64_t failed = 0;

 private:
  using Values = std::vector<float>;

  static char* Bytes(Values* values) { return reinterpret_cast<char*>(values->data()); }
  Span<char* const> cache() { return Span<char* const>(pointers_.data(), 2); }

  std::vector<RowPart> Parts() const {
    std::vector<RowPart> parts;
    for (int p = 0; p < 2; ++p) {
      const Values row(kWidths[p], kInitial[p]);
      parts.push_back(
          {kWidths[p] * 4, std::string(reinterpret_cast<const char*>(row.data()), kWidths[p] * 4)});
    }
    return parts;
  }

  // A new table: the file is scratch memory, so all rows have their initial content.
  void Open() {
    rows_.reset();
    Must([&] { return TieredRows::Create(options_, Parts(), &rows_); });
    pointers_.clear();
    for (int p = 0; p < 2; ++p) {
      cached_[p].assign(rows_->cache_rows() * kWidths[p], -1.0f);
      pointers_.push_back(Bytes(&cached_[p]));
      expected_[p].assign(kRows * kWidths[p], kInitial[p]);
    }
  }

  // A call that fails has the error of the file. It succeeds when the file works again.
  template <class Call>
  void Must(Call call) {
    Status status = call();
    for (int again = 0; !status.ok() && again < 3; ++again) {
      ++failed;
      ASSERT_TRUE(IsFileStatus(status)) << status.message();
      fault.left = -1;
      status = call();
    }
    ASSERT_TRUE(status.ok()) << status.message();
  }

  std::vector<int64_t> Ids(bool repeat) {
    std::vector<int64_t> ids;
    std::vector<bool> seen(kRows);
    for (auto count = random_() % 16; count > 0; --count) {
      const auto id = static_cast<int64_t>(random_() % (random_() % 2 == 0 ? 24 : kRows));
      if (seen[id] && !repeat) continue;
      seen[id] = true;
      ids.push_back(id);
    }
    return ids;
  }

  std::vector<int64_t> Map(const std::vector<int64_t>& ids, bool counts, bool changes) {
    std::vector<int64_t> places(ids.size());
    Must([&] {
      return rows_->Map(Span<const int64_t>(ids), cache(), counts, changes, Serial, places.data());
    });
    return places;
  }

  float* Cached(int part, int64_t place) { return cached_[part].data() + place * kWidths[part]; }
  float* Expected(int part, int64_t row) { return expected_[part].data() + row * kWidths[part]; }

  void Lookup() {
    const auto ids = Ids(true);
    const auto places = Map(ids, true, false);
    for (size_t i = 0; i < ids.size(); ++i) {
      for (int p = 0; p < 2; ++p) {
        ASSERT_EQ(
            std::memcmp(Cached(p, places[i]), Expected(p, ids[i]), kWidths[p] * sizeof(float)), 0);
      }
    }
  }

  void Update() {
    const auto ids = Ids(false);
    const auto places = Map(ids, false, true);
    for (size_t i = 0; i < ids.size(); ++i) {
      for (int p = 0; p < 2; ++p) {
        const auto value = static_cast<float>(random_() % 1000);
        std::fill_n(Cached(p, places[i]), kWidths[p], value);
        std::fill_n(Expected(p, ids[i]), kWidths[p], value);
      }
    }
  }

  void Prefetch() {
    const auto ids = Ids(true);
    Must([&] { return rows_->Prefetch(Span<const int64_t>(ids)); });
  }

  void ReadPart() {
    const auto part = static_cast<int>(random_() % 2);
    const auto begin = static_cast<int64_t>(random_() % kRows);
    const auto count = static_cast<int64_t>(random_() % (kRows - begin + 1));
    Values read(count * kWidths[part]);
    Must([&] { return rows_->ReadPart(part, begin, count, cache(), Bytes(&read)); });
    ASSERT_TRUE(std::equal(read.begin(), read.end(), Expected(part, begin)));
  }

  void ReadRows() {
    const auto ids = Ids(true);
    const auto count = static_cast<int64_t>(ids.size());
    Values read[] = {Values(count * kWidths[0]), Values(count * kWidths[1])};
    Must([&] { return rows_->ReadRows(ids, cache(), {Bytes(&read[0]), Bytes(&read[1])}); });
    for (int64_t i = 0; i < count; ++i) {
      for (int p = 0; p < 2; ++p) {
        const auto* const row = read[p].data() + i * kWidths[p];
        ASSERT_TRUE(std::equal(row, row + kWidths[p], Expected(p, ids[i])));
      }
    }
  }

  void WritePart() {
    const auto part = static_cast<int>(random_() % 2);
    const auto begin = static_cast<int64_t>(random_() % kRows);
    const auto count = static_cast<int64_t>(random_() % (kRows - begin + 1));
    Values values(count * kWidths[part]);
    for (float& value : values) value = static_cast<float>(random_() % 100);
    Must([&] { return rows_->WritePart(part, begin, count, Bytes(&values), cache()); });
    std::copy(values.begin(), values.end(), Expected(part, begin));
  }

  // The second part starts anew, also in the cache.
  void SetParts() {
    Must([&] { return rows_->SetParts(Parts()); });
    std::fill(cached_[1].begin(), cached_[1].end(), kInitial[1]);
    std::fill(expected_[1].begin(), expected_[1].end(), kInitial[1]);
  }

  std::mt19937_64 random_;
  TieredRowsOptions options_;
  std::unique_ptr<TieredRows> rows_;
  Values cached_[2], expected_[2];
  std::vector<char*> pointers_;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const bool direct : {false, true}) {
    for (const bool use_io_uring : {false, true}) {
      cases.push_back({direct, use_io_uring, 16, 0, RowPolicy::kLru});
      cases.push_back({direct, use_io_uring, 48, 5, RowPolicy::kLfu});
      cases.push_back({direct, use_io_uring, kRows, 100, RowPolicy::kLru});
    }
  }
  return cases;
}

// TWML_TEST_STEPS is the number of steps of all cases together.
TEST(TieredMachine, AnyStepsWithAnyFaultsOfTheFileGiveTheRowsOfATableInMemory) {
  const char* const given = std::getenv("TWML_TEST_STEPS");
  const auto cases = Cases();
  const int64_t steps =
      (given == nullptr ? 6000 : std::atoll(given)) / static_cast<int64_t>(cases.size());
  int64_t failed = 0;
  for (size_t number = 0; number < cases.size(); ++number) {
    SCOPED_TRACE(number);
    Machine machine(cases[number], number);
    std::mt19937_64 random(number + 100);
    for (int64_t step = 0; step < steps; ++step) {
      if (random() % 4 == 0) {
        machine.fault.error = kErrors[random() % std::size(kErrors)];
        machine.fault.left = static_cast<int64_t>(random() % 8);
      }
      machine.Step();
      if (step % 500 == 499 || step + 1 == steps) machine.CheckAll();
      ASSERT_FALSE(testing::Test::HasFailure()) << "step " << step;
    }
    failed += machine.failed;
  }
  EXPECT_GT(failed, 0);
}

TEST(TieredMachine, EachReadAndWriteFailsOnce) {
  constexpr int kSteps = 40;
  for (const bool use_io_uring : {false, true}) {
    int64_t calls = 0;
    for (int64_t call = -1; call < calls; ++call) {
      for (const int error : kErrors) {
        SCOPED_TRACE(testing::Message() << use_io_uring << " call " << call << " error " << error);
        Machine machine({false, use_io_uring, 16, 5, RowPolicy::kLru}, 7);
        machine.fault.error = error;
        machine.fault.left = call;
        for (int step = 0; step < kSteps; ++step) machine.Step();
        machine.CheckAll();
        ASSERT_FALSE(testing::Test::HasFailure());
        if (call < 0) calls = machine.fault.calls;
      }
    }
    EXPECT_GT(calls, 20);
  }
}

}  // namespace tiered_machine_test
}  // namespace twml
