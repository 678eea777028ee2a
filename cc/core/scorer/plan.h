// A program for requests of one kind: the shapes of its registers, where they are in memory, and
// which steps are computed once for a request.
#ifndef TWML_CORE_SCORER_PLAN_H_
#define TWML_CORE_SCORER_PLAN_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/scorer/fetched_rows.h"
#include "cc/core/scorer/program.h"
#include "cc/core/scorer/step.h"
#include "cc/core/status.h"

namespace twml::scorer {

// What is the same for all requests of a plan.
struct PlanKey {
  bool raw = false;
  bool ranking = false;
  std::vector<std::vector<int64_t>> dims;  // of each dense input, in the order of the inputs
  std::vector<uint8_t> constant;           // whether the user has an input, if it is a ranking

  bool operator==(const PlanKey& other) const {
    return raw == other.raw && ranking == other.ranking && dims == other.dims &&
           constant == other.constant;
  }
};

// How the rows of a register differ within a request.
enum class Variation : uint8_t {
  kVarying,
  kConstant,  // all rows are the same
  kSplit,     // entries of the user, followed by entries of a row
};

class Plan;

// The memory of one thread while it computes blocks of rows.
class Workspace {
 public:
  explicit Workspace(const Plan& plan);

  std::vector<View> views;
  std::vector<StringColumn> strings;
  std::vector<int64_t> limits;
  EntryMemory entries;
  // The same for what is computed once for a request.
  std::vector<View> base_views;
  std::vector<StringColumn> base_strings;
  EntryMemory base_entries;
  // The rows of tables in files, of the request whose caller has this memory.
  FetchedRows fetched;

 private:
  struct Free {
    void operator()(char* memory) const;
  };
  std::unique_ptr<char, Free> dense_, base_dense_;
};

class Plan {
 public:
  static Status Make(const Program& program, PlanKey key, std::unique_ptr<const Plan>* out);
  ~Plan();

  const Program& program() const { return program_; }
  const PlanKey& key() const { return key_; }
  const std::vector<ProgramInput>& inputs() const {
    return key_.raw ? program_.columns : program_.features;
  }
  const std::vector<RowShape>& shapes() const { return shapes_; }
  Variation variation(Register r) const { return variations_[r]; }
  // In order: the steps that are computed once, and the steps of each block.
  const std::vector<const Step*>& once() const { return once_; }
  const std::vector<const Step*>& each() const { return each_; }
  // Of these, the steps that read files and those on which the ids of their rows depend.
  const std::vector<const Step*>& collect_once() const { return collect_once_; }
  const std::vector<const Step*>& collect_each() const { return collect_each_; }
  // Whether a register of this plan is written by one of each().
  bool written(Register r) const { return offsets_[r] >= 0; }

  int64_t block_rows() const { return block_rows_; }
  int64_t cost_of_row() const { return cost_of_row_; }
  // Bytes of the dense registers of a block, and the offset of each, or -1.
  int64_t dense_bytes() const { return dense_bytes_; }
  const std::vector<int64_t>& offsets() const { return offsets_; }
  int64_t base_bytes() const { return base_bytes_; }
  const std::vector<int64_t>& base_offsets() const { return base_offsets_; }

  // Workspaces are kept for later calls, and a thread usually gets the one that it returned, which
  // is in its cache. Neither function waits for another thread.
  std::unique_ptr<Workspace> TakeWorkspace() const;
  void ReturnWorkspace(std::unique_ptr<Workspace> workspace) const;

 private:
  Plan(const Program& program, PlanKey key);
  Status CheckOutputs() const;
  Status FindVariations(const std::vector<const Step*>& steps);
  Status FindCollected(const std::vector<const Step*>& steps);
  void PlaceRegisters();
  void PlaceBases();

  static constexpr uint32_t kPool = 64;
  // A cache line each.
  struct alignas(64) PoolSlot {
    std::atomic<Workspace*> workspace{nullptr};
  };

  const Program& program_;
  const PlanKey key_;
  std::vector<RowShape> shapes_;
  std::vector<Variation> variations_;
  std::vector<const Step*> once_, each_, collect_once_, collect_each_;
  std::vector<int64_t> offsets_, base_offsets_;
  int64_t block_rows_ = 1, cost_of_row_ = 0, dense_bytes_ = 0, base_bytes_ = 0;
  mutable PoolSlot pool_[kPool];
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_PLAN_H_
