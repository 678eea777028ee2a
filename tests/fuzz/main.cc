// The program of all targets. The environment variable TWML_FUZZ_TARGET names the one that runs;
// "seeds FOLDER" instead of libFuzzer's arguments writes the seeds of all, "list" their names.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/targets.h"

namespace twml::fuzz {
namespace {

std::vector<Target> Targets() {
  std::vector<Target> all;
  for (const auto& some : {TextTargets(), StateTargets(), BatchTargets(), ScorerTargets()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

Target chosen = {};

int WriteSeeds(const std::filesystem::path& folder) {
  for (const Target& target : Targets()) {
    std::filesystem::create_directories(folder / target.name);
    int number = 0;
    for (const std::string& seed : target.seeds()) {
      std::ofstream(folder / target.name / ("seed" + std::to_string(number++)), std::ios::binary)
          << seed;
    }
  }
  return 0;
}

}  // namespace
}  // namespace twml::fuzz

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using twml::fuzz::Targets;
  const std::string_view first = *argc > 1 ? (*argv)[1] : "";
  if (first == "seeds" && *argc == 3) ::_exit(twml::fuzz::WriteSeeds((*argv)[2]));
  const char* const wanted = std::getenv("TWML_FUZZ_TARGET");
  for (const auto& target : Targets()) {
    if (first == "list") std::puts(target.name);
    if (wanted != nullptr && std::string_view(wanted) == target.name) twml::fuzz::chosen = target;
  }
  if (first == "list") {
    std::fflush(stdout);
    ::_exit(0);
  }
  if (twml::fuzz::chosen.run == nullptr) {
    std::fprintf(stderr, "TWML_FUZZ_TARGET must be a target that \"list\" prints\n");
    ::_exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  twml::fuzz::chosen.run({data, size});
  return 0;
}
