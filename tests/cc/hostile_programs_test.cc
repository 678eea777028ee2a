// Whatever the integers of a folder and the shapes of a request are, a scorer ends in an error or
// an answer: programs of one step of each kind, with sizes and attributes at the ends of their
// ranges.
#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/scorer/scorer.h"
#include "gtest/gtest.h"
#include "tests/cc/step_programs.h"

namespace twml {
namespace hostile_programs_test {

using namespace step_programs;

TEST(HostilePrograms, EveryStepEndsInAnErrorOrAnAnswer) {
  constexpr int kProgramsOfAKind = 60;
  const TemporaryFolder root;
  Generator g(20261126);
  size_t loaded = 0, answered = 0;
  for (const Kind& kind : Kinds()) {
    for (int i = 0; i < kProgramsOfAKind; ++i) {
      const std::string folder = root / "model";
      WriteFolder(folder, MakeProgram(kind, &g));
      std::shared_ptr<const Scorer> scorer;
      try {
        const Status status = Scorer::Load(folder, {}, &scorer);
        EXPECT_EQ(status.ok(), scorer != nullptr);
        if (!status.ok()) continue;
        ++loaded;
        for (const int64_t rows : {0, 1, 3}) answered += Answers(*scorer, rows, &g);
      } catch (const std::bad_alloc&) {  // an error of the C interface and of Python
      }
    }
  }
  EXPECT_GT(loaded, 300u);
  EXPECT_GT(answered, 150u);
}

TEST(HostilePrograms, AHugeSizeBesideAZeroIsRefused) {
  const TemporaryFolder root;
  for (const char* shape : {"[0, 1152921504606846976]", "[1152921504606846976, 0]"}) {
    for (const char* op : {"dot_interaction", "factorization_machine"}) {
      WriteFolder(root / "model",
                  {{"scorer.json",
                    std::string("{\"format\": 1, \"inputs\": {\"x\": \"dense\"}, \"shapes\": ") +
                        "{\"x\": " + shape + "}, \"steps\": [{\"op\": \"" + op +
                        "\", \"in\": [\"x\"], \"out\": [\"y\"], \"arrays\": {}, \"attributes\": "
                        "{\"pool\": true}}], \"output\": \"y\"}"}});
      std::shared_ptr<const Scorer> scorer;
      const Status status = Scorer::Load(root / "model", {}, &scorer);
      EXPECT_NE(status.message().find("the shape of the input 'x'"), std::string::npos)
          << status.message();
    }
  }
}

}  // namespace hostile_programs_test
}  // namespace twml
