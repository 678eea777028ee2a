#include "cc/serving/served_model.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "cc/serving/thread_pool.h"
#include "tests/cc/scorer_folders.h"

namespace twml::serving {
namespace served_model_test {

using scorer::Scorer;

TEST(ServedModel, TheReloadThatBeganLastDecides) {
  const TemporaryFolder root;
  std::shared_ptr<const Scorer> versions[3];
  for (int i = 0; i < 3; ++i) {
    const std::string folder = root / std::to_string(i);
    WriteFolder(folder, ManySteps(static_cast<float>(i)));
    ASSERT_TRUE(Scorer::Load(folder, {}, &versions[i]).ok());
  }
  std::unique_ptr<ServedModel> model;
  ASSERT_TRUE(ServedModel::Load(root / "0", {}, &model).ok());
  const int64_t first = model->BeginReload(), second = model->BeginReload();
  EXPECT_TRUE(model->EndReload(second, versions[2]).ok());
  EXPECT_TRUE(model->EndReload(first, versions[1]).ok());  // it has read for longer
  EXPECT_EQ(model->Get().get(), versions[2].get());
  EXPECT_TRUE(model->EndReload(model->BeginReload(), versions[1]).ok());
  EXPECT_EQ(model->Get().get(), versions[1].get());
}

TEST(ThreadPool, TheExceptionOfARangeReachesTheCallerWhenNoThreadUsesTheBody) {
  ThreadPool pool(4);
  for (int64_t bad = 0; bad < 16; ++bad) {
    std::string text = "the range of " + std::to_string(bad);
    try {
      pool.Run(16, 1'000'000, 4, [&text, bad](int64_t begin, int64_t end) {
        if (begin <= bad && bad < end) throw std::runtime_error(text);
      });
      FAIL();
    } catch (const std::runtime_error& e) {
      EXPECT_EQ(e.what(), text);
    }
  }
  int64_t sum = 0;
  pool.Run(1, 1, 4, [&sum](int64_t, int64_t end) { sum += end; });
  EXPECT_EQ(sum, 1);
}

}  // namespace served_model_test
}  // namespace twml::serving
